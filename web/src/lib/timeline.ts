import type { Finding } from "../api/types";

/** A finding on the axis of global steps. */
export interface TimelineRow {
  finding: Finding;
  from: number;
  /** Where it was seen last; the newest step while it stands. */
  to: number;
  /** Row of what it follows from; -1 if it leads. */
  leader: number;
}

/** Leaders in their order, each followed by what follows from it, the earliest first. `onset`: the global step at which one began. */
export function timelineOf(findings: readonly Finding[], onset: (finding: Finding) => number, last: number): TimelineRow[] {
  const rows: TimelineRow[] = [];
  const place = (finding: Finding, leader: number): TimelineRow => {
    const from = onset(finding);
    const to = finding.healed ? (finding.global_last ?? from) : last;
    return { finding, from, to: Math.min(Math.max(from, to), Math.max(last, from)), leader };
  };
  for (const finding of findings) {
    if (finding.leader) continue;
    const at = rows.length;
    rows.push(place(finding, -1));
    const others = findings.filter((other) => other.leader === finding.id).map((other) => place(other, at));
    rows.push(...others.sort((a, b) => a.from - b.from));
  }
  return rows;
}
