/** Asks for what goes on changing: at once, then again when told, at most every `pause` ms and one question at a time; a pause lasts `rest` times as long as the answer took, too. News never end a question that is on its way, so even a slow answer arrives. */
export function askAgain(pause: number, ask: (signal: AbortSignal) => Promise<void>, rest = 0): { news: () => void; stop: () => void } {
  const abort = new AbortController();
  let timer: ReturnType<typeof setTimeout> | undefined;
  let next = 0;
  let [asking, more] = [false, false];
  async function now() {
    timer = undefined;
    [asking, more] = [true, false];
    const begin = Date.now();
    await ask(abort.signal);
    asking = false;
    next = Date.now() + Math.max(pause, rest * (Date.now() - begin));
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
