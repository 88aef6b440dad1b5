import { parseHarmless } from "../lib/harmless";
import { Archive } from "./archive";
import { asNumbers, readNumbers, type Numbers } from "./numbers";
import { Problem } from "./problem";
import type { Asked, BoostingAnswer, Finding, HeatInfo, Histogram, LogAnswer, Mark, RunDocument, RunsAnswer, StepAnswer, Tensor } from "./types";

export { Problem };

/** The run that is inside the page, if this is a report. */
const archive = Archive.isThere() ? Archive.open() : undefined;
export const openFile = () => archive;

const base = new URL("./api/v1/", location.href.split("#")[0]);
let csrf = "";

async function send(path: string, init: RequestInit = {}): Promise<Response> {
  if (archive) return (await archive).answer(path);
  let response: Response;
  try {
    response = await fetch(new URL(path, base), init);
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new Problem(0, "The server does not answer.", "Is luff serve still running?");
  }
  if (response.ok) return response;
  const body = (await response.json().catch(() => ({}))) as { detail?: string; remedy?: string };
  throw new Problem(response.status, body.detail ?? `The server answered ${response.status}.`, body.remedy);
}

async function json<T>(path: string, signal?: AbortSignal): Promise<T> {
  return parseHarmless(await (await send(path, { signal })).text()) as T;
}

function query(values: Record<string, string | number | undefined>): string {
  const text = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) if (value !== undefined && value !== "") text.set(name, `${value}`);
  return text.size ? `?${text}` : "";
}

/** Begins a session with a token, or goes on with the one that the browser has. */
export async function beginSession(token: string): Promise<void> {
  const answer = token
    ? await send("session", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ token }),
      })
    : await send("session");
  csrf = ((await answer.json()) as { csrf: string }).csrf;
}

export async function endSession(): Promise<void> {
  await send("session", { method: "DELETE", headers: { "X-Luff-CSRF": csrf } });
}

export const runs = (where: string, sort: string, after: number, signal?: AbortSignal) =>
  json<RunsAnswer>(`runs${query({ where, sort, after: after || undefined })}`, signal);
export const run = (id: string) => json<RunDocument>(`runs/${id}`);
export const tensors = async (id: string) => (await json<{ tensors: Tensor[] }>(`runs/${id}/tensors`)).tensors;
export const findings = async (id: string) => (await json<{ findings: Finding[] }>(`runs/${id}/findings`)).findings;
export const boosting = (id: string) => json<BoostingAnswer>(`runs/${id}/boosting`);
export const heat = (id: string, stat: string) => json<HeatInfo>(`runs/${id}/heat${query({ stat })}`);
export const at = (id: string, step: number, signal?: AbortSignal) => json<StepAnswer>(`runs/${id}/at/${step}`, signal);
export const histogram = (id: string, tensor: number, step: number, signal?: AbortSignal) =>
  json<Histogram>(`runs/${id}/histogram${query({ tensor, step })}`, signal);

export async function tile(id: string, stat: string, level: number, x: number, y: number): Promise<Uint8Array> {
  return new Uint8Array(await (await send(`runs/${id}/heat/${stat}/${level}/${x}/${y}`)).arrayBuffer());
}

/** What the job has printed: the newest part, what came after `offset`, or what came before `before`. */
export const log = (id: string, from: { offset?: string; before?: string } = {}, signal?: AbortSignal) => json<LogAnswer>(`runs/${id}/log${query(from)}`, signal);

/** Global steps and the wall times (Unix ns) at which they began, from the place `from` in the run on. */
export async function steps(id: string, from: number, signal?: AbortSignal): Promise<{ step: number[]; wall: number[] }> {
  const { arrays } = readNumbers(await (await send(`runs/${id}/steps${query({ from })}`, { signal })).arrayBuffer());
  return { step: asNumbers(arrays.get("global_step")), wall: asNumbers(arrays.get("wall_unix_ns")) };
}

export const requests = (id: string) => json<{ requests: Asked[]; marks: Mark[] }>(`runs/${id}/requests`);

/** Asks the job for something (`action`), or marks a finding. */
export async function post(id: string, what: "requests" | "marks", body: Record<string, unknown>): Promise<void> {
  await send(`runs/${id}/${what}`, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Luff-CSRF": csrf },
    body: JSON.stringify(body),
  });
}

export interface CurveQuery {
  tensor: number;
  stat?: string;
  mode?: string;
  from?: number;
  to?: number;
  points?: number;
}

export async function columns(id: string, wanted: CurveQuery, signal?: AbortSignal): Promise<Numbers> {
  if (archive) return (await archive).columns(wanted);
  const answer = await send(`runs/${id}/columns${query({ ...wanted })}`, { signal });
  return readNumbers(await answer.arrayBuffer());
}

export const liveUrl = (ids: string[]) => new URL(`live${query({ runs: ids.join(",") })}`, base).href;
