import { expect, test } from "vitest";
import { firstApart, ranksOf, shade, stragglersOf } from "./ranks";

const rows = (...values: number[]) => Float64Array.from(values);
const of = (duration: number[], parameters: number[]) =>
  ranksOf({
    texts: { steps: "1", compared_every: "1" },
    arrays: new Map<string, Float64Array | BigInt64Array>([
      ["rank", BigInt64Array.from([0n, 1n, 2n])],
      ["step", BigInt64Array.from([0n, 1n])],
      ["last", BigInt64Array.from([0n, 1n])],
      ["duration_s", rows(...duration)],
      ["parameters.distance", rows(...parameters)],
      ["parameters.tensor", BigInt64Array.from([-1n, -1n, -1n, 4n, -1n, -1n])],
    ]),
  });

test("a straggler is named, and nobody else", () => {
  const ranks = of([1, 1, 2, 2, 1, 1], [0, 0, 0, 0, 0, 0]);
  expect(ranks.tables.duration).toEqual([[1, 1], [2, 2], [1, 1]]);
  expect(stragglersOf(ranks)).toEqual([{ rank: 1, ratio: 2, share: 1 }]);
  expect(stragglersOf(of([1, 1, 1.05, 1, 1, 1], [0, 0, 0, 0, 0, 0]))).toEqual([]);
});

test("the first step at which replicas part", () => {
  expect(firstApart(of([1, 1, 1, 1, 1, 1], [0, 0, 1e-9, 0.5, 0, 1e-9]), "parameters", 1e-6)).toEqual({ step: 1, rank: 1, tensor: 4, by: 0.5 });
  expect(firstApart(of([1, 1, 1, 1, 1, 1], [0, 0, 0, 0, NaN, NaN]), "parameters", 1e-6)).toBeUndefined();
});

test("distances are shown by orders of magnitude", () => {
  expect([shade(0, "parameters", 0, 1), shade(1e-3, "parameters", 0, 1), shade(Infinity, "losses", 0, 1)]).toEqual([0, 0.5, 1]);
  expect(shade(3, "duration", 1, 5)).toBe(0.5);
});
