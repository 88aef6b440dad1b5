import type { Tensor } from "../api/types";

/** A module, or a tensor at the end of a branch. */
export interface Node {
  key: string;
  label: string;
  depth: number;
  /** Tensors in it, by id. */
  tensors: number[];
  children: Node[];
  tensor?: Tensor;
}

const parts = (tensor: Tensor) => (tensor.module ? tensor.module.split(".") : []);

/** The module tree. Modules come in the order in which the run names them; a chain of single modules is one row. */
export function buildTree(tensors: readonly Tensor[]): Node[] {
  const root: Node = { key: "", label: "", depth: -1, tensors: [], children: [] };
  const known = new Map<string, Node>([["", root]]);
  for (const tensor of tensors) {
    let node = root;
    let key = "";
    for (const part of parts(tensor)) {
      key = key ? `${key}.${part}` : part;
      let next = known.get(key);
      if (!next) {
        next = { key, label: part, depth: node.depth + 1, tensors: [], children: [] };
        known.set(key, next);
        node.children.push(next);
      }
      next.tensors.push(tensor.id);
      node = next;
    }
    node.children.push({
      key: `#${tensor.id}`,
      label: tensor.name,
      depth: node.depth + 1,
      tensors: [tensor.id],
      children: [],
      tensor,
    });
  }
  return root.children.map((node) => joined(node));
}

function joined(node: Node): Node {
  let one = node;
  while (one.children.length === 1 && one.children[0]!.children.length > 0) {
    const child = one.children[0]!;
    one = { ...child, label: `${one.label}.${child.label}`, depth: one.depth };
  }
  return { ...one, children: one.children.map((child) => joined({ ...child, depth: one.depth + 1 })) };
}

/** Rows that are shown: closed modules hide what is in them. */
export function flatten(nodes: readonly Node[], open: ReadonlySet<string>): Node[] {
  const rows: Node[] = [];
  const walk = (node: Node) => {
    rows.push(node);
    if (open.has(node.key)) node.children.forEach(walk);
  };
  nodes.forEach(walk);
  return rows;
}

/** Opens modules from the top as long as the rows stay few enough; where next to nothing is shown, one more level however long it is. */
export function openUpTo(nodes: readonly Node[], limit: number): Set<string> {
  const open = new Set<string>();
  let level = [...nodes];
  let rows = level.length;
  while (level.length > 0) {
    const next = level.flatMap((node) => node.children);
    if (next.length === 0 || (rows + next.length > limit && rows >= limit / 8)) break;
    for (const node of level) if (node.children.length) open.add(node.key);
    rows += next.length;
    level = next;
  }
  return open;
}
