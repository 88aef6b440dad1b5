/** Gives bytes to the browser as a file. `name` is the page's own, never from a run. */
export function save(name: string, type: string, content: BlobPart): void {
  const url = URL.createObjectURL(new Blob([content], { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** Saves what a chart shows as a picture, on the page's own background. */
export function savePicture(name: string, from: HTMLCanvasElement, title: string): void {
  const top = 24 * Math.max(1, devicePixelRatio);
  const picture = document.createElement("canvas");
  picture.width = from.width;
  picture.height = from.height + top;
  const context = picture.getContext("2d")!;
  const style = getComputedStyle(document.documentElement);
  context.fillStyle = style.getPropertyValue("--card");
  context.fillRect(0, 0, picture.width, picture.height);
  context.drawImage(from, 0, top);
  context.fillStyle = style.getPropertyValue("--ink");
  context.font = `${Math.round(top / 2)}px system-ui, sans-serif`;
  context.fillText(title, 8, top * 0.7, picture.width - 16);
  picture.toBlob((blob) => blob && save(name, "image/png", blob));
}
