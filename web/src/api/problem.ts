/** An answer with an error: what was wrong, and what to do. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly detail: string,
    readonly remedy = "",
  ) {
    super(detail);
  }
}
