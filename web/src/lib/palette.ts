/** Something that the palette does. `text` is what is shown and searched. */
export interface Command {
  text: string;
  hint: string;
  run: () => void;
}

/** How well typed letters fit a text: all of them in order; runs, beginnings of words and short texts first. 0: not at all. */
export function fit(typed: string, text: string): number {
  const [want, have] = [typed.toLowerCase().trim(), text.toLowerCase()];
  if (want === "") return 1;
  const whole = have.indexOf(want);
  if (whole >= 0) return 1000 + (whole === 0 || /[\s./_-]/.test(have[whole - 1]!) ? 500 : 0) - Math.min(400, have.length);
  let [score, at, before] = [0, 0, -2];
  for (const letter of want) {
    if (letter === " ") continue;
    at = have.indexOf(letter, at);
    if (at < 0) return 0;
    score += at === before + 1 ? 6 : /[\s./_-]/.test(have[at - 1] ?? " ") ? 4 : 1;
    before = at++;
  }
  return Math.max(1, score * 10 - Math.min(9, have.length / 20));
}

/** The best of the commands, the best first. */
export function best<T extends { text: string }>(typed: string, all: readonly T[], most: number): T[] {
  return all
    .map((one, i) => ({ one, i, score: fit(typed, one.text) }))
    .filter((entry) => entry.score > 0)
    .sort((a, b) => b.score - a.score || a.i - b.i)
    .slice(0, most)
    .map((entry) => entry.one);
}
