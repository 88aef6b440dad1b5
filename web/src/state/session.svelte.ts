/** Roles that may ask things of jobs, mark findings and write labels: docs/serve.md. */
export const acts = (role: string): boolean => role === "operator" || role === "admin";

/** Who looks: the greatest role that the visitor has for some run. `OpenRun` knows the one for its own. */
class Session {
  role = $state("");
  get mayAct(): boolean {
    return acts(this.role);
  }
}

export const session = new Session();
