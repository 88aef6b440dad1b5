import { expect, test } from "vitest";
import { best, fit } from "./palette";

const of = (...texts: string[]) => texts.map((text) => ({ text }));
const found = (typed: string, ...texts: string[]) => best(typed, of(...texts), 10).map((one) => one.text);

test("what is typed whole comes first, letters in order still count", () => {
  expect(found("heat", "the ear at home", "Heat map", "wheat")).toEqual(["Heat map", "wheat", "the ear at home"]);
  expect(found("h7qw", "h.7.attn.q.weight", "h.8.attn.k.bias")).toEqual(["h.7.attn.q.weight"]);
  expect(found("zzz", "a", "b")).toEqual([]);
  expect(found("", "a", "b")).toEqual(["a", "b"]);
  expect(fit("a", "a")).toBeGreaterThan(fit("a", "a very long text"));
});
