import { parseHarmless } from "../lib/harmless";
import { json, openFile, query, send } from "./client";
import { asNumbers, readNumbers, type Numbers } from "./numbers";
import type { Mode } from "./types";

export interface SampleShape {
  /** Of what was kept, and of the whole tensor. */
  shape: number[];
  whole: number[];
  dtype: string;
}
export interface SampledInput extends SampleShape {
  model: string;
  index: number;
  worker: number;
  ids: boolean;
}
export interface SampledLoss {
  key: string;
  kind: string;
  worker: number;
  classes: number;
  /** Entries of a sample: of tokens or pixels there are several. */
  each: number;
  formula: string;
  by_value: boolean;
  weighted: boolean;
  output: SampleShape;
  target: SampleShape;
  value: number | null;
}
export interface SampleAbout {
  step: { global_step: number; mode: Mode; mode_step: number; update: number } | null;
  inputs: SampledInput[];
  losses: SampledLoss[];
}
export interface Samples {
  about: SampleAbout;
  /** Steps with samples, ascending; in a report, those that it holds. */
  steps: number[];
  numbers: Numbers;
}
export async function samples(id: string, step: number | undefined, mode: string, signal?: AbortSignal): Promise<Samples> {
  const archive = await openFile();
  if (archive) {
    const found = await archive.samples(step, mode);
    if (!found) return { about: { step: null, inputs: [], losses: [] }, steps: [], numbers: { texts: {}, arrays: new Map() } };
    return { ...samplesIn(found.bytes), steps: found.steps };
  }
  return samplesIn(await (await send(`runs/${id}/samples${query({ step, mode })}`, { signal })).arrayBuffer());
}
function samplesIn(bytes: ArrayBuffer): Samples {
  const numbers = readNumbers(bytes);
  return { about: parseHarmless(numbers.texts["about"] ?? "{}") as SampleAbout, steps: asNumbers(numbers.arrays.get("steps")), numbers };
}

export interface ConfusionCell {
  truth: number;
  guess: number;
  count: number;
  /** The largest loss first. */
  samples: { step: number; worker: number; row: number; entry: number; loss: number | null }[];
}
export interface Confusion {
  loss: string;
  mode: Mode;
  losses: { key: string; classes: number }[];
  steps: number;
  steps_all: number;
  classes: number;
  rows: number;
  right: number;
  cells: ConfusionCell[];
  cells_left_out: number;
}
/** In a report of all steps, whatever the range; undefined if it holds none. */
export async function confusion(id: string, loss: string, mode: string, from: number | undefined, to: number | undefined, signal?: AbortSignal): Promise<Confusion | undefined> {
  const archive = await openFile();
  if (!archive) return json<Confusion>(`runs/${id}/confusion${query({ loss, mode, from, to })}`, signal);
  const bytes = await archive.confusion(loss, mode);
  return bytes && (parseHarmless(new TextDecoder().decode(bytes)) as Confusion);
}
