import type { ModelDocument, Tensor } from "../api/types";

export interface Parameter {
  name?: string;
  path?: string;
  shape?: number[];
  dtype?: string;
  requires_grad?: boolean;
}

/** What the document `model` says of a parameter; gradients have the shape of theirs. */
export function parameterOf(model: ModelDocument | null | undefined, name: string): Parameter | undefined {
  const own = name.replace(/^gradient\//, "");
  for (const one of listOf(model?.models)) {
    for (const parameter of listOf(one.parameters)) {
      if (parameter.name === own || (parameter.path !== undefined && parameter.path === own)) {
        return Array.isArray(parameter.shape) ? parameter : { ...parameter, shape: undefined };
      }
    }
  }
  return undefined;
}

/** A stranger's document may hold anything where a list is expected. */
const listOf = <T>(value: readonly T[] | undefined): readonly T[] => (Array.isArray(value) ? (value as readonly T[]).filter((one) => typeof one === "object" && one !== null) : []);

/** A module of the model: a box that holds others. */
export interface Module {
  path: string;
  label: string;
  type: string;
  depth: number;
  /** Numbers of parameters in it and below; 0 if the shapes are not known. */
  parameters: number;
  /** Tensors in it and below, by id. */
  tensors: number[];
  children: Module[];
}

/** The module hierarchy: from the document `model`, and from what the tensors say where that has nothing. Children come in the order in which the model names them. */
export function modulesOf(model: ModelDocument | null | undefined, tensors: readonly Tensor[]): Module {
  const root: Module = { path: "", label: "model", type: "", depth: 0, parameters: 0, tensors: [], children: [] };
  const known = new Map<string, Module>([["", root]]);
  const find = (path: string): Module => {
    const there = known.get(path);
    if (there) return there;
    const dot = path.lastIndexOf(".");
    const parent = find(dot < 0 ? "" : path.slice(0, dot));
    const made: Module = { path, label: path.slice(dot + 1), type: "", depth: parent.depth + 1, parameters: 0, tensors: [], children: [] };
    parent.children.push(made);
    known.set(path, made);
    return made;
  };
  const up = (path: string, use: (module: Module) => void) => {
    for (let at = path; ; at = at.includes(".") ? at.slice(0, at.lastIndexOf(".")) : "") {
      use(find(at));
      if (at === "") return;
    }
  };
  const text = (value: unknown) => (typeof value === "string" ? value : "");
  const several = listOf(model?.models).length > 1;
  for (const one of listOf(model?.models)) {
    // Tensors say "Net.layer" where the document says "layer" of the model Net, or the path alone.
    const prefix = several ? text(one.name) : "";
    const inside = (path: string) => [prefix, path].filter(Boolean).join(".");
    if (!several) [root.label, root.type] = [text(one.name) || "model", text(one.type)];
    else find(prefix).type = text(one.type);
    for (const module of listOf(one.modules)) if (text(module.path)) find(inside(text(module.path))).type = text(module.type);
    for (const parameter of listOf(one.parameters)) {
      const path = text(parameter.path) || text(parameter.name);
      const size = Array.isArray(parameter.shape) ? parameter.shape.reduce((all, n) => all * (Number(n) || 0), 1) : 0;
      up(inside(path.includes(".") ? path.slice(0, path.lastIndexOf(".")) : ""), (module) => (module.parameters += size));
    }
  }
  for (const tensor of tensors) {
    if (tensor.module === "" && ["loss", "scalar", "optimizer_setting", "sample"].includes(tensor.role)) continue;
    const path = tensor.module === root.label && !known.has(tensor.module) ? "" : known.has(tensor.module) || !root.label || !tensor.module.startsWith(`${root.label}.`) ? tensor.module : tensor.module.slice(root.label.length + 1);
    up(path, (module) => module.tensors.push(tensor.id));
    if (tensor.type && known.get(path)!.type === "") known.get(path)!.type = tensor.type;
  }
  // Blocks by number: some documents name them by their letters, 10 before 2.
  for (const module of known.values()) if (module.children.every((child) => /^\d+$/.test(child.label))) module.children.sort((a, b) => Number(a.label) - Number(b.label));
  return root;
}

/** Modules that are shown: the root, and what is in open ones. */
export function openModules(root: Module, open: ReadonlySet<string>): Module[] {
  const rows: Module[] = [];
  const walk = (module: Module) => {
    rows.push(module);
    if (module.path === "" || open.has(module.path)) module.children.forEach(walk);
  };
  walk(root);
  return rows;
}

/** Opens modules from the top as long as not more than `limit` boxes are shown. */
export function openAtFirst(root: Module, limit: number): Set<string> {
  const open = new Set<string>();
  let level = root.children;
  for (let shown = level.length; level.length; ) {
    const next = level.flatMap((module) => module.children);
    if (next.length === 0 || shown + next.length > limit) break;
    for (const module of level) if (module.children.length) open.add(module.path);
    shown += next.length;
    level = next;
  }
  return open;
}

export function sizeText(count: number): string {
  if (count < 1000) return `${count}`;
  if (count < 1e6) return `${(count / 1e3).toPrecision(3)} k`;
  if (count < 1e9) return `${(count / 1e6).toPrecision(3)} M`;
  return `${(count / 1e9).toPrecision(3)} G`;
}
