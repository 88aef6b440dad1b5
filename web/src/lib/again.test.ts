import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { askAgain } from "./again";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

test("news during a slow answer do not end it, and are asked for afterwards", async () => {
  const signals: AbortSignal[] = [];
  const { news, stop } = askAgain(1000, async (signal) => {
    signals.push(signal);
    await new Promise((done) => setTimeout(done, 5000));
  });
  news();
  await vi.advanceTimersByTimeAsync(100);
  for (let i = 0; i < 40; ++i) {
    news();
    await vi.advanceTimersByTimeAsync(100);
  }
  expect(signals).toHaveLength(1);
  expect(signals[0]!.aborted).toBe(false);
  await vi.advanceTimersByTimeAsync(1500);
  expect(signals).toHaveLength(1); // the pause after the answer
  await vi.advanceTimersByTimeAsync(500);
  expect(signals).toHaveLength(2);
  stop();
  news();
  expect(signals[1]!.aborted).toBe(true);
  await vi.advanceTimersByTimeAsync(20_000);
  expect(signals).toHaveLength(2);
});

test("what takes long is asked for seldom", async () => {
  let asked = 0;
  const { news, stop } = askAgain(
    1000,
    async () => {
      ++asked;
      await new Promise((done) => setTimeout(done, 500));
    },
    10,
  );
  for (let i = 0; i < 60; ++i) {
    news();
    await vi.advanceTimersByTimeAsync(100);
  }
  expect(asked).toBe(2); // at 0 and at 5.5 s
  stop();
});
