import { asNumbers, type Numbers } from "../api/numbers";

/** Least, greatest and mean value of each bucket; NaN: nothing is known. */
export interface Band {
  lo: number[];
  hi: number[];
  mean: number[];
}
export interface NamedBand {
  name: string;
  band: Band;
}
/** Where the time of TRAIN steps went, in buckets: docs/spec/http-api.md, `profile/steps`. */
export interface PhaseSteps {
  worker: number;
  workers: number[];
  /** Global steps a bucket has at most. */
  bucket: number;
  /** First and last step of each bucket: global ones, and of TRAIN. */
  step: number[];
  last: number[];
  train: number[];
  trainLast: number[];
  /** Steps with phases in each. */
  steps: number[];
  /** Seconds a step. */
  wall: Band;
  /** Seconds a step; the phase that takes most in all comes first, `other` last. */
  phases: NamedBand[];
  /** Shares of the time of the training thread. */
  cpu: number[];
  queue: number[];
  hosts: { host: number; bands: Map<string, Band> }[];
}

const sum = (values: number[]) => values.reduce((all, one) => all + (Number.isNaN(one) ? 0 : one), 0);

export function phaseStepsOf(numbers: Numbers): PhaseSteps {
  const list = (name: string) => asNumbers(numbers.arrays.get(name));
  const band = (name: string): Band => ({ lo: list(`${name}.lo`), hi: list(`${name}.hi`), mean: list(`${name}.mean`) });
  const words = (name: string) => (numbers.texts[name] ?? "").split(",").filter((word) => word !== "");
  const steps = list("steps");
  const weight = (one: NamedBand) => (one.name === "other" ? -1 : sum(one.band.mean.map((mean, i) => mean * steps[i]!)));
  const hosts = words("hosts").map((host) => {
    const prefix = `host.${host}.`;
    const names = [...numbers.arrays.keys()].filter((name) => name.startsWith(prefix) && name.endsWith(".mean"));
    return { host: Number(host), bands: new Map(names.map((name) => [name.slice(prefix.length, -".mean".length), band(name.slice(0, -".mean".length))])) };
  });
  return {
    worker: Number(numbers.texts["worker"] ?? 0),
    workers: words("workers").map(Number),
    bucket: Number(numbers.texts["bucket_steps"] ?? 1),
    step: list("step"),
    last: list("last"),
    train: list("train"),
    trainLast: list("train_last"),
    steps,
    wall: band("step_s"),
    phases: words("phases")
      .map((name) => ({ name, band: band(`phase.${name}`) }))
      .sort((a, b) => weight(b) - weight(a)),
    cpu: list("cpu"),
    queue: list("run_queue"),
    hosts,
  };
}

/** TRAIN steps from `first` to `last` that no bucket covers, as pairs of first and last. */
export function holesOf(steps: Pick<PhaseSteps, "train" | "trainLast">, first: number, last: number): [number, number][] {
  const holes: [number, number][] = [];
  let next = first;
  for (let i = 0; i < steps.train.length; ++i) {
    if (steps.train[i]! > next) holes.push([next, Math.min(steps.train[i]! - 1, last)]);
    next = Math.max(next, steps.trainLast[i]! + 1);
  }
  if (next <= last) holes.push([next, last]);
  return holes.filter(([from, to]) => from <= to);
}

/** The bucket that a TRAIN step is in; -1 if none is. */
export function bucketAt(steps: Pick<PhaseSteps, "train" | "trainLast">, train: number): number {
  const i = steps.train.findLastIndex((first) => first <= train);
  return i >= 0 && train <= steps.trainLast[i]! ? i : -1;
}

/** The top of an axis on which most of the values are well seen: a few that are far larger do not flatten the rest. */
export function topOf(wall: Band): number {
  const finite = (values: number[]) => values.filter(Number.isFinite);
  const sorted = finite(wall.hi).sort((a, b) => a - b);
  if (!sorted.length) return 1;
  const usual = sorted[Math.floor((sorted.length - 1) * 0.97)]!;
  return Math.min(sorted.at(-1)!, 1.5 * usual) * 1.06 || 1;
}

/** A colour of the page and how strong it is: related phases share one. */
const COLOURS: Record<string, [string, number]> = {
  data_wait: ["--run1", 1],
  data_start: ["--run1", 0.55],
  forward: ["--run0", 1],
  compute: ["--run0", 1],
  loss: ["--run0", 0.5],
  backward: ["--run4", 1],
  optimizer: ["--run2", 1],
  clip: ["--run2", 0.65],
  zero_grad: ["--run2", 0.45],
  scheduler: ["--run2", 0.3],
  eval: ["--run5", 0.6],
  compile: ["--run5", 1],
  checkpoint: ["--run3", 1],
  gc: ["--run3", 0.5],
  luff: ["--run6", 1],
  trace: ["--run6", 0.5],
};
export const colourOf = (phase: string): [string, number] => COLOURS[phase] ?? ["--soft", 0.35];

