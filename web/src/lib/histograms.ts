import { asNumbers, type Numbers } from "../api/numbers";

/** Histograms of one tensor over steps, all in the same bins: docs/spec/http-api.md, section 4. */
export interface Histograms {
  /** "histogram", "raw" (made from values), or "none". */
  source: string;
  exact: boolean;
  /** Steps a bucket. */
  bucket: number;
  log: boolean;
  step: number[];
  last: number[];
  total: number[];
  /** One more than there are bins. */
  edges: number[];
  /** Elements by bucket of steps, then bin. */
  counts: number[][];
  levels: number[];
  quantiles: number[][];
}

const inRows = (values: number[], rows: number): number[][] => {
  const columns = rows ? values.length / rows : 0;
  return Array.from({ length: rows }, (_, i) => values.slice(i * columns, (i + 1) * columns));
};

export function histogramsOf(numbers: Numbers): Histograms {
  const get = (name: string) => asNumbers(numbers.arrays.get(name));
  const step = get("step");
  return {
    source: numbers.texts["source"] ?? "none",
    exact: numbers.texts["exact"] === "1",
    bucket: Number(numbers.texts["steps"] ?? 1),
    log: numbers.texts["scale"] === "log",
    step,
    last: get("last"),
    total: get("total"),
    edges: get("edges"),
    counts: inRows(get("counts"), step.length),
    levels: get("levels"),
    quantiles: inRows(get("quantiles"), step.length),
  };
}

/** The row whose steps hold one, or the nearest before it; -1 if all come later. */
export function rowAt(of: Histograms, step: number): number {
  return of.step.findLastIndex((first) => first <= step);
}

/** Kullback-Leibler divergence of two rows of counts in bits, each bin with half an element more, so that empty bins are no infinite surprise. */
export function divergence(p: readonly number[], q: readonly number[]): number {
  const all = (counts: readonly number[]) => counts.reduce((sum, count) => sum + count + 0.5, 0);
  const [sp, sq] = [all(p), all(q)];
  return p.reduce((sum, count, i) => {
    const [a, b] = [(count + 0.5) / sp, ((q[i] ?? 0) + 0.5) / sq];
    return sum + a * Math.log2(a / b);
  }, 0);
}

/** Density of each bin relative to the densest of its row, 0 to 1: bins may have different widths on a linear scale of values, and are equally wide on the picture. */
export function densities(counts: readonly number[]): number[] {
  const most = Math.max(...counts, 0);
  return counts.map((count) => (most > 0 ? count / most : 0));
}

/** Rows that a picture of ridges shows: at most `most`, first and last among them. */
export function ridgeRows(of: Histograms, most: number): number[] {
  const n = of.step.length;
  if (n <= most) return of.step.map((_, i) => i);
  return Array.from({ length: most }, (_, i) => Math.round((i * (n - 1)) / (most - 1)));
}

/** Where a value lies along the bins, 0 to 1. */
export function placeOf(value: number, edges: readonly number[]): number {
  const bins = edges.length - 1;
  if (bins < 1 || !Number.isFinite(value)) return NaN;
  if (value <= edges[0]!) return 0;
  if (value >= edges[bins]!) return 1;
  let [low, high] = [0, bins];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (edges[middle]! <= value) low = middle;
    else high = middle;
  }
  const wide = edges[low + 1]! - edges[low]!;
  return (low + (wide > 0 ? (value - edges[low]!) / wide : 0)) / bins;
}
