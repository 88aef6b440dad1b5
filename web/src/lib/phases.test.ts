import { expect, test } from "vitest";
import type { Numbers } from "../api/numbers";
import { bucketAt, holesOf, machineCharts, phaseStepsOf, summed, timeText, topOf } from "./phases";

const big = (...values: number[]) => new BigInt64Array(values.map(BigInt));
const small = (...values: number[]) => new Float32Array(values);
const numbers: Numbers = {
  texts: { worker: "1", workers: "0,1", bucket_steps: "4", phases: "other,data_wait,forward", hosts: "7" },
  arrays: new Map<string, BigInt64Array | Float32Array>([
    ["step", big(0, 4)],
    ["last", big(3, 6)],
    ["train", big(0, 4)],
    ["train_last", big(3, 6)],
    ["steps", big(4, 3)],
    ["phase.other.mean", small(9, 9)],
    ["phase.data_wait.mean", small(1, 4)],
    ["phase.forward.mean", small(2, 2)],
    ["host.7.cores.busy.mean", small(1.5, NaN)],
    ["host.7.cores.busy.lo", small(1, NaN)],
    ["host.7.cores.busy.hi", small(2, NaN)],
  ]),
};

test("phases come with the dearest first, and other last", () => {
  const steps = phaseStepsOf(numbers);
  expect(steps.phases.map((one) => one.name)).toEqual(["data_wait", "forward", "other"]);
  expect([steps.worker, steps.workers, steps.bucket]).toEqual([1, [0, 1], 4]);
  expect(steps.hosts[0]!.bands.get("cores.busy")!.mean[0]).toBe(1.5);
});

test("steps without phases are holes, also before the first and behind the last", () => {
  const steps = { train: [10, 20, 25], trainLast: [14, 24, 29] };
  expect(holesOf(steps, 0, 40)).toEqual([[0, 9], [15, 19], [30, 40]]);
  expect(holesOf(steps, 12, 28)).toEqual([[15, 19]]);
  expect(holesOf({ train: [], trainLast: [] }, 0, 3)).toEqual([[0, 3]]);
});

test("a step is in its bucket or in none", () => {
  const steps = { train: [10, 20], trainLast: [14, 24] };
  expect([9, 10, 14, 15, 24, 25].map((step) => bucketAt(steps, step))).toEqual([-1, 0, 0, -1, 1, -1]);
});

test("one long step does not flatten the rest", () => {
  const mean = Array.from({ length: 100 }, () => 0.05);
  const wall = { lo: mean, mean, hi: mean.map((one, i) => (i === 50 ? 9 : one)) };
  expect(topOf(wall)).toBeLessThan(0.2);
  expect(topOf({ lo: mean, mean, hi: mean })).toBeCloseTo(0.053);
});

test("means weigh buckets by their steps and leave out what is not known", () => {
  expect(summed({ lo: [1, NaN], hi: [3, NaN], mean: [2, NaN] }, [4, 3])).toEqual({ mean: 2, most: 3 });
  expect(summed({ lo: [0, 0], hi: [1, 4], mean: [1, 4] }, [3, 1]).mean).toBe(1.75);
});

test("a machine has the charts of what was measured", () => {
  const band = { lo: [1], hi: [1], mean: [1] };
  const charts = machineCharts(new Map([["cores.busy", band], ["gpu.0.utilisation", band]]), { cores: 8 });
  expect(charts.map((chart) => [chart.title, chart.top, chart.moved])).toEqual([["cores", 8, true], ["GPU 0", 1, true]]);
  const none = { lo: [0, NaN], hi: [0, NaN], mean: [0, NaN] };
  expect(machineCharts(new Map([["net.sent", none]]), {}).map((chart) => chart.moved)).toEqual([false]);
});

test("times are written as commands write them", () => {
  expect([2e-5, 0.0032, 0.046, 1.25, 400].map(timeText)).toEqual(["20 µs", "3.2 ms", "46 ms", "1.3 s", "7 min"]);
});