/** "46 ms", "1.2 s": as commands write times. */
export function timeText(seconds: number): string {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds === 0) return "0";
  if (seconds < 1e-4) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1e-2) return `${(seconds * 1e3).toFixed(1)} ms`;
  if (seconds < 1) return `${(seconds * 1e3).toFixed(0)} ms`;
  if (seconds < 100) return `${seconds.toFixed(1)} s`;
  if (seconds < 7200) return `${(seconds / 60).toFixed(0)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}
export function bytesText(bytes: number): string {
  if (!Number.isFinite(bytes)) return "–";
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  for (; bytes >= 999.5 && unit + 1 < units.length; ++unit) bytes /= 1000;
  return `${bytes.toFixed(bytes < 9.95 && unit > 0 ? 1 : 0)} ${units[unit]}`;
}
export const shareText = (share: number): string => (Number.isFinite(share) ? `${(100 * share).toFixed(share > 0 && share < 0.0995 ? 1 : 0)} %` : "–");

/** The mean over buckets, by their steps, and the greatest value. */
export function summed(band: Band, steps: readonly number[]): { mean: number; most: number } {
  let [all, weight, most] = [0, 0, -Infinity];
  for (let i = 0; i < band.mean.length; ++i) {
    if (Number.isNaN(band.mean[i])) continue;
    all += band.mean[i]! * steps[i]!;
    weight += steps[i]!;
    most = Math.max(most, band.hi[i]!);
  }
  return { mean: weight ? all / weight : NaN, most: weight ? most : NaN };
}

/** A chart of a machine over steps. */
export interface MachineChart {
  title: string;
  text: (value: number) => string;
  /** What its bands can be at the most; undefined: as large as they are. */
  top?: number;
  curves: NamedBand[];
  /** Whether anything was above 0. */
  moved: boolean;
}
const moved = (band: Band) => band.hi.some((value) => value > 0);

/** The charts that a machine's bands make, those with nothing in them left out. */
export function machineCharts(bands: Map<string, Band>, facts: { cores?: number | null; memory?: number | null }): MachineChart[] {
  const cores = (value: number) => value.toFixed(value < 9.95 ? 1 : 0);
  const pick = (wanted: [string, string][]): NamedBand[] => wanted.flatMap(([key, name]) => (bands.has(key) ? [{ name, band: bands.get(key)! }] : []));
  const stolen: [string, string][] = bands.get("cores.stolen")?.hi.some((value) => value >= 0.05) ? [["cores.stolen", "taken by other machines on the host"]] : [];
  const rate = (value: number) => `${bytesText(value)}/s`;
  const watt = (value: number) => `${value.toFixed(0)} W`;
  const charts: Omit<MachineChart, "moved">[] = [
    { title: "cores", text: cores, top: facts.cores ?? undefined, curves: pick([["cores.busy", "all that runs on the machine"], ["cores.job", "the job and its workers"], ...stolen]) },
    { title: "time in which something waited for", text: shareText, top: 1, curves: pick([["pressure.cpu", "a core"], ["pressure.memory", "memory"], ["pressure.io", "storage"]]) },
    { title: "memory", text: bytesText, top: facts.memory ?? undefined, curves: pick([["memory.used", "used on the machine"], ["memory.job", "the job and its workers"]]) },
    { title: "disks", text: rate, curves: pick([["disk.read", "read"], ["disk.written", "written"]]) },
    { title: "network", text: rate, curves: pick([["net.received", "received"], ["net.sent", "sent"]]) },
    { title: "power of the processors", text: watt, curves: pick([["power.processors", "processors"]]) },
  ];
  const gpus = [...new Set([...bands.keys()].flatMap((key) => /^gpu\.(\d+)\./.exec(key)?.[1] ?? []))].sort((a, b) => Number(a) - Number(b));
  for (const gpu of gpus) {
    charts.push(
      { title: `GPU ${gpu}`, text: shareText, top: 1, curves: pick([[`gpu.${gpu}.utilisation`, "a kernel runs"], [`gpu.${gpu}.sm_active`, "multiprocessors active"]]) },
      { title: `memory of GPU ${gpu}`, text: bytesText, curves: pick([[`gpu.${gpu}.memory.used`, "used"]]) },
      { title: `power of GPU ${gpu}`, text: watt, curves: pick([[`gpu.${gpu}.power`, "drawn"]]) },
    );
  }
  return charts.filter((chart) => chart.curves.length > 0).map((chart) => ({ ...chart, moved: chart.curves.some((curve) => moved(curve.band)) }));
}
