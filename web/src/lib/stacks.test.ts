import { expect, test } from "vitest";
import type { LineTime, StackThread } from "../api/profile";
import { countText, dearestLines, kernelText, placeText, shortPath, threadText, tracedText } from "./stacks";

const thread = (more: Partial<StackThread>): StackThread => ({ thread: 7, name: "", state: "S", call: "", place: "", on: "", trains: false, gil: false, frames: [], ...more });
const line = (phase: string, number: number, samples: number, share: number): LineTime => ({ phase, file: "/a/train.py", line: number, function: "f", inside: "", samples, share });

test("a thread is told by the training's own frame, and by what the kernel says", () => {
  const frames = [
    { function: "wait", file: "/usr/lib/threading.py", line: 300, own: false },
    { function: "train", file: "/jobs/train.py", line: 31, own: true },
  ];
  expect(threadText(thread({ name: "MainThread", call: "futex", frames, gil: true }))).toBe("thread 7 (MainThread), in train.py:31 train, waits in futex(), holds Python’s lock (GIL)");
  expect(threadText(thread({ process: 44, call: "read", on: "/data/x", frames: frames.slice(0, 1) }))).toBe("process 44, in threading.py:300 wait, waits in read() of /data/x");
  expect(threadText(thread({}))).toBe("thread 7");
  expect([thread({ state: "R" }), thread({ state: "D", on: "/data" }), thread({ state: "t" }), thread({ place: "do_wait" })].map(kernelText)).toEqual(["runs", "waits for a disk or a network file system: /data", "is stopped", "waits in the kernel (do_wait)"]);
  expect(placeText("train.py", -1)).toBe("train.py:?");
  const paths = ["/opt/env/lib/python3.11/site-packages/torch/nn/modules/module.py", "/usr/lib/python3.13/threading.py", "/jobs/train.py"];
  expect(paths.map(shortPath)).toEqual(["torch/nn/modules/module.py", "threading.py", "/jobs/train.py"]);
});

test("of each phase the lines that were met most, where it was looked at often enough", () => {
  const lines = [line("other", 1, 50, 0.5), line("other", 2, 30, 0.3), line("other", 3, 10, 0.1), line("other", 4, 7, 0.07), line("other", 5, 3, 0.03), line("data_wait", 6, 4, 1)];
  expect(dearestLines(lines).map((one) => one.line)).toEqual([1, 2, 3]);
  expect(dearestLines([line("other", 1, 96, 0.96), line("other", 2, 4, 0.04), line("data_wait", 3, 5, 1)]).map((one) => one.line)).toEqual([3, 1]);
  expect(dearestLines([])).toEqual([]);
});

test("steps and counts in words", () => {
  expect([0, 1, 3].map((steps) => tracedText({ first_step: 1007, steps }))).toEqual(["a part of TRAIN step 1,007", "TRAIN step 1,007", "TRAIN steps 1,007 to 1,009"]);
  expect([countText(2, 1), countText(1, 0), countText(0, 3)]).toEqual(["2 threads and 1 process", "1 thread", "3 processes"]);
});
