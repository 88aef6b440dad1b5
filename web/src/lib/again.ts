/** Asks for what goes on changing: at once, then again when told, at most every `pause` ms and one question at a time. News never end a question that is on its way, so even a slow answer arrives. */
export function askAgain(pause: number, ask: (signal: AbortSignal) => Promise<void>): { news: () => void; stop: () => void } {
  const abort = new AbortController();
  let timer: ReturnType<typeof setTimeout> | undefined;
  let next = 0;
  let [asking, more] = [false, false];
  async function now() {
    timer = undefined;
    [asking, more] = [true, false];
    await ask(abort.signal);
    asking = false;
    next = Date.now() + pause;
    if (more) news();
  }
  function news() {
    more = asking;
    if (!asking && !abort.signal.aborted) timer ??= setTimeout(() => void now(), Math.max(0, next - Date.now()));
  }
  function stop() {
    abort.abort();
    clearTimeout(timer);
  }
  return { news, stop };
}
