/** Views of the list of runs that have a name, kept in this browser. The address holds the one that is shown. */
export interface SavedView {
  name: string;
  values: Record<string, string>;
}
/** Members of the address that make a view. */
export const VIEW_VALUES = ["where", "sort", "group", "cols"] as const;
const KEY = "luff.views";
const MOST = 50;

interface Store {
  getItem(key: string): string | null;
  setItem(key: string, value: string): void;
}

/** What the store holds, as far as it is what it should be: others may have written it. */
export function loadViews(store: Store): SavedView[] {
  try {
    const found: unknown = JSON.parse(store.getItem(KEY) ?? "[]");
    if (!Array.isArray(found)) return [];
    return found.slice(0, MOST).flatMap((one: unknown) => {
      const { name, values } = (one ?? {}) as Partial<SavedView>;
      if (typeof name !== "string" || typeof values !== "object" || values === null) return [];
      const kept = VIEW_VALUES.flatMap((key) => (typeof values[key] === "string" ? [[key, values[key]] as const] : []));
      return [{ name, values: Object.fromEntries(kept) }];
    });
  } catch {
    return [];
  }
}

/** Adds a view, in place of one of the same name; without values the one of that name leaves. */
export function withView(views: readonly SavedView[], name: string, values?: Record<string, string>): SavedView[] {
  const others = views.filter((view) => view.name !== name);
  return (values ? [...others, { name, values }] : others).sort((a, b) => a.name.localeCompare(b.name)).slice(0, MOST);
}

/** Returns whether the browser has kept them. */
export function storeViews(store: Store, views: readonly SavedView[]): boolean {
  try {
    store.setItem(KEY, JSON.stringify(views));
    return true;
  } catch {
    return false; // private window, or full
  }
}
