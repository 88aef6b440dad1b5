import type { Tensor } from "../api/types";

/** A filter as somebody types it: a regular expression over names, or text if it is none. */
export interface Filter {
  isRegex: boolean;
  matches: (text: string) => boolean;
}

export function filterOf(typed: string): Filter {
  try {
    const pattern = new RegExp(typed, "i");
    return { isRegex: true, matches: (text) => pattern.test(text) };
  } catch {
    const lower = typed.toLowerCase();
    return { isRegex: false, matches: (text) => text.toLowerCase().includes(lower) };
  }
}

export function matching(tensors: readonly Tensor[], filter: Filter, role: string): Tensor[] {
  return tensors.filter((tensor) => (role === "" || tensor.role === role) && (filter.matches(tensor.name) || filter.matches(tensor.role)));
}
