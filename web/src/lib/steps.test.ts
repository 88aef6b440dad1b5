import { expect, test } from "vitest";
import { busyParts, StepTable, timesOf } from "./steps";

const numbers = (rows: [step: number, update: number, end: number, took: number][]) => ({
  texts: {},
  arrays: new Map<string, BigInt64Array | Uint8Array>([
    ["global_step", BigInt64Array.from(rows.map((row) => BigInt(row[0])))],
    ["update", BigInt64Array.from(rows.map((row) => BigInt(row[1])))],
    ["wall_unix_ns", BigInt64Array.from(rows.map((row) => BigInt(row[2] * 1e9)))],
    ["duration_ns", BigInt64Array.from(rows.map((row) => BigInt(row[3] * 1e9)))],
    ["mode", Uint8Array.from(rows.map(() => 1))],
  ]),
});
const EVAL = 2;
const table = (rows: [number, number, number, number][]) => {
  const made = new StepTable();
  made.add(numbers(rows));
  return made;
};

test("a step is found by update and by time, there and back", () => {
  const one = table([[0, 0, 100, 1], [1, 1, 102, 1], [2, 1, 104, 1], [10, 2, 120, 1]]);
  expect([one.at(1, "wall"), one.at(10, "wall"), one.at(6, "wall"), one.at(99, "wall")]).toEqual([2, 20, 12, 20]);
  expect([one.at(10, "update"), one.at(7, "step")]).toEqual([2, 7]);
  expect([one.stepAt(4, "wall"), one.stepAt(12, "wall"), one.stepAt(-5, "wall"), one.stepAt(1e9, "wall")]).toEqual([2, 6, 0, 10]);
  expect(new StepTable().at(3, "wall")).toBe(3);
});

test("a resumed run's later steps take the place of the earlier ones", () => {
  const one = table([[0, 0, 1, 1], [1, 1, 2, 1], [2, 2, 3, 1], [1, 1, 9, 1]]);
  expect(one.step).toEqual([0, 1]);
  expect(one.end).toEqual([1, 9]);
  expect(one.read).toBe(4);
});

test("time goes into steps, or between them", () => {
  const one = table([[0, 0, 1, 1], [1, 1, 2, 1], [2, 2, 8, 1], [3, 3, 18, 10]]);
  const times = timesOf(one);
  expect(times).toMatchObject({ whole: 17, inside: 12, between: 5, step: 1, pauses: [{ step: 2, seconds: 5 }, { step: 1, seconds: 0 }, { step: 3, seconds: 0 }], slow: [{ step: 3, seconds: 10 }] });
  expect(timesOf(new StepTable()).whole).toBe(0);
  expect(busyParts(one, 0, 99, 18)).toEqual([1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
});

test("an evaluation has a training step before it, if there is one", () => {
  const one = new StepTable();
  const rows = numbers([[0, 0, 1, 1], [3, 0, 2, 1], [5, 1, 3, 1], [6, 1, 4, 1]]);
  rows.arrays.set("mode", Uint8Array.from([EVAL, 1, EVAL, EVAL]));
  one.add(rows);
  expect([0, 2, 3, 4, 6, 99].map((step) => one.trainStepAt(step))).toEqual([undefined, undefined, 3, 3, 3, 3]);
  expect(new StepTable().trainStepAt(3)).toBe(undefined);
});
