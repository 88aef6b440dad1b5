import { expect, test } from "vitest";
import type { Numbers } from "../api/numbers";
import { zoomed } from "./zoom";

/** A curve as a file holds it: brief if every step has its own bucket. */
function stored(step: number[], mean: number[], more: { last?: number[]; lo?: number[]; hi?: number[]; flags?: number[]; steps?: number } = {}): Numbers {
  const arrays: Numbers["arrays"] = new Map();
  arrays.set("7.step", BigInt64Array.from(step.map(BigInt)));
  arrays.set("7.mean", Float64Array.from(mean));
  arrays.set("7.flags", Uint8Array.from(more.flags ?? step.map(() => 0)));
  if (more.last) {
    arrays.set("7.last", BigInt64Array.from(more.last.map(BigInt)));
    arrays.set("7.lo", Float32Array.from(more.lo!));
    arrays.set("7.hi", Float32Array.from(more.hi!));
  }
  return { texts: { "7.name": "w", "7.mode": "TRAIN", "7.steps": `${more.steps ?? 1}` }, arrays };
}
const list = (numbers: Numbers, part: string) => Array.from(numbers.arrays.get(`7.${part}`) as Float64Array);

test("a brief curve is every value, and a part of it is exact", () => {
  const curve = stored([0, 1, 2, 3, 4], [5, 4, 3, 2, 1]);
  const all = zoomed(curve, 7, {});
  expect([list(all, "step"), list(all, "last"), list(all, "lo"), list(all, "hi")]).toEqual([[0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [5, 4, 3, 2, 1], [5, 4, 3, 2, 1]]);
  expect(all.texts["7.exact"]).toBe("1");
  expect(list(zoomed(curve, 7, { from: 2, to: 3 }), "mean")).toEqual([3, 2]);
  expect(list(zoomed(curve, 7, { from: 9 }), "mean")).toEqual([]);
});

test("too many points are joined in buckets of 2^k steps that begin at multiples of that", () => {
  const steps = Array.from({ length: 10 }, (_, i) => i + 3);
  const curve = zoomed(stored(steps, steps), 7, { points: 4 });
  // 3 to 12: four buckets of four steps
  expect(list(curve, "step")).toEqual([3, 4, 8, 12]);
  expect(list(curve, "last")).toEqual([3, 7, 11, 12]);
  expect(list(curve, "lo")).toEqual([3, 4, 8, 12]);
  expect(list(curve, "hi")).toEqual([3, 7, 11, 12]);
  expect(list(curve, "mean")).toEqual([3, 5.5, 9.5, 12]);
  expect([curve.texts["7.exact"], curve.texts["7.steps"], curve.texts["7.finest"]]).toEqual(["0", "4", "0"]);
});

test("what is not finite is kept apart, and marked", () => {
  const curve = zoomed(stored([0, 1, 2, 3], [NaN, 2, NaN, NaN], { flags: [1, 0, 1, 1] }), 7, { points: 2 });
  expect(list(curve, "mean")).toEqual([2, NaN]);
  expect(list(curve, "lo")).toEqual([2, NaN]);
  expect(list(curve, "flags")).toEqual([3, 3]);
});

test("buckets of the file do not become smaller, and it is said", () => {
  const curve = stored([0, 8], [1, 5], { last: [7, 15], lo: [0, 4], hi: [2, 6], flags: [2, 2], steps: 8 });
  const part = zoomed(curve, 7, { from: 2, to: 5 });
  expect([list(part, "step"), list(part, "lo"), list(part, "hi")]).toEqual([[0], [0], [2]]);
  expect([part.texts["7.steps"], part.texts["7.exact"], part.texts["7.finest"]]).toEqual(["8", "0", "1"]);
});
