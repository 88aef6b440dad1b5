import { parseHarmless } from "../lib/harmless";
import { liveUrl } from "./client";
import type { RunEvent } from "./types";

/** The first event comes with the headers: where it does not, something on the way keeps it back. */
const HELLO_MS = 8000;
/** The headers wait for the server, which may have other answers to make first, each for ten seconds. */
const OPEN_MS = 25000;

/** One event stream; the browser connects it again by itself. */
export class Live {
  /** Of the watched run, as it was told last. */
  run = $state<RunEvent | undefined>();
  /** Increases when the list of runs has changed. */
  list = $state(0);
  connected = $state(false);
  /** Nothing comes through, although the connection stands. */
  heldBack = $state(false);
  /** Increases when the server has refused the stream: the browser does not ask again by itself. */
  refused = $state(0);
  #source: EventSource | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;

  watch(ids: string[]): void {
    this.close();
    this.run = undefined;
    const source = new EventSource(liveUrl(ids));
    this.#source = source;
    this.#expect(OPEN_MS);
    source.onopen = () => {
      this.connected = true;
      this.#expect(HELLO_MS);
    };
    source.onerror = () => {
      this.connected = false;
      this.#heard(); // it is known that nothing comes
      if (source.readyState === EventSource.CLOSED) this.refused += 1;
    };
    source.addEventListener("hello", () => this.#heard());
    source.addEventListener("run", (event) => (this.run = parseHarmless((event as MessageEvent<string>).data) as RunEvent));
    source.addEventListener("runs", () => (this.list += 1));
  }

  close(): void {
    this.#source?.close();
    this.#source = undefined;
    this.connected = false;
    this.#heard();
  }

  #expect(within: number): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => (this.heldBack = true), within);
  }
  #heard(): void {
    clearTimeout(this.#timer);
    this.heldBack = false;
  }
}

export const live = new Live();
