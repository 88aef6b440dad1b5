import type { LineTime, StackFrame, StackThread, Trace } from "../api/profile";
import { plural } from "./format";

/** "train.py:31". */
export const placeText = (file: string, line: number): string => `${file.slice(file.lastIndexOf("/") + 1)}:${line < 0 ? "?" : line}`;

/** Of a file of a library, its name within it. */
export const shortPath = (file: string): string => file.replace(/^.*\/(?:site|dist)-packages\//, "").replace(/^\/.*\/lib\/python3\.\d+\//, "");

/** The frame that tells most: the training's own innermost one. */
export const told = (frames: readonly StackFrame[]): StackFrame | undefined => frames.find((frame) => frame.own) ?? frames[0];

/** What the kernel says of a thread. */
export function kernelText(thread: StackThread): string {
  if (thread.state === "R") return "runs";
  if (thread.state === "D") return `waits for a disk or a network file system${thread.on ? `: ${thread.on}` : ""}`;
  if (thread.state === "T" || thread.state === "t") return "is stopped";
  if (thread.call) return `waits in ${thread.call}()${thread.on ? ` of ${thread.on}` : ""}`;
  return thread.place ? `waits in the kernel (${thread.place})` : "";
}

/** One line on a thread or a process. */
export function threadText(thread: StackThread): string {
  const who = thread.process ? `process ${thread.process}` : `thread ${thread.thread}`;
  const frame = told(thread.frames);
  return [`${who}${thread.name ? ` (${thread.name})` : ""}`, frame ? `in ${placeText(frame.file, frame.line)} ${frame.function}` : "", kernelText(thread), thread.gil ? "holds Python’s lock (GIL)" : ""].filter((part) => part).join(", ");
}

const LEAST_SAMPLES = 5;
const LEAST_SHARE = 0.05;
const MOST = 3;

/** What `luff profile` shows of them: of each phase that was looked at often enough, the lines that were met most. */
export function dearestLines(lines: readonly LineTime[]): LineTime[] {
  const phases = [...new Set(lines.map((line) => line.phase))].sort();
  return phases.flatMap((phase) => {
    const here = lines.filter((line) => line.phase === phase);
    const samples = here.reduce((all, line) => all + line.samples, 0);
    return samples < LEAST_SAMPLES ? [] : here.filter((line) => line.share >= LEAST_SHARE).slice(0, MOST);
  });
}

/** "TRAIN steps 7 to 9". */
export function tracedText(trace: Pick<Trace, "first_step" | "steps">): string {
  const first = trace.first_step.toLocaleString("en");
  if (trace.steps === 0) return `a part of TRAIN step ${first}`; // it ended early
  return trace.steps === 1 ? `TRAIN step ${first}` : `TRAIN steps ${first} to ${(trace.first_step + trace.steps - 1).toLocaleString("en")}`;
}

/** "2 threads and a process". */
export function countText(threads: number, processes: number): string {
  return [threads ? plural(threads, "thread") : "", processes ? plural(processes, "process", "processes") : ""].filter((part) => part).join(" and ");
}
