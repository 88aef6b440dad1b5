/** What `runs/RUN/profile` answers: docs/spec/http-api.md, section 10. */

export interface PhaseLine {
  phase: string;
  steps: number;
  seconds: number;
  share: number;
  median: number;
  p95: number;
  device_steps?: number;
  device_seconds?: number;
}
export interface RankTimes {
  worker: number;
  steps: number;
  seconds: number;
  cpu: number | null;
  run_queue: number | null;
  phases: Record<string, number>;
}
type Maybe = number | null;
export interface Machine {
  host: number;
  name: string;
  seconds: number;
  cores: number;
  cores_of_machine: Maybe;
  cores_busy: Maybe;
  cores_job: Maybe;
  memory: { total: Maybe; least_available: Maybe };
  energy_kwh: { processors: Maybe; gpus: Maybe };
}
/** Seconds a timed step; `own`: without the modules that it calls; null: not seen. */
export interface ModuleLine {
  module: string | null;
  type: string;
  share: number;
  calls: number;
  forward: Maybe;
  forward_own: number;
  backward: Maybe;
  backward_own: Maybe;
}
export interface StackFrame {
  function: string;
  file: string;
  /** -1: not known. */
  line: number;
  /** The training's own code. */
  own: boolean;
}
/** A thread, or the first thread of a process that the training has started; "" is what is not known. */
export interface StackThread {
  thread: number;
  process?: number;
  name: string;
  state: string;
  call: string;
  place: string;
  on: string;
  trains: boolean;
  gil: boolean;
  /** The innermost first. */
  frames: StackFrame[];
}
/** A worker without progress. */
export interface Stall {
  worker: number;
  text: string;
  looks: number;
  same: number;
  phase: string;
  over: boolean;
  no_stack: string | null;
  /** Which ranks are waited for. */
  others: string | null;
  threads: StackThread[];
  processes: StackThread[];
}
/** A line in which long waits were spent; `share`: of the samples in this phase. */
export interface LineTime {
  phase: string;
  file: string;
  line: number;
  function: string;
  inside: string;
  samples: number;
  share: number;
}
export interface OperatorTime {
  name: string;
  calls: number;
  self: number;
  total: number;
}
export interface TraceSummary {
  events: number;
  span: number;
  in_operators: number;
  operators: OperatorTime[];
  functions: OperatorTime[];
  kernels: OperatorTime[];
  syncs: OperatorTime[];
  copies: { kind: string; calls: number; bytes: number; seconds: number }[];
  device: { span: number; busy: number; idle_host: number; idle_kernel: number; idle_unknown: number };
}
export interface Trace {
  first_step: number;
  steps: number;
  bytes: number;
  cost: number;
  file: string | null;
  refused: string | null;
  rule: string | null;
  /** Of the last one that was made; `unread`: why there is none. */
  summary?: TraceSummary;
  unread?: string;
}
export interface ProfileAnswer {
  /** 0: no phases, and then there is only `why` and the machines. */
  steps: number;
  why?: string;
  worker?: number;
  workers?: number[];
  verdict?: string;
  seconds?: number;
  step?: { median: number; p95: number };
  evaluation?: { steps: number; seconds: number };
  phases?: PhaseLine[];
  device?: { steps: number; host_seconds: number; seconds: number; idle_steps: number; text: string } | null;
  thread?: { seconds: number; cpu: number; run_queue: number } | null;
  cause?: string | null;
  remedy?: string | null;
  saving?: { seconds: number; seconds_a_step: number; share: number; low: number; high: number; method: string } | null;
  /** Steps in which operators were traced, which count for nothing else. */
  traced?: { steps: number; seconds: number };
  modules?: { steps: number; modules: number; seconds: number; lines: ModuleLine[] } | null;
  loaders?: { number: number; loaders: number; type: string; workers: number; asked: number; ready: number; waited: number }[];
  ranks?: RankTimes[];
  skew?: string;
  findings?: { id: string; rule: string }[];
  stalls: Stall[];
  stalls_left_out: number;
  lines: LineTime[];
  traces: Trace[];
  machines: Machine[];
  not_seen: string[];
}
