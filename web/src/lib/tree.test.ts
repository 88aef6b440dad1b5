import { expect, test } from "vitest";
import type { Tensor } from "../api/types";
import { buildTree, flatten, openUpTo } from "./tree";

let id = 0;
const tensor = (module: string, name: string): Tensor => ({ id: id++, name, role: "weight", module, type: "", collections: [] });

test("modules hold their tensors, and a chain of single modules is one row", () => {
  id = 0;
  const tree = buildTree([tensor("model.net.0", "a"), tensor("model.net.1", "b"), tensor("model.net.1", "c"), tensor("", "loss")]);
  expect(tree.map((node) => node.label)).toEqual(["model.net", "loss"]);
  expect(tree[0]!.tensors).toEqual([0, 1, 2]);
  expect(tree[0]!.children.map((node) => [node.label, node.depth, node.tensors])).toEqual([
    ["0", 1, [0]],
    ["1", 1, [1, 2]],
  ]);
  const rows = flatten(tree, new Set(["model.net", "model.net.1"]));
  expect(rows.map((node) => node.label)).toEqual(["model.net", "0", "1", "b", "c", "loss"]);
});

test("opens as many levels as there is room for", () => {
  id = 0;
  const tree = buildTree(Array.from({ length: 5000 }, (_, i) => tensor(`model.layers.${i % 50}`, `w${i}`)));
  expect(flatten(tree, openUpTo(tree, 60)).length).toBe(51);
  expect(flatten(tree, openUpTo(tree, 1e6)).length).toBe(5051);
  // One root of 500 modules alone says nothing.
  const wide = buildTree(Array.from({ length: 5000 }, (_, i) => tensor(`h.${i % 500}`, `w${i}`)));
  expect(flatten(wide, openUpTo(wide, 60)).length).toBe(501);
});
