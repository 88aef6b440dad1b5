import { expect, test } from "vitest";
import { evidenceOf, limitsOf } from "./limits";

test("a limit is the number that is compared, not a count or a share", () => {
  expect(limitsOf("below 1e-07 (original)")).toEqual([1e-7]);
  expect(limitsOf("above 10 or below 0.001 (original)")).toEqual([10, 0.001]);
  expect(limitsOf("p of 0.5 or more (Luff)")).toEqual([0.5]);
  expect(limitsOf("loss > 3 (your own)")).toEqual([3]);
  expect(limitsOf("more than 50 % of the nodes (original)")).toEqual([]);
  expect(limitsOf("more than 10 steps in a row")).toEqual([]);
  expect(limitsOf("deeper than 20 (Luff)")).toEqual([20]);
  expect(limitsOf("a fact of the graph, 3 updates (Luff)")).toEqual([]);
});

test("the limit is drawn only where it belongs to what is drawn", () => {
  const statistics = ["auto", "l2", "abs_mean"];
  expect(evidenceOf({ series: [], evidence: { abs_mean: 1e-9 }, threshold: "below 1e-07 (original)" }, statistics)).toEqual({ kind: "statistic", stat: "abs_mean", limits: [1e-7] });
  expect(evidenceOf({ series: [], evidence: { ratio: 3 }, threshold: "above 2" }, statistics)).toEqual({ kind: "statistic", stat: "auto", limits: [] });
  const series: [number, number][] = [[1, 0.5], [2, 3]];
  expect(evidenceOf({ series, evidence: { ratio: 3 }, threshold: "ratio above 2" }, statistics)).toEqual({ kind: "series", stat: "auto", limits: [2] });
  expect(evidenceOf({ series, evidence: { ratio: 9 }, threshold: "ratio above 2" }, statistics).limits).toEqual([]);
  expect(evidenceOf({ series, evidence: { value: "NaN" }, threshold: "ratio above 2" }, statistics).limits).toEqual([]);
});
