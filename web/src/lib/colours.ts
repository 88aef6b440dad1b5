/** Colours of runs: the same run has the same colour in the list, in charts and in tables. */

export const COLOURS = 8;
/** Dashes of lines, so that colour is never all that tells two runs apart. */
export const DASHES: number[][] = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 2], [1, 2], [12, 4, 2, 4, 2, 4], [6, 6]];

function preferred(id: string): number {
  let hash = 7;
  for (let i = 0; i < id.length; ++i) hash = (hash * 31 + id.charCodeAt(i)) >>> 0;
  return hash % COLOURS;
}

/** The number of the colour of each run: its own, or the next that is free. More than COLOURS runs share some. */
export function coloursOf(ids: readonly string[]): number[] {
  const taken = new Set<number>();
  return ids.map((id) => {
    let colour = preferred(id);
    for (let i = 0; taken.has(colour) && i < COLOURS; ++i) colour = (colour + 1) % COLOURS;
    taken.add(colour);
    return colour;
  });
}
