import { expect, test } from "vitest";
import type { NumberArray } from "../api/numbers";
import { StepNames } from "./spans";

const answer = (rows: [number, number, number, number][], next: number) => ({
  texts: { next: `${next}` },
  arrays: new Map<string, NumberArray>([
    ["first", BigInt64Array.from(rows.map((row) => BigInt(row[0])))],
    ["mode", Uint8Array.from(rows.map((row) => row[1]))],
    ["mode_step", BigInt64Array.from(rows.map((row) => BigInt(row[2])))],
    ["count", BigInt64Array.from(rows.map((row) => BigInt(row[3])))],
  ]),
});
// Ten TRAIN steps, four of an evaluation, ten TRAIN steps, four of an evaluation.
const mixed = () => {
  const names = new StepNames();
  names.add(answer([[0, 1, 0, 10], [10, 2, 0, 4], [14, 1, 10, 10], [24, 2, 4, 4]], 28));
  return names;
};

test("a run of TRAIN steps alone says steps", () => {
  const names = new StepNames();
  names.add(answer([[0, 1, 0, 1500]], 1500));
  expect(names.plain).toBe(true);
  expect(names.name(1234)).toBe("step 1,234");
  expect(names.range(3, 8)).toBe("steps 3 to 8");
  expect(names.train(7.5)).toBe(7.5);
  expect(names.find("TRAIN", 9)).toBe(9);
});

test("with evaluations steps have the names that commands take", () => {
  const names = mixed();
  expect(names.plain).toBe(false);
  expect([0, 9, 10, 13, 14, 25].map((step) => names.name(step))).toEqual(["TRAIN step 0", "TRAIN step 9", "EVAL step 0", "EVAL step 3", "TRAIN step 10", "EVAL step 5"]);
  expect(names.range(2, 5)).toBe("TRAIN steps 2 to 5");
  expect(names.range(8, 11)).toBe("TRAIN step 8 to EVAL step 1");
  expect(names.range(4, 4)).toBe("TRAIN step 4");
  expect([names.find("TRAIN", 12), names.find("EVAL", 5), names.find("EVAL", 9)]).toEqual([16, 25, undefined]);
});

test("the axis counts TRAIN steps, and evaluations lie between them", () => {
  const names = mixed();
  expect([0, 9, 14, 23].map((step) => names.train(step))).toEqual([0, 9, 10, 19]);
  const all = Array.from({ length: 28 }, (_, step) => names.train(step));
  expect(all.every((x, i) => i === 0 || x > all[i - 1]!)).toBe(true);
  for (let step = 0; step < 28; ++step) expect(names.fromTrain(names.train(step))).toBeCloseTo(step, 1);
});

test("what comes later goes on, and a step that is recorded again counts once", () => {
  const names = mixed();
  names.add(answer([[28, 2, 8, 2], [30, 1, 20, 5]], 35));
  expect(names.name(29)).toBe("EVAL step 9");
  expect(names.name(34)).toBe("TRAIN step 24");
  names.add(answer([[16, 1, 12, 3]], 38)); // resumed from an older point
  expect(names.name(17)).toBe("TRAIN step 13");
  expect(names.find("TRAIN", 24)).toBeUndefined();
});

test("a run that only evaluates has its own steps on the axis", () => {
  const names = new StepNames();
  names.add(answer([[0, 2, 0, 8]], 8));
  expect(names.name(3)).toBe("EVAL step 3");
  expect(names.train(3)).toBe(3);
});

test("nothing known: global steps", () => {
  const names = new StepNames();
  expect(names.name(3)).toBe("step 3");
  expect(names.train(3)).toBe(3);
});
