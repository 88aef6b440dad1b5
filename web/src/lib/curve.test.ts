import { expect, test } from "vitest";
import { readNumbers } from "../api/numbers";
import { curveOf, smoothed } from "./curve";

/** A payload as the server writes it. */
function payload(arrays: Record<string, { dtype: string; values: number[] }>, texts: Record<string, string>): ArrayBuffer {
  const header: Record<string, unknown> = { __metadata__: texts };
  const parts: Uint8Array[] = [];
  let at = 0;
  for (const [name, { dtype, values }] of Object.entries(arrays)) {
    const bytes =
      dtype === "F64" ? new Uint8Array(Float64Array.from(values).buffer) : dtype === "I64" ? new Uint8Array(BigInt64Array.from(values.map(BigInt)).buffer) : Uint8Array.from(values);
    header[name] = { dtype, shape: [values.length], data_offsets: [at, at + bytes.length] };
    parts.push(bytes);
    at += bytes.length;
    const over = (8 - (at % 8)) % 8;
    parts.push(new Uint8Array(over));
    at += over;
  }
  let text = JSON.stringify(header);
  text += " ".repeat((8 - (text.length % 8)) % 8);
  const whole = new Uint8Array(8 + text.length + at);
  new DataView(whole.buffer).setBigUint64(0, BigInt(text.length), true);
  whole.set(new TextEncoder().encode(text), 8);
  let place = 8 + text.length;
  for (const part of parts) {
    whole.set(part, place);
    place += part.length;
  }
  return whole.buffer;
}

const of = (step: number[], mean: number[], flags: number[]) =>
  curveOf(
    readNumbers(
      payload(
        {
          "3.step": { dtype: "I64", values: step },
          "3.last": { dtype: "I64", values: step },
          "3.lo": { dtype: "F64", values: mean },
          "3.hi": { dtype: "F64", values: mean },
          "3.mean": { dtype: "F64", values: mean },
          "3.flags": { dtype: "U8", values: flags },
        },
        { "3.name": "<b>w</b>", "3.mode": "TRAIN", "3.exact": "1" },
      ),
    ),
    3,
  );

test("a line never crosses a gap, and every tenth step is no gap", () => {
  expect(of([0, 1, 2, 3, 90, 91], [1, 1, 1, 1, 2, 2], [0, 0, 0, 0, 0, 0]).mean).toEqual([1, 1, 1, 1, null, 2, 2]);
  expect(of([0, 10, 20, 30], [1, 2, 3, 4], [0, 0, 0, 0]).mean).toEqual([1, 2, 3, 4]);
});

test("what is not finite is marked and is no number", () => {
  const curve = of([0, 1, 2], [1, NaN, 3], [0, 1, 0]);
  expect(curve.mean).toEqual([1, null, 3]);
  expect(curve.bad).toEqual([1]);
  expect(curve.name).toBe("<b>w</b>");
});

test("smoothing begins without a bias and keeps gaps", () => {
  expect(smoothed([4, 4, null, 4], 0.9).map((value) => value && Math.round(value * 1e6) / 1e6)).toEqual([4, 4, null, 4]);
  expect(smoothed([1, 3], 0)).toEqual([1, 3]);
});

test("steps of other modes are no gap where the place of a step says so", () => {
  const steps = [0, 1, 2, 3, 14, 15, 16];
  const one = (name: string, dtype: string, values: number[]) => [`3.${name}`, { dtype, values }] as const;
  const numbers = readNumbers(
    payload(Object.fromEntries([one("step", "I64", steps), one("last", "I64", steps), one("lo", "F64", steps), one("hi", "F64", steps), one("mean", "F64", steps), one("flags", "U8", steps.map(() => 0))]), {}),
  );
  expect(curveOf(numbers, 3).x).toEqual([0, 1, 2, 3, 8.5, 14, 15, 16]);
  expect(curveOf(numbers, 3, (step) => (step > 3 ? step - 10 : step)).x).toEqual(steps);
});
