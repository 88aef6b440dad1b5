import { asNumbers, type Numbers } from "../api/numbers";

/** Steps of one mode: from global ones to those of the mode. Runs that evaluate at other steps can then be laid over one another. */
export class ModeSteps {
  #global: number[] = [];
  #own: number[] = [];

  constructor(table: Numbers, mode: number) {
    const [global, own, modes] = ["global_step", "mode_step", "mode"].map((name) => asNumbers(table.arrays.get(name))) as [number[], number[], number[]];
    const places = global.map((_, i) => i).sort((a, b) => global[a]! - global[b]!);
    for (const i of places) {
      if (modes[i] !== mode) continue;
      this.#global.push(global[i]!);
      this.#own.push(own[i]!);
    }
  }
  /** The step of the mode at a global step, or the next one after it; beyond the table, as far behind its end. */
  place(step: number): number {
    let [low, high] = [0, this.#global.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#global[middle]! < step) low = middle + 1;
      else high = middle;
    }
    if (low < this.#own.length) return this.#own[low]!;
    return this.#own.length ? this.#own.at(-1)! + (step - this.#global.at(-1)!) : step;
  }
  /** A curve with these steps: what lay between them in other modes is then no gap. */
  placed(numbers: Numbers, tensor: number): Numbers {
    const arrays = new Map(numbers.arrays);
    for (const name of [`${tensor}.step`, `${tensor}.last`]) {
      arrays.set(name, Float64Array.from(asNumbers(arrays.get(name)), (step) => this.place(step)));
    }
    return { texts: numbers.texts, arrays };
  }
}

/** Differences of settings, as a table shows them: what all runs but one share is quiet, what is alone stands out. */
export function standsOut(values: readonly (string | null)[]): boolean[] {
  const counts = new Map<string | null, number>();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  const most = Math.max(...counts.values());
  const usual = [...counts].filter(([, count]) => count === most);
  return values.map((value) => (usual.length === 1 && most > 1 ? value !== usual[0]![0] : true));
}
