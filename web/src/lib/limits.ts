import type { Finding, Numeric } from "../api/types";

const NUMBER = String.raw`([-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)`;
const UNIT = String.raw`(?![\d.]|\s*(?:%|times|steps|updates|rounds|rows|of\b|intervals|samples|batches|layers|captures|calls|evaluations|s\b))`;
const COMPARED = new RegExp(String.raw`(?:\b(?:above|below|more than|less than|deeper than|beyond)|[<>]=?)\s*${NUMBER}${UNIT}|${NUMBER}\s+or\s+(?:more|less)\b`, "g");

/** Numbers that a limit compares with, as far as its text says them plainly. Counts of steps and shares in per cent are none. */
export function limitsOf(threshold: string): number[] {
  const found = [...threshold.matchAll(COMPARED)].map((match) => Number(match[1] ?? match[2]));
  return [...new Set(found.filter(Number.isFinite))].slice(0, 4);
}

const close = (a: number, b: Numeric) => typeof b === "number" && Math.abs(a - b) <= 1e-6 * Math.max(Math.abs(a), Math.abs(b));

/** What is drawn of a finding: its own series, or a statistic of its tensor; and the limits that belong to just that. */
export interface Evidence {
  kind: "series" | "statistic";
  /** Statistic of the tensor; "auto" if no number of the evidence is one. */
  stat: string;
  limits: number[];
}

export function evidenceOf(finding: Pick<Finding, "series" | "evidence" | "threshold">, statistics: readonly string[]): Evidence {
  const limits = limitsOf(finding.threshold);
  const values = Object.entries(finding.evidence).filter((entry): entry is [string, number] => typeof entry[1] === "number");
  if (finding.series.length > 1) {
    // A limit is drawn only where the series holds a number that was compared: it may show the loss, and the limit a ratio.
    const own = values.some(([, value]) => finding.series.some(([, one]) => close(value, one)));
    return { kind: "series", stat: "auto", limits: own ? limits : [] };
  }
  const stat = values.map(([name]) => name).find((name) => name !== "auto" && statistics.includes(name));
  return { kind: "statistic", stat: stat ?? "auto", limits: stat ? limits : [] };
}
