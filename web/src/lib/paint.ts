import { BAD, NOT_READ, NOT_RECORDED, palette, worse, type Scale } from "./heat";

export interface RowPainting {
  /** Bytes of each row over the columns of a level; undefined while they are on their way. */
  rows: (Uint8Array | undefined)[];
  /** Steps a column. */
  bucket: number;
  scale: Scale;
  dark: boolean;
  width: number;
  /** Pixels a row, the last of which stays empty. */
  height: number;
  from: number;
  to: number;
  /** Where a line is drawn; absent: nowhere. */
  cursor?: number;
}

/** Paints rows of a heat map: the worst of the cells that one pixel covers; hatched where nothing was recorded, a band of its own shape where something is not finite. */
export function paintRows(canvas: HTMLCanvasElement, { rows, bucket, scale, dark, width, height, from, to, cursor }: RowPainting): void {
  const context = canvas.getContext("2d")!;
  const colours = palette(scale, dark);
  const [w, h] = [Math.max(1, Math.floor(width)), Math.max(1, rows.length * height)];
  canvas.width = w;
  canvas.height = h;
  const image = context.createImageData(w, h);
  const pixels = new Uint32Array(image.data.buffer);
  const hatch = dark ? 0xff3a3530 : 0xffdcd6d0;
  const step = (to - from) / w;
  rows.forEach((row, r) => {
    const line = new Int16Array(w).fill(row ? NOT_RECORDED : NOT_READ);
    for (let x = 0; row && x < w; ++x) {
      const begin = Math.floor((from + x * step) / bucket);
      const end = Math.max(begin + 1, Math.ceil((from + (x + 1) * step) / bucket));
      let byte = row[begin] ?? NOT_RECORDED;
      for (let i = begin + 1; i < end && i < row.length; ++i) byte = worse(byte, row[i]!, scale);
      line[x] = byte;
    }
    for (let y = 0; y < height - 1; ++y) {
      const start = (r * height + y) * w;
      for (let x = 0; x < w; ++x) {
        const byte = line[x]!;
        if (byte === NOT_RECORDED || byte === NOT_READ) {
          const mark = byte === NOT_RECORDED ? (x + y) % 6 === 0 : (x + y) % 2 === 0;
          if (mark) pixels[start + x] = hatch;
        } else if (byte === BAD && y > 3 && y < height - 5) {
          pixels[start + x] = colours[BAD]!;
        } else if (byte !== BAD) {
          pixels[start + x] = colours[byte]!;
        } else {
          pixels[start + x] = (x + y) % 2 ? colours[BAD]! : hatch;
        }
      }
    }
  });
  context.putImageData(image, 0, 0);
  if (cursor === undefined) return;
  const at = ((cursor - from + 0.5) / (to - from)) * w;
  context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--ink");
  context.fillRect(Math.round(at), 0, 1, h);
}
