import { expect, test } from "vitest";
import type { Asked } from "../api/types";
import { askedText, waitsFor, wayOf } from "./requests";

const asked = (more: Partial<Asked>): Asked => ({ number: 1, action: "stop", arguments: {}, reason: "", author: "ann", asked_unix_ns: 0, state: "asked", train_step: -1, why: "", ...more });

test("a request is told in words, whatever its arguments hold", () => {
  expect(askedText(asked({}))).toBe("stop");
  const collections = [{ name: "requested", include: "^fc1", forms: ["raw", "histogram"], save: { save_interval: 2 } }];
  expect(askedText(asked({ action: "capture", arguments: { collections, for_steps: 200 } }))).toBe("record more: ^fc1 as raw, histogram, every 2 steps, for 200 steps");
  expect(askedText(asked({ action: "capture", arguments: { collections: [null, 7, { name: "all" }, { include: ["^a", "^b"] }], for_steps: "x" } }))).toBe("record more: all; ^a, ^b");
  expect(askedText(asked({ action: "capture", arguments: { collections: "x" } }))).toBe("record more");
  expect(askedText(asked({ action: "lower_lr", arguments: { factor: 0.5 } }))).toBe("lower the learning rate to 0.5 of it");
});

test("its way is shown up to where it is", () => {
  expect(wayOf(asked({}))).toEqual(["asked"]);
  expect(wayOf(asked({ state: "committed", train_step: 1200 }))).toEqual(["asked", "proposed to all ranks, for after 1,200 TRAIN steps", "accepted by all ranks"]);
  expect(wayOf(asked({ state: "done", train_step: 0 })).at(-1)).toBe("done");
  expect(wayOf(asked({ state: "refused", why: "does not compile" }))).toEqual(["asked", "refused: does not compile"]);
  expect(wayOf(asked({ state: "failed", train_step: 3, why: "rank 1 did not answer" }))).toHaveLength(3);
  expect(waitsFor("done")).toBe("");
});
