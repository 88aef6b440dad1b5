import { expect, test } from "vitest";
import type { RunRow } from "../api/many";
import type { Numbers } from "../api/numbers";
import { COLOURS, coloursOf } from "./colours";
import { grouped, rangeOf } from "./groups";
import { ModeSteps, standsOut } from "./overlay";
import { ratioText } from "./ratio";
import { loadViews, storeViews, withView } from "./saved";
import { sparkPath } from "./spark";

const run = (id: string, tags: string[] = []): RunRow => ({ id, tags }) as RunRow;

test("a run keeps its colour, and no two of eight share one", () => {
  const ids = Array.from({ length: COLOURS }, (_, i) => `${i}${"a".repeat(31)}`);
  expect(new Set(coloursOf(ids)).size).toBe(COLOURS);
  expect(coloursOf([ids[3]!])[0]).toBe(coloursOf([ids[3]!, ids[0]!])[0]);
  expect(coloursOf([])).toEqual([]);
});

test("groups keep the order of their first run; a run with two tags is in both", () => {
  const runs = [run("1", ["b"]), run("2", ["a", "b"]), run("3")];
  const rows = grouped(runs, "tag", (one) => one.tags, new Set(["b"]));
  expect(rows.map((row) => (row.kind === "group" ? `${row.value}:${row.runs.length}${row.open ? "" : " shut"}` : row.run.id))).toEqual(["b:2 shut", "a:1", "2", ":1", "3"]);
  expect(grouped(runs, "", () => [], new Set()).length).toBe(3);
});

test("ten thousand runs are grouped at once", () => {
  const runs = Array.from({ length: 10_000 }, (_, i) => run(`${i}`, [`t${i % 50}`]));
  expect(grouped(runs, "tag", (one) => one.tags, new Set()).length).toBe(10_050);
});

test("a range leaves out what is not finite", () => {
  expect(rangeOf([3, "NaN", 1, undefined, Infinity])).toEqual([1, 3]);
  expect(rangeOf(["NaN"])).toBeUndefined();
});

test("a sparkline has a gap where something was not finite, and is not flattened by one value", () => {
  expect(sparkPath([2, 1, 0], 20, 10)).toBe("M0.0 0.0L10.0 5.0L20.0 10.0");
  expect(sparkPath([1, "NaN", 1], 20, 10)).toBe("M0.0 5.0h1M20.0 5.0h1");
  expect(sparkPath([], 20, 10)).toBe("");
  expect(sparkPath([1e6, 3, 2, 1], 30, 10)).toContain("L20.0 9.5");
});

test("views are kept by name, and what others wrote is not trusted", () => {
  let kept: string | null = null;
  const store = { getItem: () => kept, setItem: (_: string, value: string) => void (kept = value) };
  expect(loadViews(store)).toEqual([]);
  const views = withView(withView([], "b", { where: "lr > 1" }), "a", { group: "lr" });
  expect(views.map((view) => view.name)).toEqual(["a", "b"]);
  expect(storeViews(store, views)).toBe(true);
  expect(loadViews(store)).toEqual(views);
  expect(withView(views, "a")).toEqual([views[1]]);
  for (const bad of ["{", "3", "[null, {}]", '[{"name": 3, "values": {}}]']) {
    kept = bad;
    expect(loadViews(store)).toEqual([]);
  }
  kept = '[{"name": "x", "values": {"where": 3, "run": "evil", "sort": "loss"}}]';
  expect(loadViews(store)).toEqual([{ name: "x", values: { sort: "loss" } }]);
});

test("steps of a mode are found among those of all modes", () => {
  const table: Numbers = {
    texts: {},
    arrays: new Map<string, BigInt64Array | Uint8Array>([
      ["global_step", BigInt64Array.from([0n, 1n, 2n, 3n, 4n])],
      ["mode_step", BigInt64Array.from([0n, 1n, 0n, 2n, 3n])],
      ["mode", Uint8Array.from([1, 1, 2, 1, 1])],
    ]),
  };
  const steps = new ModeSteps(table, 1);
  expect([0, 1, 2, 3, 4, 9].map((step) => steps.place(step))).toEqual([0, 1, 2, 2, 3, 8]);
  const curve = { texts: {}, arrays: new Map([["7.step", BigInt64Array.from([1n, 3n])], ["7.last", BigInt64Array.from([1n, 4n])]]) };
  expect([...steps.placed(curve, 7).arrays.values()].map((array) => [...array])).toEqual([[1, 2], [1, 3]]);
});

test("a setting stands out where it is not what most runs have", () => {
  expect(standsOut(["1", "1", "2"])).toEqual([false, false, true]);
  expect(standsOut(["1", null])).toEqual([true, true]);
});

test("a cell of the map of two runs is a sentence", () => {
  expect(ratioText(126)).toBe("the same");
  expect(ratioText(252)).toContain("larger");
  expect(ratioText(126 + 63)).toBe("10.0 times");
  expect(ratioText(126 - 63)).toBe("1/10.0");
  expect(ratioText(255)).toContain("not recorded");
});
