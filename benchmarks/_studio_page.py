"""The page in a real browser: first picture, frames, memory, and how far behind the run it is."""

from __future__ import annotations

import statistics
import time

from _studio import Bench, browser, live_page

#: True once a heat map shows a cell that was recorded.
PAINTED = """[...document.querySelectorAll('canvas')].some((canvas) => {
  const context = canvas.width && canvas.height ? canvas.getContext('2d') : null;
  if (!context) return false;
  const { data } = context.getImageData(0, 0, canvas.width, Math.min(canvas.height, 200));
  for (let i = 3; i < data.length; i += 4) if (data[i] === 255) return true;
  return false;
})"""


def measure(bench: Bench) -> None:
    root = bench.large()
    for number in range(bench.rounds):
        home = f"page-home{number}"
        for name in ("first picture, no overview, s", "first picture, overview kept, s"):
            view = browser(bench.folder / f"profile{number}{name[15]}")
            with bench.server(root, home=home) as server:
                run = server.first_run()
                identity = run.rsplit("/", 1)[1]
                view.open(server.link)
                view.until("document.querySelector('tbody tr') !== null")
                begun = time.monotonic()
                view.evaluate(f"location.hash = '#/run/{identity}?view=heat'")
                while not view.evaluate(PAINTED):
                    time.sleep(0.01)
                bench.note(name, time.monotonic() - begun)
                server.whole_map(run)
                if name.endswith("kept, s") and number == 0:
                    frames(bench, view, identity)
            view.close()
    pixel(bench)


def frames(bench: Bench, view: object, run: str) -> None:
    """Pans, zooms and drags the cursor for some seconds, over the heat map and over the curves."""
    for name in ("heat", "curves"):
        view.evaluate(f"location.hash = '#/run/{run}?view={name}'")  # type: ignore[attr-defined]
        view.until("document.querySelector('canvas') !== null")  # type: ignore[attr-defined]
        time.sleep(2)
        view.begin_trace()  # type: ignore[attr-defined]
        end = time.monotonic() + 5
        i = 0
        while time.monotonic() < end:
            i += 1
            x, y = 400 + 300 * ((i % 40) / 40), 300 + 100 * ((i % 7) / 7)
            view.mouse("mouseMoved", x, y)  # type: ignore[attr-defined]
            if i % 10 == 0:
                view.mouse("mouseWheel", x, y, deltaX=0, deltaY=240 if i % 20 else -240)  # type: ignore[attr-defined]
            if i % 25 == 0:
                view.press("ArrowRight" if i % 50 else "ArrowLeft")  # type: ignore[attr-defined]
        tasks = [task for task in view.end_trace() if task >= 0.2]  # type: ignore[attr-defined]
        if not tasks:
            bench.skip(f"frames of {name}", "the trace holds no tasks of the page")
            continue
        bench.note(f"frames of {name}: main thread p50, CPU ms", statistics.median(tasks))
        p95 = tasks[int(0.95 * (len(tasks) - 1))]
        bench.note(f"frames of {name}: main thread p95, CPU ms", p95)
        bench.found["frames: main thread p95, CPU ms"] = [
            max(p95, *bench.found.get("frames: main thread p95, CPU ms", [0]))
        ]


def pixel(bench: Bench) -> None:
    """A live run: from the end of a step until the page shows its number; and the page's memory."""
    with live_page(bench, "pixel", 100) as (view, _, identity, step):
        view.evaluate(f"location.hash = '#/run/{identity}?view=curves'")
        view.until("document.querySelector('canvas') !== null")
        time.sleep(2)
        delays = []
        for count in range(1, 41):
            step(1 / count)
            begun = time.monotonic()
            shown = f"document.body.innerText.replaceAll(',', '').match(/step\\D{{0,4}}{count}\\b/i) !== null"
            while not view.evaluate(shown):
                if time.monotonic() - begun > 10:
                    bench.skip("end of step to pixel", "the page does not show the newest step")
                    break
                time.sleep(0.01)
            delays.append(time.monotonic() - begun)
            if delays[-1] > 10:
                break
            time.sleep(0.13)
        if delays and max(delays) < 10:
            delays.sort()
            bench.note("end of step to pixel, p50 s", statistics.median(delays))
            bench.note("end of step to pixel, p95 s", delays[int(0.95 * (len(delays) - 1))])
        for count in range(300):
            step(1 / (count + 50))
            time.sleep(0.1)
        bench.note("JS heap after live steps, MB", view.heap_mb())
