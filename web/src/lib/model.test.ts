import { expect, test } from "vitest";
import type { Tensor } from "../api/types";
import { modulesOf, openAtFirst, openModules, parameterOf, sizeText } from "./model";

let id = 0;
const tensor = (module: string, name: string, role = "weight", type = ""): Tensor => ({ id: id++, name, role, module, type, collections: [] });
const model = {
  models: [
    {
      name: "Net",
      type: "Net",
      modules: [{ path: "", type: "Net" }, { path: "h.0", type: "Block" }, { path: "h.0.fc", type: "Linear" }],
      parameters: [{ path: "h.0.fc.weight", name: "h.0.fc.weight", shape: [3, 4], dtype: "float32" }],
    },
  ],
};

test("the hierarchy comes from the model and from what the tensors say", () => {
  id = 0;
  const root = modulesOf(model, [tensor("h.0.fc", "h.0.fc.weight"), tensor("h.1.fc", "h.1.fc.weight", "weight", "Linear"), tensor("", "loss", "loss")]);
  expect([root.label, root.type, root.parameters, root.tensors]).toEqual(["Net", "Net", 12, [0, 1]]);
  expect(root.children.map((one) => one.path)).toEqual(["h"]);
  expect(root.children[0]!.children.map((one) => [one.path, one.type, one.parameters, one.tensors])).toEqual([
    ["h.0", "Block", 12, [0]],
    ["h.1", "", 0, [1]],
  ]);
  expect([...openAtFirst(root, 3)]).toEqual(["h"]);
  expect([...openAtFirst(root, 2)]).toEqual([]);
  expect(openModules(root, new Set(["h", "h.1"])).map((one) => one.path)).toEqual(["", "h", "h.0", "h.1", "h.1.fc"]);
  expect(root.children[0]!.children[1]!.children[0]!.type).toBe("Linear");
});

test("what the model itself gives belongs to it, not to a module of its name", () => {
  id = 0;
  const root = modulesOf(model, [tensor("Net", "Net_input_0", "input"), tensor("Net.h.0.fc", "h.0.fc.weight")]);
  expect(root.children.map((one) => one.path)).toEqual(["h"]);
  expect(root.tensors).toEqual([0, 1]);
});

test("blocks stand by their numbers", () => {
  id = 0;
  const root = modulesOf(null, ["h.0", "h.10", "h.2"].map((path) => tensor(path, `${path}.w`)));
  expect(root.children[0]!.children.map((one) => one.label)).toEqual(["0", "2", "10"]);
});

test("a document of anything at all is read", () => {
  for (const strange of [null, undefined, {}, { models: 3 }, { models: [3, null, { modules: "x", parameters: [null, { path: 7, shape: "y" }] }] }]) {
    expect(modulesOf(strange as never, []).children).toEqual([]);
    expect(parameterOf(strange as never, "x")).toBeUndefined();
  }
  expect(parameterOf(model, "gradient/h.0.fc.weight")?.shape).toEqual([3, 4]);
  expect([sizeText(999), sizeText(1500), sizeText(124_400_000)]).toEqual(["999", "1.50 k", "124 M"]);
});
