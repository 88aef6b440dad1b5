import { expect, test } from "vitest";
import type { Samples } from "../api/samples";
import { byLoss, imagePixels, lookOf, rowsPerInput, samplesOf, squareOf } from "./samples";

test("the shape tells how a row looks", () => {
  expect(lookOf([8, 3, 32, 32], false)).toEqual({ kind: "image", channels: 3, height: 32, width: 32, last: false });
  expect(lookOf([8, 32, 24, 1], false)).toEqual({ kind: "image", channels: 1, height: 32, width: 24, last: true });
  expect(lookOf([8, 28, 28], false).kind).toBe("image");
  expect(lookOf([8, 16], true).kind).toBe("tokens");
  expect(lookOf([8, 16], false).kind).toBe("row");
  expect(lookOf([8, 16, 4, 4], false).kind).toBe("image");
  expect(lookOf([8, 16, 5, 5], false).kind).toBe("row");
  expect([squareOf([4, 64]), squareOf([4, 63]), squareOf([4, 9]), squareOf([4, 1, 64])]).toEqual([8, 0, 0, 0]);
});

test("an image goes from its darkest to its brightest value; what is not finite is marked", () => {
  const look = { width: 2, height: 1, channels: 1, last: false };
  expect([...imagePixels(Float32Array.from([-1, 3]), look)]).toEqual([0, 0, 0, 255, 255, 255, 255, 255]);
  expect([...imagePixels(Float32Array.from([NaN, 3]), look)].slice(0, 4)).toEqual([224, 0, 224, 255]);
  const rgb = imagePixels(Float32Array.from([0, 1, 2, 0, 1, 2]), { width: 2, height: 1, channels: 3, last: true });
  expect([...rgb].slice(0, 3)).toEqual([0, 127, 255].map((value) => (value === 127 ? 128 : value)));
});

const of = (each: number, value: number[], whole: number[], inputs: number[]): Samples => ({
  about: {
    step: null,
    inputs: [{ model: "Net", index: 0, worker: 0, ids: true, dtype: "int64", shape: inputs, whole: inputs }],
    losses: [{ key: "L", kind: "L", worker: 0, classes: 2, each, formula: "", by_value: true, weighted: false, output: { shape: whole, whole, dtype: "" }, target: { shape: [], whole: [], dtype: "" }, value: 1 }],
  },
  steps: [],
  numbers: { texts: {}, arrays: new Map([["loss.0.value", Float64Array.from(value)]]) },
});

test("several entries make one sample, and several rows of a loss may belong to one of the input", () => {
  expect(samplesOf(of(2, [1, 3, NaN, 5], [2, 2, 7], [2, 2]), 0).map((sample) => sample.loss)).toEqual([2, 5]);
  const flat = of(1, [1, 2, 3, 4], [4, 7], [2, 2]);
  expect(rowsPerInput(flat.about.losses[0]!, flat.about.inputs[0])).toBe(2);
  expect(samplesOf(flat, 0).map((sample) => sample.input)).toEqual([0, 0, 1, 1]);
  expect(samplesOf(flat, 1).length).toBe(2); // no such loss: rows of the inputs
});

test("samples are sorted by loss, unknown ones last", () => {
  const samples = samplesOf(of(1, [1, NaN, 3, 2], [4, 7], [4]), 0);
  expect(byLoss(samples, "most").map((one) => one.row)).toEqual([2, 3, 0, 1]);
  expect(byLoss(samples, "least").map((one) => one.row)).toEqual([0, 3, 2, 1]);
  expect(byLoss(samples, "row").map((one) => one.row)).toEqual([0, 1, 2, 3]);
});
