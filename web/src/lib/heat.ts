/** The meaning of a heat map's bytes: docs/spec/http-api.md, section 5. */

export const NOT_READ = 253;
export const BAD = 254;
export const NOT_RECORDED = 255;
export const MIDDLE = 126;
export const TILE = 256;

export type Scale = "ratio" | "share" | "offset";

/** How much a byte matters: the worst of several cells is the one that matters most. */
export function weight(byte: number, scale: Scale): number {
  if (byte === BAD) return 1000;
  if (byte === NOT_RECORDED) return -2;
  if (byte === NOT_READ) return -1;
  return scale === "share" ? byte : Math.abs(byte - MIDDLE);
}

export const worse = (a: number, b: number, scale: Scale): number => (weight(b, scale) > weight(a, scale) ? b : a);

/** Takes the worse of both, cell by cell, into `into`. */
export function mergeWorst(into: Uint8Array, other: Uint8Array, scale: Scale): void {
  for (let i = 0; i < into.length; ++i) into[i] = worse(into[i]!, other[i]!, scale);
}

/** The value against the median of its row that a byte stands for, the share, or the part of the row's largest distance from its median. */
export function valueOf(byte: number, scale: Scale): number {
  if (scale === "share") return byte / 252;
  if (scale === "offset") return (byte - MIDDLE) / MIDDLE;
  const d = (byte - MIDDLE) / MIDDLE;
  return 10 ** (Math.sign(d) * d * d * 4);
}

export function byteText(byte: number, scale: Scale): string {
  if (byte === BAD) return "not finite";
  if (byte === NOT_RECORDED) return "not recorded";
  if (byte === NOT_READ) return "not read yet";
  if (scale === "share") return `${((byte / 252) * 100).toFixed(byte > 25 ? 0 : 1)} %`;
  if (scale === "offset") {
    const part = Math.round(valueOf(byte, scale) * 100);
    return part === 0 ? "as the row's median" : `${Math.abs(part)} % of the row's largest distance ${part > 0 ? "above" : "below"} its median`;
  }
  if (byte === 0) return "at most 1/10,000 of the row's median";
  const ratio = valueOf(byte, scale);
  if (byte >= 125 && byte <= 127) return "as the row's median";
  const text = (value: number) => (value >= 100 ? (Math.round(value / 10) * 10).toLocaleString("en") : value.toPrecision(2));
  return ratio >= 1 ? `${text(ratio)} times the row's median` : `1/${text(1 / ratio)} of the row's median`;
}

type Rgb = [number, number, number];
// Safe for colour-blind readers: blue below, neutral, orange above (after Crameri's vik); shares after cividis.
const RATIO_LIGHT: Rgb[] = [[0, 46, 107], [64, 126, 173], [196, 216, 228], [244, 244, 242], [233, 201, 170], [199, 118, 58], [116, 40, 4]];
const RATIO_DARK: Rgb[] = [[150, 205, 255], [62, 128, 190], [34, 62, 92], [33, 36, 40], [92, 56, 30], [200, 112, 48], [255, 196, 140]];
const SHARE: Rgb[] = [[0, 34, 78], [66, 78, 108], [125, 124, 120], [187, 175, 108], [254, 232, 56]];

function along(stops: Rgb[], t: number): Rgb {
  const at = Math.min(Math.max(t, 0), 1) * (stops.length - 1);
  const i = Math.min(Math.floor(at), stops.length - 2);
  const [a, b] = [stops[i]!, stops[i + 1]!];
  return [0, 1, 2].map((k) => Math.round(a[k]! + (b[k]! - a[k]!) * (at - i))) as Rgb;
}

/** Colours of the 256 bytes as the 32-bit words of an ImageData (little-endian ABGR). 255 and 253 are transparent. */
export function palette(scale: Scale, dark: boolean): Uint32Array {
  const words = new Uint32Array(256);
  for (let byte = 0; byte <= 252; ++byte) {
    const [r, g, b] = along(scale === "share" ? SHARE : dark ? RATIO_DARK : RATIO_LIGHT, byte / 252);
    words[byte] = ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
  }
  words[BAD] = dark ? 0xffe07bff : 0xff8e00b4;
  return words;
}

/** The last column up to this one that is read, within 64 columns; else this one. */
export function newestRead(row: Uint8Array, column: number): number {
  for (let at = Math.min(column, row.length - 1); at >= Math.max(0, column - 64); --at) if (row[at] !== NOT_READ) return at;
  return column;
}
