import * as api from "../api/client";
import type { HeatInfo } from "../api/types";
import { TILE, type Scale } from "./heat";

/** The tiles of one heat map, fetched when a row is asked for, and again when the map has changed. */
export class Tiles {
  info = $state.raw<HeatInfo>();
  problem = $state<unknown>();
  /** Increases when a tile has come. */
  version = $state(0);
  #tiles = new Map<string, { version: number; bytes?: Uint8Array }>();
  #asked = 0;
  #closed = false;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    readonly run: string,
    readonly stat: string,
  ) {}

  get scale(): Scale {
    return this.info?.scale ?? "ratio";
  }

  /** Asks for the newest state; at most once a second, and until the map is complete. */
  async load(): Promise<void> {
    if (this.#closed || this.#timer) return;
    const wait = Math.max(0, this.#asked + 1000 - Date.now());
    this.#timer = setTimeout(async () => {
      this.#asked = Date.now();
      try {
        const info = await api.heat(this.run, this.stat);
        if (this.#closed) return;
        this.info = info;
        this.problem = undefined;
      } catch (error) {
        this.problem = error;
      }
      this.#timer = undefined;
      if (this.info?.complete === false) void this.load();
    }, wait);
  }

  /** Bytes of a tensor over the columns of a level; undefined until they have come. */
  row(tensor: number, level: number): Uint8Array | undefined {
    void this.version;
    const info = this.info;
    const columns = info?.levels[level]?.columns;
    if (!info || columns === undefined || tensor >= info.rows) return undefined;
    const y = Math.floor(tensor / TILE);
    const wide = Math.ceil(columns / TILE);
    const bytes = new Uint8Array(wide * TILE).fill(253);
    let any = false;
    for (let x = 0; x < wide; ++x) {
      const tile = this.#tile(level, x, y, info.version);
      if (!tile) continue;
      any = true;
      const start = (tensor % TILE) * TILE;
      bytes.set(tile.subarray(start, start + TILE), x * TILE);
    }
    return any ? bytes.subarray(0, columns) : undefined;
  }

  #tile(level: number, x: number, y: number, version: number): Uint8Array | undefined {
    const key = `${level}/${x}/${y}`;
    const known = this.#tiles.get(key);
    if (known?.version === version) return known.bytes;
    const entry = { version, bytes: known?.bytes };
    this.#tiles.set(key, entry); // the old picture stays until the new one is there
    void api
      .tile(this.run, this.stat, level, x, y)
      .then((bytes) => {
        entry.bytes = bytes;
        if (!this.#closed) this.version += 1;
      })
      .catch((error: unknown) => (this.problem = error));
    return entry.bytes;
  }

  close(): void {
    this.#closed = true;
    clearTimeout(this.#timer);
  }
}
