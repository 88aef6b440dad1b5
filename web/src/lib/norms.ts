import { asNumbers, type Numbers } from "../api/numbers";
import type { NamedCurve } from "../api/types";

const NOT_FINITE = 2; // docs/spec/overview.md, section 1

/** Curves of what `runs/RUN/norms` answers: one where both bounds agree everywhere, else the largest and the smallest. `place`: of a step on the axis. */
export function normsOf(numbers: Numbers, which: "gradient" | "update", one: string, place: (step: number) => number): NamedCurve[] {
  const step = asNumbers(numbers.arrays.get("step"));
  const [lo, hi, flags] = ["lo", "hi", "flags"].map((name) => asNumbers(numbers.arrays.get(`${which}.${name}`))) as [number[], number[], number[]];
  const line = (of: number[]): [number, number][] =>
    step.flatMap((at, i): [number, number][] => {
      const bad = which === "gradient" && (flags[i]! & NOT_FINITE) !== 0;
      return bad ? [[place(at), NaN]] : Number.isNaN(of[i]!) ? [] : [[place(at), of[i]!]];
    });
  if (!lo.some((value) => !Number.isNaN(value)) && !flags.some((flag) => which === "gradient" && flag & NOT_FINITE)) return [];
  const agree = lo.every((value, i) => Number.isNaN(value) || Math.abs(value - hi[i]!) <= 1e-6 * Math.abs(hi[i]!));
  return agree ? [{ name: one, points: line(hi) }] : [{ name: which === "gradient" ? "at most" : "largest", points: line(hi) }, { name: which === "gradient" ? "at least" : "smallest", points: line(lo) }];
}
