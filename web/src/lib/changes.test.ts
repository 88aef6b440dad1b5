import { expect, test } from "vitest";
import { changeOf } from "./changes";

const row = (...bytes: number[]) => Uint8Array.from(bytes);

test("a row says how much it has changed, and where it goes", () => {
  expect(changeOf(row(126, 126, 126, 126), "ratio")).toEqual({ worst: 0, changed: 0, trend: "steady", recorded: true });
  const rising = changeOf(row(126, 126, 126, 126, 150, 200), "ratio");
  expect(rising.trend).toBe("rising");
  expect(rising.changed).toBeGreaterThan(1);
  expect(changeOf(row(200, 200, 200, 126), "ratio").trend).toBe("falling");
  expect(changeOf(row(126, 254, 255), "ratio")).toMatchObject({ worst: 1000, trend: "", recorded: true });
  expect(changeOf(row(0, 0, 0, 0, 252), "share")).toMatchObject({ changed: 1, trend: "rising" });
});

test("what was not recorded is not steady", () => {
  expect(changeOf(row(255, 255, 253), "ratio")).toMatchObject({ trend: "", recorded: false, changed: 0 });
  expect(changeOf(undefined, "ratio").recorded).toBe(false);
});
