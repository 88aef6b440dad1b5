import { BAD, MIDDLE, NOT_RECORDED, valueOf } from "./heat";

/** What a cell of the map of two runs says: docs/spec/http-api.md, section 8. */
export function ratioText(byte: number): string {
  if (byte === BAD) return "not finite";
  if (byte === NOT_RECORDED) return "not recorded in both";
  if (byte === MIDDLE) return "the same";
  const ratio = valueOf(byte, "ratio");
  if (byte === 0) return "10,000 times smaller, or 0";
  if (byte === 252) return "10,000 times larger";
  return ratio > 1 ? `${ratio.toPrecision(3)} times` : `1/${(1 / ratio).toPrecision(3)}`;
}
