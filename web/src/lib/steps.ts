import { asNumbers, type Numbers } from "../api/numbers";

const TRAIN = 1; // docs/spec/run-format.md

/** The step table: one entry for each global step, ascending; of a step that was recorded twice, the later one. */
export class StepTable {
  readonly step: number[] = [];
  readonly update: number[] = [];
  /** Seconds since 1970 at which a step ended, and how long it took. */
  readonly end: number[] = [];
  readonly took: number[] = [];
  readonly mode: number[] = [];
  /** Entries that were read, superseded ones too: where reading goes on. */
  read = 0;

  add(numbers: Numbers): number {
    const get = (name: string) => asNumbers(numbers.arrays.get(name));
    const [step, update, wall, duration, mode] = ["global_step", "update", "wall_unix_ns", "duration_ns", "mode"].map(get) as [number[], number[], number[], number[], number[]];
    for (let i = 0; i < step.length; ++i) {
      while (this.step.length && this.step.at(-1)! >= step[i]!) for (const column of [this.step, this.update, this.end, this.took, this.mode]) column.pop();
      this.step.push(step[i]!);
      this.update.push(update[i]!);
      this.end.push(wall[i]! / 1e9);
      this.took.push(duration[i]! / 1e9);
      this.mode.push(mode[i]!);
    }
    this.read += step.length;
    return step.length;
  }
  get size(): number {
    return this.step.length;
  }
  /** Position of the last entry whose value is at most this; 0 if all are larger. */
  #before(values: readonly number[], value: number): number {
    let [low, high] = [0, values.length];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (values[middle]! <= value) low = middle;
      else high = middle;
    }
    return low;
  }
  #column(axis: Axis): readonly number[] {
    return axis === "update" ? this.update : axis === "wall" ? this.end : this.step;
  }
  /** The last training step up to a step. */
  trainStepAt(step: number): number | undefined {
    let i = this.#before(this.step, step);
    while (i >= 0 && (this.mode[i] !== TRAIN || this.step[i]! > step)) --i;
    return this.step[i];
  }
  /** Where a step lies on an axis: updates, or seconds since the first step ended. Between two steps, between them. */
  at(step: number, axis: Axis): number {
    if (axis === "step" || this.size === 0) return step;
    const values = this.#column(axis);
    const zero = axis === "wall" ? values[0]! : 0;
    const i = this.#before(this.step, step);
    const [a, b] = [this.step[i]!, this.step[i + 1]];
    if (b === undefined || step <= a) return values[i]! - zero;
    return values[i]! + ((step - a) / (b - a)) * (values[i + 1]! - values[i]!) - zero;
  }
  /** The step at a place on an axis. */
  stepAt(x: number, axis: Axis): number {
    if (axis === "step" || this.size === 0) return x;
    const values = this.#column(axis);
    const value = x + (axis === "wall" ? values[0]! : 0);
    const i = this.#before(values, value);
    const [a, b] = [values[i]!, values[i + 1]];
    if (b === undefined || b <= a || value <= a) return this.step[i]!;
    return this.step[i]! + ((value - a) / (b - a)) * (this.step[i + 1]! - this.step[i]!);
  }
}

export type Axis = "step" | "update" | "wall";
export const axisOf = (text: string): Axis => (text === "update" || text === "wall" ? text : "step");
export const axisNames: Record<Axis, string> = { step: "step", update: "update", wall: "time since the first step" };

/** What the table tells about where the time went. */
export interface Times {
  /** Seconds from the end of the first step to the end of the last one. */
  whole: number;
  /** Seconds inside steps, and between them, of these steps. */
  inside: number;
  between: number;
  /** Median seconds of a TRAIN step and of the pause before it; NaN if there is none. */
  step: number;
  pause: number;
  /** The longest pauses: the step behind one, and its seconds. */
  pauses: { step: number; seconds: number }[];
  /** Steps that took more than three times the median. */
  slow: { step: number; seconds: number }[];
}

const median = (values: number[]) => {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted.length ? sorted[sorted.length >> 1]! : NaN;
};

export function timesOf(table: StepTable, from = 0, to = Infinity, most = 10): Times {
  const here = table.step.map((_, i) => i).filter((i) => table.step[i]! >= from && table.step[i]! <= to);
  const pause = (i: number) => Math.max(0, table.end[i]! - table.took[i]! - table.end[i - 1]!);
  const gaps = here.filter((i) => i > 0 && i > here[0]!).map((i) => ({ step: table.step[i]!, seconds: pause(i) }));
  const train = here.filter((i) => table.mode[i] === TRAIN);
  const step = median(train.map((i) => table.took[i]!));
  const longest = (a: { seconds: number }, b: { seconds: number }) => b.seconds - a.seconds;
  return {
    whole: here.length ? table.end[here.at(-1)!]! - table.end[here[0]!]! : 0,
    inside: here.slice(1).reduce((sum, i) => sum + table.took[i]!, 0),
    between: gaps.reduce((sum, gap) => sum + gap.seconds, 0),
    step,
    pause: median(gaps.map((gap) => gap.seconds)),
    pauses: gaps.toSorted(longest).slice(0, most),
    slow: train
      .map((i) => ({ step: table.step[i]!, seconds: table.took[i]! }))
      .filter((one) => one.seconds > 3 * step)
      .sort(longest)
      .slice(0, most),
  };
}

/** Time in equal parts of the wall time: the share inside steps of each part, 0 to 1. `undefined` where nothing was recorded at all. */
export function busyParts(table: StepTable, from: number, to: number, parts: number): (number | undefined)[] {
  const here = table.step.map((_, i) => i).filter((i) => table.step[i]! >= from && table.step[i]! <= to);
  const [first, last] = [here[0], here.at(-1)];
  if (first === undefined || last === undefined) return [];
  const begin = table.end[first]! - table.took[first]!;
  const width = (table.end[last]! - begin) / parts;
  if (!(width > 0)) return [];
  const busy = new Array<number>(parts).fill(0);
  for (const i of here) {
    const [a, b] = [(table.end[i]! - table.took[i]! - begin) / width, (table.end[i]! - begin) / width];
    for (let part = Math.max(0, Math.floor(a)); part < Math.min(parts, Math.ceil(b)); ++part) busy[part]! += Math.max(0, Math.min(b, part + 1) - Math.max(a, part));
  }
  return busy.map((share) => Math.min(1, share));
}
