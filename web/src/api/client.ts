import { parseHarmless } from "../lib/harmless";
import { Archive } from "./archive";
import { readNumbers, type Numbers } from "./numbers";
import { Problem } from "./problem";
import type { ProfileAnswer } from "./profile";
import type { Asked, BoostingAnswer, Finding, HeatInfo, Histogram, Lead, LogAnswer, Mark, RunDocument, StepAnswer, Tensor, TensorFacts } from "./types";

export { Problem };

/** The run that is inside the page, if this is a report. */
const archive = Archive.isThere() ? Archive.open() : undefined;
export const openFile = () => archive;

const base = new URL("./api/v1/", location.href.split("#")[0]);
let csrf = "";

export async function send(path: string, init: RequestInit = {}): Promise<Response> {
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

export async function json<T>(path: string, signal?: AbortSignal): Promise<T> {
  return parseHarmless(await (await send(path, { signal })).text()) as T;
}

export function query(values: Record<string, string | number | undefined>): string {
  const text = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) if (value !== undefined && value !== "") text.set(name, `${value}`);
  return text.size ? `?${text}` : "";
}

interface SessionAnswer {
  role: string;
  csrf: string;
}
/** Begins a session with a token, or goes on with the one that the browser has. Returns the visitor's greatest role. */
export async function beginSession(token: string): Promise<string> {
  const answer = token
    ? await send("session", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ token }),
      })
    : await send("session");
  const begun = (await answer.json()) as SessionAnswer;
  csrf = begun.csrf;
  return begun.role;
}
/** The visitor's role for a run. */
export const roleAt = async (run: string) => (await json<SessionAnswer>(`session${query({ run })}`)).role;

export async function endSession(): Promise<void> {
  await send("session", { method: "DELETE", headers: { "X-Luff-CSRF": csrf } });
}

export const run = (id: string) => json<RunDocument>(`runs/${id}`);
export const tensors = async (id: string) => (await json<{ tensors: Tensor[] }>(`runs/${id}/tensors`)).tensors;
export const findings = (id: string) => json<{ findings: Finding[]; lead?: Lead | null }>(`runs/${id}/findings`);
export const boosting = (id: string) => json<BoostingAnswer>(`runs/${id}/boosting`);
export const heat = (id: string, stat: string) => json<HeatInfo>(`runs/${id}/heat${query({ stat })}`);
export const at = (id: string, step: number, signal?: AbortSignal) => json<StepAnswer>(`runs/${id}/at/${step}`, signal);
export const histogram = (id: string, tensor: number, step: number, signal?: AbortSignal) =>
  json<Histogram>(`runs/${id}/histogram${query({ tensor, step })}`, signal);

export const tensor = (id: string, tensor: number, signal?: AbortSignal) => json<TensorFacts>(`runs/${id}/tensors/${tensor}`, signal);
export const pages = async (id: string) => (await json<{ pages: Record<string, string> }>(`runs/${id}/pages`)).pages;

async function numbers(path: string, signal?: AbortSignal): Promise<Numbers> {
  return readNumbers(await (await send(path, { signal })).arrayBuffer());
}
/** The step table from a position on, at most 100,000 steps. */
export const steps = (id: string, from = 0, signal?: AbortSignal) => numbers(`runs/${id}/steps${from ? `?from=${from}` : ""}`, signal);

/** What steps are called, from a position in the step table on. */
export const spans = (id: string, from = 0) => numbers(`runs/${id}/spans${from ? `?from=${from}` : ""}`);

/** Of a worker, or of the first that recorded phases. A file holds that of all steps, of some workers. */
export interface ProfileQuery {
  worker?: string;
  from?: number;
  to?: number;
}
export const profile = (id: string, wanted: ProfileQuery, signal?: AbortSignal) => json<ProfileAnswer>(archive ? `runs/${id}/profile` : `runs/${id}/profile${query({ ...wanted })}`, signal);
export const profileSteps = (id: string, wanted: ProfileQuery, signal?: AbortSignal) =>
  numbers(`runs/${id}/profile/steps${query(archive ? { worker: wanted.worker } : { ...wanted })}`, signal);

export const norms = (id: string, signal?: AbortSignal) => numbers(`runs/${id}/norms`, signal);

export interface HistogramsQuery {
  tensor: number;
  scale?: string;
  from?: number;
  to?: number;
}
export async function histograms(id: string, wanted: HistogramsQuery, signal?: AbortSignal): Promise<Numbers> {
  const { tensor, scale } = wanted;
  // A file holds those of all steps, on both scales.
  return archive ? numbers(`runs/${id}/histograms?tensor=${tensor}&scale=${scale ?? "linear"}`, signal) : numbers(`runs/${id}/histograms${query({ ...wanted })}`, signal);
}
export const ranks = (id: string, wanted: { from?: number; to?: number }, signal?: AbortSignal) => numbers(archive ? `runs/${id}/ranks` : `runs/${id}/ranks${query(wanted)}`, signal);

export async function tile(id: string, stat: string, level: number, x: number, y: number): Promise<Uint8Array> {
  return new Uint8Array(await (await send(`runs/${id}/heat/${stat}/${level}/${x}/${y}`)).arrayBuffer());
}

/** What the job has printed: the newest part, what came after `offset`, or what came before `before`. */
export const log = (id: string, from: { offset?: string; before?: string } = {}, signal?: AbortSignal) => json<LogAnswer>(`runs/${id}/log${query(from)}`, signal);

export const requests = (id: string) => json<{ requests: Asked[]; marks: Mark[] }>(`runs/${id}/requests`);

/** Asks the job for something (`action`), marks a finding, or says something of a run. */
export async function post(id: string, what: "requests" | "marks" | "labels", body: Record<string, unknown>): Promise<void> {
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

/** Every value of some tensors, as the bytes of a safetensors file; of a file, the finest that it holds. */
export async function rows(id: string, tensors: number[], wanted: Omit<CurveQuery, "tensor" | "points">): Promise<ArrayBuffer> {
  return (await send(`runs/${id}/rows${query({ tensor: tensors.join(","), ...wanted })}`)).arrayBuffer();
}

export async function columns(id: string, wanted: CurveQuery, signal?: AbortSignal): Promise<Numbers> {
  if (archive) return (await archive).columns(wanted);
  const answer = await send(`runs/${id}/columns${query({ ...wanted })}`, { signal });
  return readNumbers(await answer.arrayBuffer());
}

export const liveUrl = (ids: string[]) => new URL(`live${query({ runs: ids.join(",") })}`, base).href;
