import { openFile } from "../api/client";

/** Of a report: what this file holds of its run. A page of the server has no run of its own. */
class File {
  /** The run in it; "" on a server. */
  run = $state("");
  leftOut = $state.raw<string[]>([]);
  steps = $state.raw<number[]>([]);

  /** Returns whether this is a report. */
  async load(): Promise<boolean> {
    const archive = await openFile();
    if (!archive) return false;
    this.leftOut = archive.leftOut;
    this.steps = archive.steps;
    this.run = archive.run;
    return true;
  }
  /** Steps next to one whose numbers are in the file: before it, at it, behind it. */
  near(step: number): number[] {
    return [this.steps.findLast((one) => one < step), this.steps.find((one) => one >= step)].filter((one) => one !== undefined);
  }
}

export const file = new File();
