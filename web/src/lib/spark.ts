import type { Numeric } from "../api/types";

/** A line as the `d` of an SVG path: a gap where something was not finite. The largest values are cut at ten times the
 * distance from least to middle, since one first value would flatten all else. */
export function sparkPath(values: readonly Numeric[], width: number, height: number): string {
  const finite = values.filter((value): value is number => typeof value === "number").sort((a, b) => a - b);
  if (finite.length === 0) return "";
  const low = finite[0]!;
  const middle = finite[Math.floor(finite.length / 2)]!;
  const high = Math.min(finite.at(-1)!, middle > low ? low + 10 * (middle - low) : finite.at(-1)!);
  const step = values.length > 1 ? width / (values.length - 1) : 0;
  let path = "";
  let on = false;
  values.forEach((value, i) => {
    if (typeof value !== "number") {
      on = false;
      return;
    }
    const y = high > low ? height - ((Math.min(value, high) - low) / (high - low)) * height : height / 2;
    path += `${on ? "L" : "M"}${(i * step).toFixed(1)} ${y.toFixed(1)}`;
    if (!on && (i + 1 >= values.length || typeof values[i + 1] !== "number")) path += "h1";
    on = true;
  });
  return path;
}
