import * as api from "../api/client";
import type { Asked, Finding, Lead, Mark, RunDocument, Tensor } from "../api/types";
import { StepNames } from "../lib/spans";
import { axisOf, StepTable, type Axis } from "../lib/steps";
import { live } from "../api/live.svelte";
import { file } from "./file.svelte";
import { route } from "./route.svelte";
import { acts } from "./session.svelte";

/** The run that is open, and the one cursor over its steps. */
export class OpenRun {
  document = $state.raw<RunDocument>();
  tensors = $state.raw<Tensor[]>([]);
  findings = $state.raw<Finding[]>([]);
  lead = $state.raw<Lead>();
  requests = $state.raw<Asked[]>([]);
  marks = $state.raw<Mark[]>([]);
  /** What the visitor may do here; "" in a report, and until it is known. */
  role = $state("");
  problem = $state<unknown>();
  #asked = 0;
  #table = new StepTable();
  #read = $state(0);
  #reading = false;
  #names = new StepNames();
  #named = $state(0);
  #naming = false;

  constructor(readonly id: string) {}

  /** Newest global step. */
  get last(): number {
    return Math.max(live.run?.last_step ?? -1, this.document?.steps.last ?? -1, 0);
  }
  /** Whether the visitor may ask things of the job, mark findings and write labels. */
  get mayAct(): boolean {
    return acts(this.role);
  }
  get state(): string {
    return live.run?.state ?? this.document?.outcome.state ?? "";
  }
  /** Complete steps of all modes. */
  get count(): number {
    return live.run?.step_count ?? this.document?.steps.count ?? 0;
  }
  /** Step under the cursor: the newest, until somebody moves it. */
  get cursor(): number {
    return Math.min(Math.max(route.number("step", this.last), 0), this.last);
  }
  set cursor(step: number) {
    route.set({ step: Math.round(Math.min(Math.max(step, 0), this.last)) });
  }
  /** Steps that charts show; the whole run if nobody zoomed in. */
  get from(): number {
    return Math.max(0, route.number("from", 0));
  }
  get to(): number {
    return Math.max(this.from + 1, route.number("to", this.last));
  }
  get zoomed(): boolean {
    return route.get("from") !== "" || route.get("to") !== "";
  }
  zoom(from: number, to: number): void {
    route.set({ from: Math.max(0, Math.floor(from)), to: Math.ceil(to) });
  }
  fit(): void {
    route.set({ from: "", to: "" });
  }

  /** What steps are called, as far as that was read. */
  get names(): StepNames {
    void this.#named;
    return this.#names;
  }
  /** Reads what new steps are called; a run of TRAIN steps alone needs no asking. */
  async loadNames(): Promise<void> {
    const modes = live.run?.modes ?? this.document?.steps.modes;
    const plain = Object.keys(modes ?? {}).every((mode) => mode === "TRAIN") && (modes?.TRAIN?.first ?? 0) === 0 && (modes?.TRAIN?.last ?? -1) === Math.max(live.run?.last_step ?? -1, this.document?.steps.last ?? -1);
    if (this.#naming || !modes || (plain && this.#names.next === 0)) return;
    this.#naming = true;
    try {
      for (let before = -1; before !== this.#names.next; ) {
        before = this.#names.next;
        this.#names.add(await api.spans(this.id, before));
      }
      this.#named += 1;
    } catch {
      // Not in this file, or the server is gone, which others say: steps keep their global numbers.
    } finally {
      this.#naming = false;
    }
  }
  /** Where a step lies on the axis of charts, and the step at a place there. */
  placeOf(step: number): number {
    return this.axis === "step" ? this.names.train(step) : (this.table?.at(step, this.axis) ?? step);
  }
  stepAtPlace(x: number): number {
    return this.axis === "step" ? this.names.fromTrain(x) : (this.table?.stepAt(x, this.axis) ?? x);
  }

  /** The step table, once something has asked for it by `loadSteps`. */
  get table(): StepTable | undefined {
    return this.#read > 0 ? this.#table : undefined;
  }
  /** What charts have on their axis. */
  get axis(): Axis {
    return this.table ? axisOf(route.get("x")) : "step";
  }
  /** Reads what is new in the step table. A run of a million steps takes ten answers. */
  async loadSteps(): Promise<void> {
    if (this.#reading) return;
    this.#reading = true;
    try {
      while (this.#table.add(await api.steps(this.id, this.#table.read)) === 100_000);
      this.#read = this.#table.read;
    } finally {
      this.#reading = false;
    }
  }

  /** The training step at a global step, or the last one before it. */
  async trainStepAt(step: number): Promise<number | undefined> {
    await this.loadSteps();
    return this.#table.trainStepAt(step);
  }

  async load(): Promise<void> {
    const asked = ++this.#asked;
    try {
      const document = await api.run(this.id);
      const all = document.tensors !== this.tensors.length;
      const tensors = all ? await api.tensors(this.id) : this.tensors;
      const { findings, lead } = await api.findings(this.id);
      const said = await api.requests(this.id);
      const role = file.run || this.role || (await api.roleAt(this.id));
      // One whose leader is not there leads itself.
      const ids = new Set(findings.map((finding) => finding.id));
      for (const finding of findings) if (!ids.has(finding.leader)) finding.leader = "";
      if (asked !== this.#asked) return;
      this.document = document;
      this.tensors = tensors;
      this.findings = findings;
      this.lead = lead ?? undefined;
      this.requests = said.requests;
      this.marks = said.marks;
      if (!file.run) this.role = role;
      await this.loadNames();
      this.problem = undefined;
    } catch (error) {
      if (asked === this.#asked) this.problem = error;
    }
  }
  /** Asks the job for something, or marks a finding; what becomes of it is in `requests` and `marks`. */
  async post(what: "requests" | "marks", body: Record<string, unknown>): Promise<void> {
    await api.post(this.id, what, body);
    await this.load();
  }
  find(name: string): Tensor | undefined {
    return this.tensors.find((tensor) => tensor.name === name);
  }
  /** The global step of a finding's onset: mode steps and global steps differ by the other modes' steps. */
  onset(finding: Finding): number {
    return finding.global_since ?? finding.global_step;
  }
}
