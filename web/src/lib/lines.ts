import type { NamedCurve, Numeric } from "../api/types";
import { number } from "./format";

export interface Line {
  name: string;
  /** Pieces without gaps; places from 0 to 1 on both axes. */
  parts: [number, number][][];
  /** Where a value is not finite. */
  bad: number[];
  told: string;
}
export interface Lines {
  first: number;
  last: number;
  low: number;
  high: number;
  log: boolean;
  lines: Line[];
  /** Values that lines are drawn at, and their places from 0 to 1. */
  limits: { value: number; at: number }[];
  sentence: string;
}

const value = (text: Numeric) => (typeof text === "number" ? text : NaN);

/** Several curves over one axis; undefined if none has two finite values. Values that span orders of magnitude get a logarithmic axis. */
export function linesOf(curves: readonly NamedCurve[], square = false, limits: readonly number[] = []): Lines | undefined {
  let [first, last, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
  let any = false;
  for (const curve of curves) {
    let finite = 0;
    for (const [x, y] of curve.points) {
      [first, last] = [Math.min(first, x), Math.max(last, x)];
      if (!Number.isFinite(value(y))) continue;
      ++finite;
      [low, high] = [Math.min(low, value(y)), Math.max(high, value(y))];
    }
    any ||= finite >= 2;
  }
  if (!any) return undefined;
  for (const limit of limits) [low, high] = [Math.min(low, limit), Math.max(high, limit)];
  if (square) [first, last, low, high] = [0, 1, 0, 1];
  const log = !square && low > 0 && high / low > 1e3;
  const scaled = (y: number) => (log ? Math.log10(y) : y);
  const across = (x: number) => (last > first ? (x - first) / (last - first) : 0.5);
  const up = (y: number) => (high > low ? (scaled(y) - scaled(low)) / (scaled(high) - scaled(low)) : 0.5);
  const lines = curves.map((curve) => {
    const line: Line = { name: curve.name, parts: [], bad: [], told: "" };
    let open = false;
    let end = NaN;
    for (const [x, text] of curve.points) {
      const y = value(text);
      if (!Number.isFinite(y)) {
        line.bad.push(across(x));
        open = false;
        continue;
      }
      if (!open) line.parts.push([]);
      open = true;
      line.parts.at(-1)!.push([across(x), up(y)]);
      end = y;
    }
    line.told = `${square ? "" : `last ${number(end)}`}${line.bad.length ? `; not finite at ${line.bad.length} places` : ""}`;
    return line;
  });
  return { first, last, low, high, log, lines, limits: limits.map((limit) => ({ value: limit, at: up(limit) })), sentence: lines.map((line) => `${line.name} ${line.told}`).join("; ") };
}
