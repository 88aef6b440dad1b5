import { parseHarmless } from "../lib/harmless";
import { zoomed, type CurveRange } from "../lib/zoom";
import { readNumbers, type Numbers } from "./numbers";
import { Problem } from "./problem";

/** What the index of a file says: docs/spec/report.md. */
interface Index {
  version: number;
  run: string;
  left_out: string[];
  steps: number[];
  /** Absent in files of older versions. */
  samples?: SampledSteps;
  routes: Record<string, [pack: number, begin: number, size: number]>;
}

/** Steps whose samples the file holds, and how many the run has. */
export interface SampledSteps {
  steps: number[];
  modes: string[];
  all: number;
}

const MORE = "luff serve shows all of the run, where the run is; luff report --max-bytes puts more into the file.";

async function unpacked(name: string): Promise<Uint8Array> {
  const block = document.getElementById(`luff-${name}`);
  if (!block) throw new Problem(0, `The file is not whole: it lacks the block ${name}.`, "Copy it again, or make it again with luff report.");
  try {
    const text = atob(block.textContent);
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; ++i) bytes[i] = text.charCodeAt(i);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  } catch {
    throw new Problem(0, `The block ${name} of the file is damaged.`, "Copy it again, or make it again with luff report.");
  }
}

/** A run inside the page itself. Answers the routes of one run, as far as the file holds them. */
export class Archive {
  #packs = new Map<number, Promise<Uint8Array>>();

  private constructor(private readonly index: Index) {}

  static isThere(): boolean {
    return document.getElementById("luff-index") !== null;
  }
  static async open(): Promise<Archive> {
    return new Archive(parseHarmless(new TextDecoder().decode(await unpacked("index"))) as Index);
  }
  get run(): string {
    return this.index.run;
  }
  /** Steps whose numbers the file holds, ascending. */
  get steps(): number[] {
    return this.index.steps;
  }
  /** What of the run is not in the file: parts of sentences. */
  get leftOut(): string[] {
    return this.index.left_out;
  }

  /** The samples of the last step at or before `step`, or else of the first; undefined if the run has none of that mode. */
  async samples(step: number | undefined, mode: string): Promise<{ steps: number[]; bytes: ArrayBuffer } | undefined> {
    const { steps, modes, all } = this.index.samples ?? { steps: [], modes: [], all: 0 };
    const of = steps.filter((_, i) => mode === "" || modes[i] === mode);
    if (all > 0 && steps.length === 0) throw new Problem(404, "The samples of this run are not in this file.", MORE);
    const found = of.findLast((one) => one <= (step ?? Infinity)) ?? of[0];
    const bytes = found === undefined ? undefined : await this.#bytes(`samples?step=${found}`);
    return bytes && { steps: of, bytes };
  }
  /** The confusion matrix of all steps; undefined if there is none. */
  async confusion(loss: string, mode: string): Promise<ArrayBuffer | undefined> {
    for (const of of mode ? [mode] : ["TRAIN", "EVAL"]) {
      const bytes = await this.#bytes(`confusion?mode=${of}${loss ? `&loss=${loss}` : ""}`);
      if (bytes) return bytes;
    }
    return undefined;
  }

  /** The answer of a route below runs/RUN/; undefined if it is not in the file. */
  async #bytes(route: string): Promise<ArrayBuffer | undefined> {
    const place = Object.hasOwn(this.index.routes, route) ? this.index.routes[route]! : undefined;
    if (!place) return undefined;
    const [pack, begin, size] = place;
    let whole = this.#packs.get(pack);
    if (!whole) {
      whole = unpacked(`pack-${pack}`);
      this.#packs.set(pack, whole);
    }
    return (await whole).slice(begin, begin + size).buffer as ArrayBuffer;
  }

  /** `path`: as the server knows it, below /api/v1/. */
  async answer(path: string): Promise<Response> {
    const route = path.replace(/^runs\/[0-9a-f]{32}\/?/, "");
    const bytes = await this.#bytes(route);
    if (bytes) return new Response(bytes);
    const step = /^at\/(\d+)$/.exec(route)?.[1];
    if (step) throw new Problem(404, `The numbers of step ${Number(step).toLocaleString("en")} are not in this file.`, MORE);
    if (route.startsWith("histograms?")) throw new Problem(404, "This file holds no histograms of this tensor over steps: the newest steps have none, or they did not fit.", MORE);
    const heat = /^heat\?stat=(\w+)/.exec(route)?.[1];
    throw new Problem(404, heat ? `The heat map of ${heat} is not in this file.` : "This is not in the file.", MORE);
  }

  /** A curve, cut and thinned as the server would do it, from the finest that the file holds. */
  async columns(wanted: CurveRange & { tensor: number; stat?: string; mode?: string }): Promise<Numbers> {
    const route = `columns?tensor=${wanted.tensor}&stat=${wanted.stat || "auto"}`;
    const own = wanted.mode ? await this.#bytes(`${route}&mode=${wanted.mode}`) : undefined;
    const bytes = own ?? (await this.#bytes(route));
    const numbers = bytes && readNumbers(bytes);
    if (!numbers || (wanted.mode && numbers.texts[`${wanted.tensor}.mode`] !== wanted.mode)) throw new Problem(404, "This curve is not in the file.", MORE);
    return zoomed(numbers, wanted.tensor, wanted);
  }
}
