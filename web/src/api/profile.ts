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
  machines: Machine[];
  not_seen: string[];
}
