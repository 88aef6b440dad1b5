import type { Tensor } from "../api/types";

/** A name as a regular expression that matches it alone. */
export const exactly = (name: string) => `^${name.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&")}$`;

const quoted = (text: string) => JSON.stringify(text);

/** What records a form of a tensor from the next run on: lines of a file for `luff run --config`. */
export function configLines(tensor: Pick<Tensor, "name" | "role">, form: "histogram" | "raw" | "summary", every = 10): string {
  const asked = ["output_gradient", "input_gradient", "attention", "sample"].includes(tensor.role) ? `roles = [${quoted(tensor.role)}]\n` : "";
  const forms = form === "summary" ? `["summary"]` : `["summary", "${form}"]`;
  return `[[capture.collections]]\nname = "looked_at"\n${asked}include = [${quoted(exactly(tensor.name))}]\nforms = ${forms}\nsave = { save_interval = ${every} }`;
}

/** The same for a job that runs now. `run`: where it is. */
export function captureCommand(run: string, tensor: Pick<Tensor, "name">, form: "histogram" | "raw" | "summary", every = 10): string {
  const shell = (text: string) => `'${text.replaceAll("'", `'\\''`)}'`;
  return `luff capture ${shell(run)} --include ${shell(exactly(tensor.name))} --forms ${form} --every ${every} --for-steps 200`;
}
