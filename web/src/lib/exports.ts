import { asNumbers, type Numbers } from "../api/numbers";
import type { Sheet } from "./sheet";

/** Curves side by side: a row for each step that any of them has; empty where one has nothing. A value with an element that is not finite is NaN if it has no other. */
export function sideBySide(curves: { tensor: number; numbers: Numbers }[]): Sheet {
  const rows = new Map<number, (number | null)[]>();
  const columns = ["step"];
  curves.forEach(({ tensor, numbers }, c) => {
    columns.push(`${numbers.texts[`${tensor}.name`] ?? tensor} (${numbers.texts[`${tensor}.stat`] ?? ""})`);
    const step = asNumbers(numbers.arrays.get(`${tensor}.step`));
    const mean = asNumbers(numbers.arrays.get(`${tensor}.mean`));
    step.forEach((at, i) => {
      let row = rows.get(at);
      if (!row) rows.set(at, (row = new Array<number | null>(curves.length).fill(null)));
      row[c] = mean[i]!;
    });
  });
  return { columns, rows: [...rows].sort((a, b) => a[0] - b[0]).map(([step, values]) => [step, ...values]) };
}
