import { parseHarmless } from "../lib/harmless";

/** Arrays of a safetensors file, as views into its bytes. */
export interface Numbers {
  texts: Record<string, string>;
  arrays: Map<string, NumberArray>;
}
export type NumberArray = Float64Array | Float32Array | BigInt64Array | Uint8Array;

interface Entry {
  dtype: string;
  shape: number[];
  data_offsets: [number, number];
}

export function readNumbers(buffer: ArrayBuffer): Numbers {
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const start = 8 + length;
  const header = parseHarmless(new TextDecoder().decode(new Uint8Array(buffer, 8, length))) as Record<string, Entry>;
  const arrays: Numbers["arrays"] = new Map();
  for (const [name, entry] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const [begin, end] = entry.data_offsets;
    if (entry.dtype === "F64") arrays.set(name, new Float64Array(buffer, start + begin, (end - begin) / 8));
    else if (entry.dtype === "F32") arrays.set(name, new Float32Array(buffer, start + begin, (end - begin) / 4));
    else if (entry.dtype === "I64") arrays.set(name, new BigInt64Array(buffer, start + begin, (end - begin) / 8));
    else if (entry.dtype === "U8") arrays.set(name, new Uint8Array(buffer, start + begin, end - begin));
  }
  return { texts: (header["__metadata__"] ?? {}) as unknown as Record<string, string>, arrays };
}

/** Integers of an array as numbers; steps are far below 2^53. */
export function asNumbers(array: NumberArray | undefined): number[] {
  return array ? Array.from(array as ArrayLike<number | bigint>, Number) : [];
}
