import { asNumbers, type Numbers } from "../api/numbers";

/** One curve as uPlot takes it: x, smallest, largest and mean value; null where a line would cross a gap. */
export interface Curve {
  name: string;
  mode: string;
  exact: boolean;
  /** Whether a zoom would show no more: the file holds nothing finer. */
  finest: boolean;
  x: number[];
  lo: (number | null)[];
  hi: (number | null)[];
  mean: (number | null)[];
  /** Steps with an element that is not finite. */
  bad: number[];
}

const finite = (value: number) => (Number.isFinite(value) ? value : null);

/** `place`: where a step lies when gaps are looked for; steps of other modes between two of a tensor are none. */
export function curveOf(numbers: Numbers, tensor: number, place: (step: number) => number = (step) => step): Curve {
  const get = (part: string) => asNumbers(numbers.arrays.get(`${tensor}.${part}`));
  const [step, last, lo, hi, mean, flags] = ["step", "last", "lo", "hi", "mean", "flags"].map(get) as number[][];
  const curve: Curve = {
    name: numbers.texts[`${tensor}.name`] ?? "",
    mode: numbers.texts[`${tensor}.mode`] ?? "",
    exact: numbers.texts[`${tensor}.exact`] === "1",
    finest: numbers.texts[`${tensor}.finest`] === "1",
    x: [],
    lo: [],
    hi: [],
    mean: [],
    bad: [],
  };
  const [from, to] = [step!.map(place), last!.map(place)];
  const usual = usualDistance(from);
  for (let i = 0; i < step!.length; ++i) {
    if (i > 0 && from[i]! - to[i - 1]! > 3 * usual) {
      curve.x.push((last![i - 1]! + step![i]!) / 2);
      curve.lo.push(null);
      curve.hi.push(null);
      curve.mean.push(null);
    }
    curve.x.push(step![i]!);
    curve.lo.push(finite(lo![i]!));
    curve.hi.push(finite(hi![i]!));
    curve.mean.push(finite(mean![i]!));
    if (flags![i]! & 1) curve.bad.push(step![i]!);
  }
  return curve;
}

/** The median distance of neighbours; a tensor that is recorded every tenth step has no gaps for that. */
export function usualDistance(steps: readonly number[]): number {
  const distances = steps.slice(1).map((step, i) => step - steps[i]!);
  distances.sort((a, b) => a - b);
  return distances[distances.length >> 1] ?? 1;
}

/** Exponential moving average, corrected at its beginning; gaps stay gaps. */
export function smoothed(values: readonly (number | null)[], factor: number): (number | null)[] {
  let sum = 0;
  let weight = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = sum * factor + value * (1 - factor);
    weight = weight * factor + (1 - factor);
    return sum / weight;
  });
}
