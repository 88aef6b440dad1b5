/**
 * Characters that steer or deceive whoever looks: controls, marks that change the direction of text or have no width, line separators, invisible tags.
 * The same as src/base/text_escape.h knows.
 */
const STEERS = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\u{e0000}-\u{e007f}]/u;
const EACH = new RegExp(STEERS.source, "gu");
const utf8 = new TextEncoder();

/** Text as it may be shown: such characters become \xNN, byte by byte, as Luff writes them everywhere. */
export function harmless(text: string): string {
  if (!STEERS.test(text)) return text;
  return text.replace(EACH, (character) => Array.from(utf8.encode(character), (byte) => `\\x${byte.toString(16).padStart(2, "0")}`).join(""));
}

// In JSON, controls are escaped: \u001b.
const MAY_STEER = new RegExp(`${STEERS.source}|\\\\[bfnrtu]`, "u");

/** Parses JSON of a run; no text in it, names of members included, has a character that steers. */
export function parseHarmless(json: string): unknown {
  if (!MAY_STEER.test(json)) return JSON.parse(json);
  return JSON.parse(json, (_, value: unknown) => {
    if (typeof value === "string") return harmless(value);
    if (value === null || typeof value !== "object" || Array.isArray(value)) return value;
    const names = Object.keys(value);
    if (!names.some((name) => STEERS.test(name))) return value;
    return Object.fromEntries(Object.entries(value).map(([name, member]) => [harmless(name), member]));
  });
}
