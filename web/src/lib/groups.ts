import type { RunRow } from "../api/many";

/** What the table of runs shows, row by row. */
export type TableRow = { kind: "run"; run: RunRow } | { kind: "group"; value: string; runs: RunRow[]; open: boolean };

/** Rows as they are, or below a row for each value; groups keep the order in which their first run comes. A run with several tags
 * is in the group of each, since people look for it there. */
export function grouped(runs: readonly RunRow[], field: string, valueOf: (run: RunRow) => string[], shut: ReadonlySet<string>): TableRow[] {
  if (!field) return runs.map((run) => ({ kind: "run", run }));
  const groups = new Map<string, RunRow[]>();
  for (const run of runs) {
    const values = valueOf(run);
    for (const value of values.length ? values : [""]) {
      const group = groups.get(value);
      if (group) group.push(run);
      else groups.set(value, [run]);
    }
  }
  const rows: TableRow[] = [];
  for (const [value, members] of groups) {
    const open = !shut.has(value);
    rows.push({ kind: "group", value, runs: members, open });
    if (open) rows.push(...members.map((run) => ({ kind: "run", run }) as const));
  }
  return rows;
}

/** Smallest and largest of the finite numbers. */
export function rangeOf(values: readonly unknown[]): [number, number] | undefined {
  const finite = values.filter((value): value is number => typeof value === "number" && Number.isFinite(value));
  return finite.length ? [Math.min(...finite), Math.max(...finite)] : undefined;
}
