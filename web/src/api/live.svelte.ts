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
  /** Increases when the server has refused the stream: the browser does not ask again by itself. */
  refused = $state(0);
  #source: EventSource | undefined;

  watch(ids: string[]): void {
    this.close();
    this.run = undefined;
    const source = new EventSource(liveUrl(ids));
    this.#source = source;
    source.onopen = () => (this.connected = true);
    source.onerror = () => {
      this.connected = false;
      if (source.readyState === EventSource.CLOSED) this.refused += 1;
    };
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
