/** What a job has printed: lines that come in pages, and the steps at which they came. */
import type { LogAnswer, LogLine } from "../api/types";

/** Lines that the page holds at most; the oldest go. */
export const MAX_LINES = 50_000;

/** Adds what came since: a line that was not whole comes again. */
export function later(lines: LogLine[], answer: LogAnswer): LogLine[] {
  const kept = lines.filter((line) => line.whole !== false || line.offset < answer.from[line.stream === "out" ? 0 : 1]);
  const all = kept.concat(answer.lines);
  return all.length > MAX_LINES ? all.slice(all.length - MAX_LINES) : all;
}

/** Where a page ends that was read up to `next`, as the address of a request has it. */
export const place = (at: [number, number]) => at.join(",");

/** Place in `walls` (ascending) of the last step that had begun at the time; -1 if none had. */
export function stepAt(walls: ArrayLike<number>, unixNs: number): number {
  let low = 0;
  let high = walls.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (walls[middle]! <= unixNs) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** Place of the first line that came at or after a time; the last line if all came before. */
export function lineAt(lines: LogLine[], unixNs: number): number {
  const found = lines.findIndex((line) => line.unix_ns === 0 || line.unix_ns >= unixNs);
  return found < 0 ? lines.length - 1 : found;
}

export function matching(lines: LogLine[], wanted: string, stream: string): LogLine[] {
  const text = wanted.toLowerCase();
  return lines.filter((line) => (!stream || line.stream === stream) && (!text || line.text.toLowerCase().includes(text)));
}
