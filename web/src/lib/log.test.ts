import { expect, test } from "vitest";
import type { LogAnswer, LogLine } from "../api/types";
import { later, lineAt, matching, MAX_LINES, stepAt } from "./log";

const line = (text: string, offset = 0, unix_ns = 0, more: Partial<LogLine> = {}): LogLine => ({ stream: "out", offset, unix_ns, text, ...more });
const answer = (from: [number, number], ...lines: LogLine[]): LogAnswer => ({ dropped: [0, 0], size: [0, 0], from, next: [0, 0], lines });

test("a line that was not whole is replaced", () => {
  const first = [line("one"), line("tw", 4, 0, { whole: false }), line("e", 0, 0, { stream: "err", whole: false })];
  const lines = later(first, answer([4, 0], line("two", 4), line("error", 0, 0, { stream: "err" })));
  expect(lines.map((one) => one.text)).toEqual(["one", "two", "error"]);
});

test("the page holds so many lines and no more", () => {
  const lines = later(Array.from({ length: MAX_LINES }, (_, i) => line(`${i}`)), answer([0, 0], line("new")));
  expect(lines.length).toBe(MAX_LINES);
  expect(lines.at(-1)!.text).toBe("new");
});

test("steps and lines find each other by wall time", () => {
  expect([5, 10, 15, 99].map((time) => stepAt([10, 20, 30], time))).toEqual([-1, 0, 0, 2]);
  const lines = [line("a", 0, 10), line("b", 2, 20), line("c", 4, 0)];
  expect([0, 15, 20, 21].map((time) => lineAt(lines, time))).toEqual([0, 1, 1, 2]);
  expect(lineAt([line("a", 0, 10)], 99)).toBe(0);
});

test("a filter looks at text and stream", () => {
  const lines = [line("Loss 1"), line("loss 2", 0, 0, { stream: "err" }), line("other")];
  expect(matching(lines, "loss", "").length).toBe(2);
  expect(matching(lines, "LOSS", "err").map((one) => one.text)).toEqual(["loss 2"]);
});
