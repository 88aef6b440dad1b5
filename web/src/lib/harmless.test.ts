import { expect, test } from "vitest";
import { harmless, parseHarmless } from "./harmless";

test("what steers is shown, byte by byte; all other text stays", () => {
  expect(harmless("fc.weight <b> ü 重み 🎉")).toBe("fc.weight <b> ü 重み 🎉");
  expect(harmless("bidi\u202etxt")).toBe("bidi\\xe2\\x80\\xaetxt");
  expect(harmless("\u001b[31m\u007f\u009b\u{e0041}")).toBe("\\x1b[31m\\x7f\\xc2\\x9b\\xf3\\xa0\\x81\\x81");
});

test("texts and names in JSON are harmless, numbers and structure stay", () => {
  const value = { "a\u202eb": ["\n", { x: 1.5, y: null }], plain: true };
  expect(parseHarmless(JSON.stringify(value))).toEqual({ "a\\xe2\\x80\\xaeb": ["\\x0a", { x: 1.5, y: null }], plain: true });
  expect(parseHarmless('{"__proto__": "\\u202e"}')).toEqual(JSON.parse('{"__proto__": "\\\\xe2\\\\x80\\\\xae"}'));
  expect(parseHarmless("[1, 2]")).toEqual([1, 2]);
});
