import { expect, test } from "vitest";
import type { Finding } from "../api/types";
import { timelineOf } from "./timeline";

const finding = (id: string, leader: string, since: number, last: number) => ({ id, leader, healed: last >= 0, global_since: since, global_last: last + 100 }) as Finding;

test("what follows stands below what it follows from, the earliest first", () => {
  const rows = timelineOf([finding("a", "", 5, 9), finding("b", "", 1, 2), finding("c", "a", 8, -1), finding("d", "a", 6, 6)], (one) => one.global_since! + 100, 130);
  expect(rows.map((row) => [row.finding.id, row.from, row.to, row.leader])).toEqual([
    ["a", 105, 109, -1],
    ["d", 106, 106, 0],
    ["c", 108, 130, 0],
    ["b", 101, 102, -1],
  ]);
});
