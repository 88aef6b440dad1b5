import { asNumbers } from "../api/numbers";
import type { SampledInput, SampledLoss, Samples } from "../api/samples";

/** How a row of an input is shown. */
export type Look = { kind: "image"; width: number; height: number; channels: number; last: boolean } | { kind: "tokens" } | { kind: "row" };

/** By the shape alone: (rows, channels, height, width), (rows, height, width[, channels]), ids. */
export function lookOf(shape: readonly number[], ids: boolean): Look {
  const few = (n: number | undefined) => n === 1 || n === 3 || n === 4;
  const [, a = 0, b = 0, c = 0] = shape;
  if (shape.length === 4 && few(a)) return { kind: "image", channels: a, height: b, width: c, last: false };
  if (shape.length === 4 && few(c)) return { kind: "image", channels: c, height: a, width: b, last: true };
  if (shape.length === 3 && !ids && a >= 4 && b >= 4) return { kind: "image", channels: 1, height: a, width: b, last: false };
  return ids ? { kind: "tokens" } : { kind: "row" };
}

/** The side of a square that a row of so many numbers may be; 0 if it is none. */
export function squareOf(shape: readonly number[]): number {
  const side = Math.round(Math.sqrt(shape[1] ?? 0));
  return shape.length === 2 && side >= 4 && side * side === shape[1] ? side : 0;
}

/** RGBA of one image, from its darkest to its brightest value. Not finite: magenta. */
export function imagePixels(values: Float32Array, look: { width: number; height: number; channels: number; last: boolean }): Uint8ClampedArray<ArrayBuffer> {
  const { width, height, channels, last } = look;
  const colours = Math.min(channels, 3);
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  const scale = high > low ? 255 / (high - low) : 0;
  const pixels = new Uint8ClampedArray(width * height * 4);
  for (let at = 0; at < width * height; ++at) {
    let bad = false;
    for (let k = 0; k < 3; ++k) {
      const channel = Math.min(k, colours - 1);
      const value = values[last ? at * channels + channel : channel * width * height + at] ?? NaN;
      bad ||= !Number.isFinite(value);
      pixels[at * 4 + k] = scale ? (value - low) * scale : 128;
    }
    if (bad) pixels.set([224, 0, 224], at * 4);
    pixels[at * 4 + 3] = 255;
  }
  return pixels;
}

/** One sample: a row of a loss, with the row of the input that it came from. */
export interface Sample {
  /** Row of the loss. */
  row: number;
  /** Row of the inputs. */
  input: number;
  /** Mean over its entries; NaN if not known. */
  loss: number;
  entries: { loss: number; truth: number; guess: number; sure: number }[];
}

/** Samples of a loss; without a loss, the rows of the inputs. */
export function samplesOf({ about, numbers }: Samples, place: number): Sample[] {
  const loss = about.losses[place];
  if (!loss) return Array.from({ length: about.inputs[0]?.shape[0] ?? 0 }, (_, row) => ({ row, input: row, loss: NaN, entries: [] }));
  const [value, truth, guess, sure] = ["value", "truth", "guess", "sure"].map((name) => asNumbers(numbers.arrays.get(`loss.${place}.${name}`))) as [number[], number[], number[], number[]];
  const count = Math.max(value.length, truth.length);
  const rows = Math.max(1, Math.floor(count / loss.each));
  const per = rowsPerInput(loss, about.inputs[0]);
  return Array.from({ length: count ? rows : 0 }, (_, row) => {
    const entries = Array.from({ length: loss.each }, (_, k) => {
      const i = row * loss.each + k;
      return { loss: value[i] ?? NaN, truth: truth[i] ?? NaN, guess: guess[i] ?? NaN, sure: sure[i] ?? NaN };
    });
    const known = entries.filter((entry) => !Number.isNaN(entry.loss));
    return { row, input: Math.floor(row / per), loss: known.length ? known.reduce((sum, entry) => sum + entry.loss, 0) / known.length : NaN, entries };
  });
}

/** Outputs are often (rows times tokens, classes): so many rows of the loss belong to one of the input. */
export function rowsPerInput(loss: SampledLoss, input: SampledInput | undefined): number {
  const [outer, inner] = [loss.output.whole[0] ?? 1, input?.whole[0] ?? 1];
  return inner > 0 && outer > inner && outer % inner === 0 ? outer / inner : 1;
}

/** Known losses first, by size; others in their order. */
export function byLoss(samples: readonly Sample[], order: string): Sample[] {
  if (order === "row") return [...samples];
  const sign = order === "least" ? 1 : -1;
  return samples.toSorted((a, b) => (Number.isNaN(a.loss) ? 1 : 0) - (Number.isNaN(b.loss) ? 1 : 0) || sign * (a.loss - b.loss) || a.row - b.row);
}
