import { parseHarmless } from "../lib/harmless";
import { liveUrl } from "./client";
import type { RunEvent } from "./types";

/** One event stream; the browser connects it again by itself. */
export class Live {
  /** Of the watched run, as it was told last. */
  run = $state<RunEvent | undefined>();
  /** Increases when the list of runs has changed. */
  list = $state(0);
  connected = $state(false);
  #source: EventSource | undefined;

  watch(ids: string[]): void {
    this.close();
    this.run = undefined;
    const source = new EventSource(liveUrl(ids));
    this.#source = source;
    source.onopen = () => (this.connected = true);
    source.onerror = () => (this.connected = false);
    source.addEventListener("run", (event) => (this.run = parseHarmless((event as MessageEvent<string>).data) as RunEvent));
    source.addEventListener("runs", () => (this.list += 1));
  }

  close(): void {
    this.#source?.close();
    this.#source = undefined;
    this.connected = false;
  }
}

export const live = new Live();
