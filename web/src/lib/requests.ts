import type { Asked } from "../api/types";
import { plural } from "./format";

const TITLES: Record<string, string> = { stop: "stop", capture: "record more", lower_lr: "lower the learning rate" };

const isRecord = (value: unknown): value is Record<string, unknown> => typeof value === "object" && value !== null && !Array.isArray(value);
const texts = (value: unknown) => (Array.isArray(value) ? value : [value]).filter((one) => typeof one === "string").join(", ");

/** What was asked, in words: "record more: ^fc1 as raw, histogram every 2 steps, for 200 steps". */
export function askedText({ action, arguments: given }: Asked): string {
  const title = TITLES[action] ?? action;
  if (action === "lower_lr" && typeof given["factor"] === "number") return `${title} to ${given["factor"]} of it`;
  if (action !== "capture") return title;
  const collections = (Array.isArray(given["collections"]) ? given["collections"] : []).filter(isRecord).map((one) => {
    const name = [one["include"], one["tensors"], one["roles"], one["name"]].map(texts).find(Boolean) ?? "";
    const every = isRecord(one["save"]) ? one["save"]["save_interval"] : undefined;
    return `${name}${texts(one["forms"]) ? ` as ${texts(one["forms"])}` : ""}${typeof every === "number" && every > 1 ? `, every ${every} steps` : ""}`;
  });
  const steps = given["for_steps"];
  return `${title}${collections.length ? `: ${collections.join("; ")}` : ""}${typeof steps === "number" && steps > 0 ? `, for ${plural(steps, "step")}` : ""}`;
}

/** The way of a request so far, the present state last: asked → proposed → accepted → done, or refused and why. */
export function wayOf(asked: Asked): string[] {
  const way = ["asked"];
  const at = asked.train_step >= 0 ? `, for after ${plural(asked.train_step, "TRAIN step")}` : "";
  if (at || ["proposed", "committed"].includes(asked.state)) way.push(`proposed to all ranks${at}`);
  if (asked.state === "committed" || (asked.state === "done" && at)) way.push("accepted by all ranks");
  if (asked.state === "done") way.push("done");
  if (asked.state === "refused" || asked.state === "failed") way.push(asked.why ? `${asked.state}: ${asked.why}` : asked.state);
  return way;
}

/** What a request waits for; "" if it has ended. */
export function waitsFor(state: Asked["state"]): string {
  if (state === "asked") return "waits for whoever coordinates the job";
  if (state === "proposed") return "waits for the ranks";
  return state === "committed" ? "waits for that step" : "";
}
