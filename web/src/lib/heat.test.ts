import { expect, test } from "vitest";
import { BAD, byteText, mergeWorst, NOT_READ, NOT_RECORDED, palette, valueOf, worse, newestRead } from "./heat";

test("the worst of several cells is what matters most", () => {
  expect(worse(130, 100, "ratio")).toBe(100);
  expect(worse(100, 152, "ratio")).toBe(100);
  expect(worse(252, BAD, "ratio")).toBe(BAD);
  expect(worse(NOT_RECORDED, 126, "ratio")).toBe(126);
  expect(worse(NOT_READ, NOT_RECORDED, "share")).toBe(NOT_READ);
  const into = Uint8Array.of(126, 255, 20);
  mergeWorst(into, Uint8Array.of(127, 126, 254), "ratio");
  expect([...into]).toEqual([127, 126, 254]);
});

test("bytes stand for what the server wrote", () => {
  for (const ratio of [1e-4, 0.01, 0.5, 0.9, 1, 1.2, 3, 1000]) {
    const d = Math.log10(ratio);
    const byte = Math.round(126 + 126 * Math.sign(d) * Math.min(1, Math.sqrt(Math.abs(d) / 4)));
    expect(Math.abs(Math.log10(valueOf(byte, "ratio") / ratio))).toBeLessThan(0.06);
  }
  expect(byteText(126, "ratio")).toBe("as the row's median");
  expect(byteText(252, "share")).toBe("100 %");
  expect(byteText(126, "offset")).toBe("as the row's median");
  expect(byteText(63, "offset")).toBe("50 % of the row's largest distance below its median");
  expect(byteText(BAD, "share")).toBe("not finite");
});

test("every value has an opaque colour, and what is missing has none", () => {
  for (const dark of [false, true]) {
    const words = palette("ratio", dark);
    expect(words.slice(0, 253).every((word) => word >>> 24 === 255)).toBe(true);
    expect([words[NOT_READ], words[NOT_RECORDED]]).toEqual([0, 0]);
  }
});

test("of a live row, the newest column that is read", () => {
  const row = Uint8Array.from([10, 20, NOT_READ, NOT_READ]);
  expect([0, 1, 2, 3, 9].map((column) => newestRead(row, column))).toEqual([0, 1, 1, 1, 1]);
  expect(newestRead(Uint8Array.from([NOT_READ]), 0)).toBe(0);
});
