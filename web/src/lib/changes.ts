import { BAD, MIDDLE, NOT_READ, valueOf, weight, type Scale } from "./heat";

/** What a row of a heat map says as a whole. */
export interface Change {
  /** Weight of the worst cell, as `weight` says. */
  worst: number;
  /** How far the row has moved between its first and its last cell: |log10| of their ratio, or the difference of shares. */
  changed: number;
  /** The last cell against the one before the last quarter: "rising", "falling", "steady"; "" if too little is known. */
  trend: "rising" | "falling" | "steady" | "";
  /** Whether anything of it was recorded. */
  recorded: boolean;
}

const STEADY = 1.1; // up to this ratio

export function changeOf(row: Uint8Array | undefined, scale: Scale): Change {
  const change: Change = { worst: -2, changed: 0, trend: "", recorded: false };
  if (!row) return change;
  const values: number[] = [];
  for (const byte of row) {
    change.worst = Math.max(change.worst, weight(byte, scale));
    if (byte <= BAD && byte !== NOT_READ) change.recorded = true;
    if (byte <= 252) values.push(byte);
  }
  if (values.length < 2) return change;
  const [first, last] = [values[0]!, values.at(-1)!];
  const before = values[Math.floor((values.length - 1) * 0.75)]!;
  if (scale === "share") {
    change.changed = Math.abs(last - first) / 252;
    change.trend = Math.abs(last - before) < 5 ? "steady" : last > before ? "rising" : "falling";
    return change;
  }
  const far = (byte: number) => Math.log10(valueOf(byte, scale));
  change.changed = Math.abs(far(last) - far(first));
  const by = far(last) - far(before);
  // Next to the middle a byte is less than 1.1 wide; further away, wider.
  change.trend = Math.abs(by) < Math.log10(STEADY) || (Math.abs(last - before) < 2 && before !== MIDDLE) ? "steady" : by > 0 ? "rising" : "falling";
  return change;
}

export const trendMark = { rising: "↗", falling: "↘", steady: "→", "": "" } as const;
