import { expect, test } from "vitest";
import { linesOf } from "./lines";

test("curves share their axes, and a gap breaks the line", () => {
  const lines = linesOf([
    { name: "train", points: [[0, 1], [1, 2], [2, "NaN"], [4, 3]] },
    { name: "test", points: [[0, 5], [4, 1]] },
  ])!;
  expect([lines.first, lines.last, lines.low, lines.high, lines.log]).toEqual([0, 4, 1, 5, false]);
  expect(lines.lines[0]!.parts).toEqual([[[0, 0], [0.25, 0.25]], [[1, 0.5]]]);
  expect(lines.lines[0]!.bad).toEqual([0.5]);
  expect(lines.lines[0]!.told).toBe("last 3; not finite at 1 places");
});

test("nothing is drawn of what has no two finite values", () => {
  expect(linesOf([])).toBeUndefined();
  expect(linesOf([{ name: "a", points: [[0, 1], [1, "Infinity"]] }])).toBeUndefined();
});

test("orders of magnitude get a logarithmic axis; a square one stays as it is", () => {
  expect(linesOf([{ name: "a", points: [[0, 1], [1, 1e4]] }])!.log).toBe(true);
  const square = linesOf([{ name: "roc", points: [[0, 0], [0.1, 0.8], [1, 1]] }], true)!;
  expect(square.lines[0]!.parts[0]![1]).toEqual([0.1, 0.8]);
});
