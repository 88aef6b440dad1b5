import { json, query, send } from "./client";
import { readNumbers, type Numbers } from "./numbers";
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
  numbers: Numbers;
}
export async function samples(id: string, step: number | undefined, mode: string, signal?: AbortSignal): Promise<Samples> {
  const answer = await send(`runs/${id}/samples${query({ step, mode })}`, { signal });
  const numbers = readNumbers(await answer.arrayBuffer());
  return { about: JSON.parse(numbers.texts["about"] ?? "{}") as SampleAbout, numbers };
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
export const confusion = (id: string, loss: string, mode: string, from: number | undefined, to: number | undefined, signal?: AbortSignal) =>
  json<Confusion>(`runs/${id}/confusion${query({ loss, mode, from, to })}`, signal);
