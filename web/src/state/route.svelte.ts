/** The address is the whole state: `#/` is the list, `#/run/ID?view=heat&step=40` a run. */

export interface RouteState {
  run: string;
  values: Record<string, string>;
}

export function parseRoute(hash: string): RouteState {
  const text = hash.replace(/^#/, "");
  const mark = text.indexOf("?");
  const path = mark < 0 ? text : text.slice(0, mark);
  const run = /^\/run\/([0-9a-f]{32})$/.exec(path)?.[1] ?? "";
  return { run, values: Object.fromEntries(new URLSearchParams(mark < 0 ? "" : text.slice(mark + 1))) };
}

export function routeText(state: RouteState): string {
  const values = new URLSearchParams(Object.entries(state.values).filter(([, value]) => value !== ""));
  return `#/${state.run ? `run/${state.run}` : ""}${values.size ? `?${values}` : ""}`;
}

/** Members of an address that this page understands. Others are kept, and named. */
const KNOWN = new Set(
  "view step from to where sort t stat log smooth x mode role name all include order scale against measure open runs sel group cols loss square find rank of".split(" "),
);

class Route {
  #state = $state<RouteState>({ run: "", values: {} });

  get run(): string {
    return this.#state.run;
  }
  get(name: string): string {
    return this.#state.values[name] ?? "";
  }
  /** Members that this page does not know: of a newer one, or mistyped. */
  get strange(): string[] {
    return Object.keys(this.#state.values).filter((name) => !KNOWN.has(name));
  }
  /** A number of the address; `otherwise` if there is none. */
  number(name: string, otherwise: number): number {
    const value = Number(this.get(name));
    return this.get(name) !== "" && Number.isFinite(value) ? value : otherwise;
  }
  read(): void {
    this.#state = parseRoute(location.hash);
  }
  /** Changes members; "" removes one. Going back skips changes of the cursor alone. */
  set(values: Record<string, string | number>, remember = false): void {
    const next = { ...this.#state.values };
    for (const [name, value] of Object.entries(values)) next[name] = `${value}`;
    this.go({ run: this.#state.run, values: next }, remember);
  }
  go(state: RouteState, remember = true): void {
    const text = routeText(state);
    if (text === location.hash) return;
    if (remember) history.pushState(null, "", text);
    else history.replaceState(null, "", text);
    this.#state = state;
  }
}

export const route = new Route();

/** Splits `#token=TOKEN/run/ID`: the token, and where the link leads. */
export function splitToken(hash: string): { token: string; rest: string } {
  const found = /^#token=([A-Za-z0-9_-]+)(\/.*)?$/.exec(hash);
  return found ? { token: found[1]!, rest: `#${found[2] ?? "/"}` } : { token: "", rest: hash };
}

/** Takes a token out of the address and returns it; "" if there is none. */
export function takeToken(): string {
  const { token, rest } = splitToken(location.hash);
  if (token) history.replaceState(null, "", rest);
  return token;
}
