/** What the server answers: docs/spec/http-api.md. Numbers that are not finite are texts. */

export type Numeric = number | "NaN" | "Infinity" | "-Infinity";
export type Mode = "TRAIN" | "EVAL" | "PREDICT" | "GLOBAL";

export interface Scalar {
  name: string;
  mode: Mode;
  count: number;
  first: Numeric;
  last: Numeric;
  min: Numeric;
  max: Numeric;
}

export interface Card {
  id: string;
  name: string;
  place: string;
  run: string;
  run_id: string;
  command: string[];
  host: string;
  framework: string;
  versions: Record<string, string>;
  parameters: Record<string, boolean | number | string>;
  tags: string[];
  title: string;
  note: string;
  outcome: string;
  why: string;
  verdict: string;
  begun_unix_ns: number;
  took_s: number;
  steps: Partial<Record<Mode, number>>;
  workers: number;
  findings: { count: number; rules: string[]; first?: { rule: string; severity: string; tensor: string; mode: Mode; since_step: number; what: string } };
  loss: string;
  eval_loss: string;
  scalars: Scalar[];
  problems: string[];
}

export interface ModeSteps {
  count: number;
  first: number;
  last: number;
}

export interface Gap {
  reason: string;
  tensor: string;
  collection: string;
  forms: string;
  count: number;
  first_step: number;
  last_step: number;
}

export interface LossRef {
  tensor: number;
  name: string;
  mode: Mode;
}

export interface RunDocument {
  id: string;
  card: Card;
  outcome: { state: string; why: string };
  workers: { worker: number; alive: boolean; ended: boolean; last_step: number; heartbeat_unix_ns: number }[];
  /** How many of them trained side by side. */
  ranks: number;
  steps: { count: number; first: number; last: number; modes: Partial<Record<Mode, ModeSteps>> };
  tensors: number;
  boosting?: boolean;
  gaps: Gap[];
  problems: string[];
  losses: LossRef[];
  statistics: string[];
  heat: string[];
  environment: unknown;
  model: ModelDocument | null;
}

export interface Tensor {
  id: number;
  name: string;
  role: string;
  module: string;
  type: string;
  collections: string[];
}

/** More about one tensor. */
export interface TensorFacts {
  id: number;
  dtype: string | null;
  shape: number[] | null;
  elements: number | null;
  steps: { count: number; first?: number; last?: number };
  values: { count: number; first?: number; last?: number };
  workers: number[];
}

/** A part of the document `model`: docs/spec/evidence.md. */
export interface ModelDocument {
  models?: {
    name?: string;
    type?: string;
    modules?: { path: string; type?: string; settings?: Record<string, unknown> }[];
    parameters?: { path?: string; name?: string; shape?: number[]; dtype?: string; requires_grad?: boolean }[];
  }[];
}

export interface Finding {
  id: string;
  rule: string;
  cause: string;
  severity: "warn" | "stop";
  tensor: string;
  other_tensors: string[];
  other_count: number;
  mode: Mode;
  step: number;
  global_step: number;
  since_step: number;
  last_step: number;
  /** The same two as global steps; files of older programs have none. */
  global_since?: number;
  global_last?: number;
  healed: boolean;
  leader: string;
  what: string;
  why: string;
  remedy: string;
  causes: string[];
  evidence: Record<string, Numeric>;
  series: [number, Numeric][];
  threshold: string;
  page: string;
  /** Of rules about time. */
  saving?: { seconds_a_step: Numeric; share: Numeric; low: Numeric; high: Numeric; method: string };
}

/** The finding that the verdict names, and whether it or what follows from it stops jobs. */
export interface Lead {
  finding: string;
  stops: boolean;
}

/** What somebody asked of the job, and what has become of it. */
export interface Asked {
  number: number;
  action: string;
  arguments: Record<string, unknown>;
  reason: string;
  author: string;
  asked_unix_ns: number;
  state: "asked" | "proposed" | "committed" | "done" | "refused" | "failed";
  train_step: number;
  why: string;
}

/** What somebody said of a finding. */
export interface Mark {
  finding: string;
  as: "acknowledge" | "mute";
  until_step: number;
  note: string;
  author: string;
}

export interface HeatInfo {
  stat: string;
  scale: "ratio" | "share" | "offset";
  rows: number;
  levels: { bucket_steps: number; columns: number }[];
  complete: boolean;
  version: number;
}

export interface StepRow {
  tensor: number;
  worker: number;
  dtype: string;
  count: number;
  zero: number;
  nan: number;
  inf: number;
  min: Numeric;
  max: Numeric;
  mean: Numeric;
  std: Numeric;
  l2: Numeric;
  abs_mean: Numeric;
}

export interface StepAnswer {
  step: { global_step: number; mode: Mode; mode_step: number; update: number; wall_unix_ns: number };
  rows: StepRow[];
  scalars: { tensor: number; worker: number; value: Numeric }[];
}

export interface Histogram {
  low: number | null;
  high: number | null;
  counts: number[];
  nan?: number;
  inf?: number;
}

export interface RunEvent {
  id: string;
  state: string;
  step_count: number;
  last_step: number;
  modes: Partial<Record<Mode, ModeSteps>>;
  tensors: number;
  findings: number;
  stop: number;
  heartbeat_unix_ns: number;
}

export interface NamedCurve {
  name: string;
  points: [number, Numeric][];
}
export interface EqualBins {
  low: number;
  high: number;
  counts: number[];
}
export interface ClassScore {
  precision: number;
  recall: number;
  f1: number;
  rows: number;
}
export interface BoostedTraining {
  prefix: string;
  objective: string;
  labels?: { rows: number; classes?: { label: number; rows: number }[]; bins?: EqualBins };
  metrics: { name: string; curves: NamedCurve[] }[];
  importance: { type: string; all: number; features: { name: string; value: Numeric }[] }[];
  predicted: boolean;
  classes?: {
    round: number;
    rows: number;
    count: number;
    matrix?: number[][];
    scores?: { accuracy: number; micro: ClassScore; macro: ClassScore; weighted: ClassScore; classes: ClassScore[] };
    recall?: NamedCurve[];
    roc?: { area: number; points: [number, Numeric][] };
  };
  regression?: { round: number; rows: number; root_mean_square?: Numeric; mean_absolute?: Numeric; residuals?: EqualBins; errors?: NamedCurve[] };
}
export interface BoostingAnswer {
  all: number;
  trainings: BoostedTraining[];
}

export interface LogLine {
  stream: "out" | "err";
  offset: number;
  /** 0: not known. */
  unix_ns: number;
  text: string;
  whole?: boolean;
}
/** Places are those in standard output and standard error. */
export interface LogAnswer {
  dropped: [number, number];
  size: [number, number];
  from: [number, number];
  next: [number, number];
  lines: LogLine[];
}
