import { asNumbers, type Numbers } from "../api/numbers";

export const MEASURES = ["duration", "behind", "parameters", "gradients", "losses", "hashes"] as const;
export type Measure = (typeof MEASURES)[number];

/** What ranks did beside each other: docs/spec/http-api.md, section 4. Tables are rank x bucket of steps; NaN: nothing there. */
export interface Ranks {
  rank: number[];
  step: number[];
  last: number[];
  bucket: number;
  every: number;
  tables: Record<Measure, number[][]>;
  /** The tensor of the largest distance; -1: none. */
  tensors: Partial<Record<Measure, number[][]>>;
}

export function ranksOf(numbers: Numbers): Ranks {
  const get = (name: string) => asNumbers(numbers.arrays.get(name));
  const [rank, step] = [get("rank"), get("step")];
  const table = (name: string) => {
    const values = get(name);
    return rank.map((_, i) => values.slice(i * step.length, (i + 1) * step.length));
  };
  return {
    rank,
    step,
    last: get("last"),
    bucket: Number(numbers.texts["steps"] ?? 1),
    every: Number(numbers.texts["compared_every"] ?? 1),
    tables: {
      duration: table("duration_s"),
      behind: table("behind_s"),
      parameters: table("parameters.distance"),
      gradients: table("gradients.distance"),
      losses: table("losses.distance"),
      hashes: table("hashes"),
    },
    tensors: { parameters: table("parameters.tensor"), gradients: table("gradients.tensor"), losses: table("losses.tensor") },
  };
}

export const TITLES: Record<Measure, string> = {
  duration: "time of a step",
  behind: "seconds behind the first rank",
  parameters: "norms of weights that differ",
  gradients: "norms of gradients that differ",
  losses: "losses that differ",
  hashes: "tensors whose hash differs",
};

const median = (values: readonly number[]) => {
  const sorted = values.filter(Number.isFinite).toSorted((a, b) => a - b);
  return sorted.length ? sorted[sorted.length >> 1]! : NaN;
};

export interface Straggler {
  rank: number;
  /** Median over the steps of its time divided by the median of all ranks at the same step. */
  ratio: number;
  /** Share of the steps at which it was the slowest by a tenth or more. */
  share: number;
}

/** Ranks whose steps take at least a tenth longer than those of the others at half of the steps, or that were slowest at a fifth of them; the slowest first. */
export function stragglersOf(ranks: Ranks): Straggler[] {
  if (ranks.rank.length < 2) return [];
  const found = ranks.rank.map((rank, r) => {
    const ratios: number[] = [];
    let slowest = 0;
    ranks.step.forEach((_, s) => {
      const own = ranks.tables.duration[r]![s]!;
      const others = ranks.tables.duration.filter((_, i) => i !== r).map((row) => row[s]!);
      const usual = median(others);
      if (!Number.isFinite(own) || !(usual > 0)) return;
      ratios.push(own / usual);
      if (own > 1.1 * Math.max(...others.filter(Number.isFinite))) ++slowest;
    });
    return { rank, ratio: median(ratios), share: ratios.length ? slowest / ratios.length : 0 };
  });
  return found.filter((one) => one.ratio >= 1.1 || one.share >= 0.2).sort((a, b) => b.share - a.share || b.ratio - a.ratio);
}

/** The first bucket in which ranks hold parameters that differ by more than rounding, and which rank and tensor. */
export function firstApart(ranks: Ranks, measure: "parameters" | "hashes", beyond: number): { step: number; rank: number; tensor: number; by: number } | undefined {
  for (let s = 0; s < ranks.step.length; ++s) {
    let best: { step: number; rank: number; tensor: number; by: number } | undefined;
    ranks.rank.forEach((rank, r) => {
      const by = ranks.tables[measure][r]![s]!;
      if (by > beyond && by > (best?.by ?? 0)) best = { step: ranks.step[s]!, rank, tensor: ranks.tensors[measure]?.[r]?.[s] ?? -1, by };
    });
    if (best) return best;
  }
  return undefined;
}

/** Place of a value on a scale of 0 to 1: seconds from the fastest to the slowest, distances by orders of magnitude, from a millionth on. */
export function shade(value: number, measure: Measure, low: number, high: number): number {
  if (measure === "duration" || measure === "behind" || measure === "hashes") return high > low ? Math.min(1, Math.max(0, (value - low) / (high - low))) : 0;
  if (!Number.isFinite(value)) return 1;
  return value <= 1e-6 ? 0 : Math.min(1, (Math.log10(value) + 6) / 6);
}
