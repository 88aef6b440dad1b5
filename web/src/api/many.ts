import { json, Problem, query, send } from "./client";
import { readNumbers, type Numbers } from "./numbers";
import type { Card, Mode, Numeric } from "./types";

/** A row of the list of runs: docs/spec/http-api.md. */
export interface RunRow {
  id: string;
  place: string;
  /** Texts of the fields that were asked for, in their order. */
  fields: string[];
  name: string;
  title: string;
  note: string;
  tags: string[];
  outcome: string;
  why: string;
  verdict: string;
  begun_unix_ns: number;
  took_s: number;
  workers: number;
  framework: string;
  host: string;
  findings: Card["findings"];
  course: Numeric[];
  steps: number;
  loss: { last: Numeric; min: Numeric } | null;
  eval_loss: { last: Numeric; min: Numeric } | null;
}
export interface RunRows {
  runs: RunRow[];
  matching: number;
  all: number;
  notes: string[];
}
export const MOST_ROWS = 10_000;
export const rows = (where: string, sort: string, fields: string[], signal?: AbortSignal) =>
  json<RunRows>(`runs${query({ brief: 1, where, sort, limit: MOST_ROWS, fields: fields.join(",") })}`, signal);
export const fieldNames = async () => (await json<{ fields: string[] }>("fields")).fields;

export interface Labels {
  tags: string[];
  title: string;
  note: string;
  changes: { author: string; unix_ns: number; add: string[]; remove: string[]; title?: string; note?: string }[];
}
export const labels = (id: string) => json<Labels>(`runs/${id}/labels`);

export interface DifferenceAt {
  tensor: string;
  kind: string;
  step: number;
  a: Numeric;
  b: Numeric;
  noise: number;
  as_early: number;
}
export interface Divergence {
  a: number;
  b: number;
  mode: Mode | "";
  steps: number;
  first: number;
  last: number;
  any: DifferenceAt | null;
  beyond: DifferenceAt[];
  sentences: string[];
}
export interface Comparison {
  runs: Card[];
  settings: { kind: string; name: string; values: (string | null)[] }[];
  settings_same: number;
  settings_left_out: number;
  findings: { rule: string; cause: string; runs: ({ count: number; severity: string; tensor: string; mode: Mode; since_step: number } | null)[] }[];
  divergence: Divergence[];
  noise: string;
}
export interface CommonTensor {
  name: string;
  role: string;
  /** Of each run; -1 where it has none. */
  ids: number[];
}
/** The server makes one comparison at a time: asks again while it is busy with another. */
async function patiently<T>(ask: () => Promise<T>, signal?: AbortSignal): Promise<T> {
  for (;;) {
    try {
      return await ask();
    } catch (error) {
      if (!(error instanceof Problem) || error.status !== 503 || signal?.aborted) throw error;
      await new Promise((resume) => setTimeout(resume, 300));
    }
  }
}
export const compare = (ids: string[], signal?: AbortSignal) => patiently(() => json<Comparison>(`compare${query({ runs: ids.join(",") })}`, signal), signal);
export const commonTensors = async (ids: string[], signal?: AbortSignal) =>
  (await patiently(() => json<{ tensors: CommonTensor[] }>(`compare/tensors${query({ runs: ids.join(",") })}`, signal), signal)).tensors;
export async function ratioMap(a: string, b: string, from: number | undefined, to: number | undefined, signal?: AbortSignal): Promise<Numbers> {
  const answer = await patiently(() => send(`compare/map${query({ runs: `${a},${b}`, from, to })}`, { signal }), signal);
  return readNumbers(await answer.arrayBuffer());
}
/** The step table of a run, at most 100,000 steps. */
export async function steps(id: string): Promise<Numbers> {
  return readNumbers(await (await send(`runs/${id}/steps`)).arrayBuffer());
}
