import { asNumbers, type Numbers } from "../api/numbers";

export interface CurveRange {
  from?: number;
  to?: number;
  points?: number;
}

const SEVERAL = 2;

/**
 * Cuts a curve of docs/spec/http-api.md, section 4, to some steps, in the smallest buckets of 2^k steps of which `points` are enough. Buckets of a file
 * cannot become smaller than they are; the text `finest` then says so. What a brief curve lacks is made from what it has.
 */
export function zoomed(numbers: Numbers, tensor: number, { from = 0, to = Infinity, points = 1024 }: CurveRange): Numbers {
  const get = (part: string) => asNumbers(numbers.arrays.get(`${tensor}.${part}`));
  const step = get("step");
  const mean = get("mean");
  const flags = get("flags");
  const whole = numbers.arrays.has(`${tensor}.last`);
  const [last, lo, hi] = whole ? [get("last"), get("lo"), get("hi")] : [step, mean, mean];
  const here = step.map((_, i) => i).filter((i) => last[i]! >= from && step[i]! <= to);
  const given = Number(numbers.texts[`${tensor}.steps`] ?? 1);
  let size = given;
  const [first, end] = [step[here[0] ?? 0] ?? 0, last[here.at(-1) ?? 0] ?? 0];
  while (Math.floor(end / size) - Math.floor(first / size) >= points) size *= 2;

  const out = { step: [] as number[], last: [] as number[], lo: [] as number[], hi: [] as number[], mean: [] as number[], flags: [] as number[] };
  let sum = 0;
  let count = 0;
  for (const i of here) {
    const n = out.step.length - 1;
    if (n < 0 || Math.floor(out.step[n]! / size) !== Math.floor(step[i]! / size)) {
      out.step.push(step[i]!);
      out.last.push(last[i]!);
      out.lo.push(lo[i]!);
      out.hi.push(hi[i]!);
      out.mean.push(mean[i]!);
      out.flags.push(flags[i]!);
      [sum, count] = Number.isFinite(mean[i]!) ? [mean[i]!, 1] : [0, 0];
      continue;
    }
    out.last[n] = last[i]!;
    out.flags[n] = out.flags[n]! | flags[i]! | SEVERAL;
    if (!Number.isFinite(mean[i]!)) continue;
    out.lo[n] = count ? Math.min(out.lo[n]!, lo[i]!) : lo[i]!;
    out.hi[n] = count ? Math.max(out.hi[n]!, hi[i]!) : hi[i]!;
    sum += mean[i]!;
    count += 1;
    out.mean[n] = sum / count;
  }
  const exact = out.flags.every((flag) => (flag & SEVERAL) === 0);
  const arrays: Numbers["arrays"] = new Map();
  for (const part of ["lo", "hi", "mean"] as const) arrays.set(`${tensor}.${part}`, Float64Array.from(out[part]));
  for (const part of ["step", "last"] as const) arrays.set(`${tensor}.${part}`, Float64Array.from(out[part]));
  arrays.set(`${tensor}.flags`, Uint8Array.from(out.flags));
  const texts = { ...numbers.texts, [`${tensor}.exact`]: exact ? "1" : "0", [`${tensor}.steps`]: `${size}`, [`${tensor}.finest`]: !exact && size === given ? "1" : "0" };
  return { texts, arrays };
}
