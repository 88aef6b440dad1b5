import { expect, test } from "vitest";
import { densities, divergence, histogramsOf, placeOf, ridgeRows, rowAt } from "./histograms";

const of = () =>
  histogramsOf({
    texts: { source: "histogram", exact: "1", steps: "1", scale: "linear" },
    arrays: new Map<string, Float64Array | BigInt64Array>([
      ["step", BigInt64Array.from([0n, 10n, 20n])],
      ["last", BigInt64Array.from([0n, 10n, 20n])],
      ["total", Float64Array.from([4, 4, 4])],
      ["edges", Float64Array.from([-1, 0, 1])],
      ["counts", Float64Array.from([2, 2, 1, 3, 0, 4])],
      ["levels", Float64Array.from([0, 0.5, 1])],
      ["quantiles", Float64Array.from([-1, 0, 1, -1, 0.2, 1, 0, 0.5, 1])],
    ]),
  });

test("rows are read as they were written", () => {
  const one = of();
  expect(one.counts).toEqual([[2, 2], [1, 3], [0, 4]]);
  expect(one.quantiles[1]).toEqual([-1, 0.2, 1]);
  expect([rowAt(one, 9), rowAt(one, 10), rowAt(one, 99), rowAt(one, -1)]).toEqual([0, 1, 2, -1]);
  expect(histogramsOf({ texts: {}, arrays: new Map() }).step).toEqual([]);
});

test("the divergence is 0 of equals, grows with the difference, and is never infinite", () => {
  expect(divergence([5, 5], [5, 5])).toBe(0);
  expect(divergence([100, 0], [0, 100])).toBeGreaterThan(divergence([60, 40], [40, 60]));
  expect(Number.isFinite(divergence([100, 0], [0, 100]))).toBe(true);
});

test("values lie along bins of any width", () => {
  expect(placeOf(-1, [-1, 0, 10])).toBe(0);
  expect(placeOf(5, [-1, 0, 10])).toBe(0.75);
  expect(placeOf(99, [-1, 0, 10])).toBe(1);
  expect(placeOf(NaN, [-1, 0, 10])).toBeNaN();
  expect(densities([0, 0])).toEqual([0, 0]);
  expect(densities([1, 4])).toEqual([0.25, 1]);
});

test("ridges keep the first and the last row", () => {
  const one = of();
  expect(ridgeRows(one, 2)).toEqual([0, 2]);
  expect(ridgeRows(one, 9)).toEqual([0, 1, 2]);
});
