import uPlot from "uplot";
import { number } from "./format";

/** What charts with uPlot share. */

export const css = (name: string): string => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Lines, ticks and texts of an axis, in the colours of the theme. */
export const axisLook = () => ({
  stroke: css("--soft"),
  grid: { stroke: css("--line"), width: 1 },
  ticks: { stroke: css("--line"), width: 1 },
  font: "11px system-ui, sans-serif",
});

/** A value on the vertical axis, short enough for its 66 pixels. */
export function tickText(value: number | null): string {
  if (value === null) return "";
  return Math.abs(value) >= 1e5 ? value.toExponential(1).replace(".0e", "e").replace("e+", "e").replace("-", "−") : number(value);
}

/** On a logarithmic axis there is no place for zero and less. */
export const onAxis = (values: (number | null)[], log: boolean): (number | null)[] => (log ? values.map((value) => (value !== null && value > 0 ? value : null)) : values);

/** Draws over the plot, clipped to it; lengths are in device pixels. */
export function overlaid(u: uPlot, draw: (context: CanvasRenderingContext2D) => void): void {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.lineWidth = devicePixelRatio;
  draw(ctx);
  ctx.restore();
}
export function dashedLine(context: CanvasRenderingContext2D, colour: string, dashes: number[], from: [number, number], to: [number, number]): void {
  context.strokeStyle = colour;
  context.setLineDash(dashes.map((dash) => dash * devicePixelRatio));
  context.beginPath();
  context.moveTo(...from);
  context.lineTo(...to);
  context.stroke();
}
/** A vertical line at a place of the x axis, as high as the plot. */
export function upright(u: uPlot, colour: string, dashes: number[], at: number): void {
  const x = u.valToPos(at, "x", true);
  dashedLine(u.ctx, colour, dashes, [x, u.bbox.top], [x, u.bbox.top + u.bbox.height]);
}

/** A hook of uPlot: tells what was dragged over, as values of the x axis. */
export function onDrag(zoom: (from: number, to: number) => void): (u: uPlot) => void {
  return (u) => {
    if (u.select.width < 4) return;
    const [from, to] = [u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")];
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    zoom(from, to);
  };
}
