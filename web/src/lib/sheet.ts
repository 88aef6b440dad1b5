/** A table of numbers and texts, as people take it elsewhere. */
export interface Sheet {
  columns: string[];
  rows: (number | string | null)[][];
}

/** A number as CSV and JSON of tables hold it: exact, and with names for what is not finite. */
const exact = (value: number) => (Number.isNaN(value) ? "NaN" : value === Infinity ? "Infinity" : value === -Infinity ? "-Infinity" : `${value}`);

/** One cell. Text that a spreadsheet would run as a formula begins with an apostrophe, as spreadsheets mark text. */
function cellOf(cell: number | string | null): string {
  if (cell === null) return "";
  if (typeof cell === "number") return exact(cell);
  const text = /^[\s]*[=+\-@|%]|^[\t\r\n]/.test(cell) ? `'${cell}` : cell;
  return /[",;\r\n\t']/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function csvOf(sheet: Sheet): string {
  return [sheet.columns, ...sheet.rows].map((row) => row.map(cellOf).join(",")).join("\r\n") + "\r\n";
}

/** A list of objects; what is not finite is named, as in the HTTP interface. */
export function jsonOf(sheet: Sheet): string {
  const value = (cell: number | string | null) => (typeof cell === "number" && !Number.isFinite(cell) ? exact(cell) : cell);
  return JSON.stringify(
    sheet.rows.map((row) => Object.fromEntries(row.map((cell, i) => [sheet.columns[i] ?? `${i}`, value(cell)]))),
    null,
    1,
  );
}
