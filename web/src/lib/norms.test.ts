import { expect, test } from "vitest";
import type { NumberArray } from "../api/numbers";
import { normsOf } from "./norms";

const answer = (lo: number[], hi: number[], flags: number[]) => ({
  texts: {},
  arrays: new Map<string, NumberArray>([
    ["step", BigInt64Array.from(lo.map((_, i) => BigInt(4 * i)))],
    ["gradient.lo", Float64Array.from(lo)],
    ["gradient.hi", Float64Array.from(hi)],
    ["gradient.flags", Uint8Array.from(flags)],
  ]),
});
const same = (step: number) => step;

test("one curve where each gradient was recorded once a column", () => {
  expect(normsOf(answer([3, NaN, 5], [3, NaN, 5], [1, 0, 1]), "gradient", "all", same)).toEqual([{ name: "all", points: [[0, 3], [8, 5]] }]);
});
test("bounds where a column holds several steps, on the axis that is asked for", () => {
  const curves = normsOf(answer([1, 2], [3, 4], [1, 1]), "gradient", "all", (step) => step / 4);
  expect(curves).toEqual([{ name: "at most", points: [[0, 3], [1, 4]] }, { name: "at least", points: [[0, 1], [1, 2]] }]);
});
test("what is not finite is marked, also where nothing else is there", () => {
  expect(normsOf(answer([NaN, NaN], [NaN, NaN], [3, 0]), "gradient", "all", same)[0]!.points).toEqual([[0, NaN]]);
});
test("nothing was recorded", () => {
  expect(normsOf(answer([NaN], [NaN], [0]), "gradient", "all", same)).toEqual([]);
});
