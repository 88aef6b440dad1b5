import { asNumbers, type Numbers } from "../api/numbers";

const MODES = ["", "TRAIN", "EVAL", "PREDICT"]; // docs/spec/run-format.md
const TRAIN = 1;

/**
 * What steps are called. A run counts all steps (global steps) and those of each mode; commands and findings name a step by its
 * mode, and so does the page: "TRAIN step 60", or "step 60" where both counts are the same. Steps behind the last known one go on
 * as it does.
 */
export class StepNames {
  readonly #first: number[] = [];
  readonly #mode: number[] = [];
  readonly #step: number[] = [];
  readonly #count: number[] = [];
  /** Where reading goes on, in the step table. */
  next = 0;
  /** Whether there are TRAIN steps only, whose number is the global one. */
  plain = true;

  /** Takes in what `runs/RUN/spans` answers from `next` on. */
  add(numbers: Numbers): void {
    const [first, mode, step, count] = ["first", "mode", "mode_step", "count"].map((name) => asNumbers(numbers.arrays.get(name))) as [number[], number[], number[], number[]];
    for (let i = 0; i < first.length; ++i) {
      this.#cut(first[i]!);
      const last = this.#first.length - 1;
      const goesOn = last >= 0 && this.#mode[last] === mode[i] && this.#first[last]! + this.#count[last]! === first[i] && this.#step[last]! + this.#count[last]! === step[i];
      if (goesOn) this.#count[last]! += count[i]!;
      else {
        this.#first.push(first[i]!);
        this.#mode.push(mode[i]!);
        this.#step.push(step[i]!);
        this.#count.push(count[i]!);
      }
    }
    this.next = Number(numbers.texts["next"] ?? this.next);
    this.plain = this.#mode.every((mode, i) => mode === TRAIN && this.#step[i] === this.#first[i]);
  }
  /** Takes out the steps from one on: a resumed run records them again. */
  #cut(from: number): void {
    while (this.#first.length && this.#first.at(-1)! >= from) for (const column of [this.#first, this.#mode, this.#step, this.#count]) column.pop();
    const last = this.#first.length - 1;
    if (last >= 0) this.#count[last] = Math.min(this.#count[last]!, from - this.#first[last]!);
  }
  /** The span that a step is in or behind; -1 before the first. */
  #span(step: number): number {
    let [low, high] = [-1, this.#first.length];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.#first[middle]! <= step) low = middle;
      else high = middle;
    }
    return low;
  }
  /** Mode and number in it of a global step. */
  of(step: number): { mode: string; step: number } | undefined {
    const i = this.#span(step);
    return i < 0 ? undefined : { mode: MODES[this.#mode[i]!] ?? "", step: this.#step[i]! + step - this.#first[i]! };
  }
  name(step: number): string {
    const at = this.plain ? undefined : this.of(step);
    return at ? `${at.mode} step ${at.step.toLocaleString("en")}` : `step ${step.toLocaleString("en")}`;
  }
  /** Of a bucket, from its first to its last step. */
  range(first: number, last: number): string {
    if (first >= last) return this.name(first);
    const [a, b] = this.plain ? [undefined, undefined] : [this.of(first), this.of(last)];
    if (a && b && a.mode !== b.mode) return `${this.name(first)} to ${this.name(last)}`;
    const mode = a && b ? `${a.mode} ` : "";
    return `${mode}steps ${(a && b ? a.step : first).toLocaleString("en")} to ${(a && b ? b.step : last).toLocaleString("en")}`;
  }
  /** The global step of a step of a mode. */
  find(mode: string, step: number): number | undefined {
    if (this.plain && mode === "TRAIN") return step;
    for (let i = this.#first.length - 1; i >= 0; --i) {
      const by = step - this.#step[i]!;
      if (MODES[this.#mode[i]!] === mode && by >= 0 && by < this.#count[i]!) return this.#first[i]! + by;
    }
    return undefined;
  }
  /** Where a step lies on an axis of TRAIN steps: others between the two around them. Global steps where a run has no TRAIN steps. */
  train(step: number): number {
    if (this.plain || !this.#mode.includes(TRAIN)) return step;
    const i = this.#span(step);
    if (i < 0) return step - this.#first[0]!;
    if (this.#mode[i] === TRAIN) return this.#step[i]! + Math.min(step - this.#first[i]!, this.#isLast(i) ? Infinity : this.#count[i]! - 1);
    let before = i;
    while (before >= 0 && this.#mode[before] !== TRAIN) --before;
    let after = i;
    while (after < this.#first.length && this.#mode[after] !== TRAIN) ++after;
    const begin = before < 0 ? this.#first[0]! : this.#first[before]! + this.#count[before]!;
    const from = before < 0 ? (this.#step[after] ?? 0) - 1 : this.#step[before]! + this.#count[before]! - 1;
    const end = after < this.#first.length ? this.#first[after]! : this.#first.at(-1)! + this.#count.at(-1)!;
    const to = after < this.#first.length ? this.#step[after]! : from + 1;
    return from + ((step - begin + 1) / (end - begin + 1)) * (to - from);
  }
  #isLast(i: number): boolean {
    return i === this.#first.length - 1;
  }
  /** The global step at a place on that axis. */
  fromTrain(x: number): number {
    if (this.plain || !this.#mode.includes(TRAIN)) return x;
    // Places ascend with steps.
    let [low, high] = [0, this.#first.at(-1)! + this.#count.at(-1)! + 1];
    while (this.train(high) < x) high *= 2;
    while (high - low > 0.01) {
      const middle = (low + high) / 2;
      if (this.train(middle) < x) low = middle;
      else high = middle;
    }
    return Math.round(high * 20) / 20;
  }
}

/** The columns that name a step in a table: as the page does, and the global step where that is another number. */
export const stepColumns = (names: StepNames): string[] => (names.plain ? ["step"] : ["mode", "step of the mode", "global step"]);
export function stepCells(names: StepNames, step: number): (string | number)[] {
  const at = names.plain ? undefined : names.of(step);
  return names.plain ? [step] : [at?.mode ?? "", at?.step ?? "", step];
}
