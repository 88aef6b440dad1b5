"""The page's memory while it stays open on a live run, going from view to view."""

from __future__ import annotations

import time

from _studio import Bench, begin, browser

VIEWS = ("verdict", "curves", "heat", "tensors", "histograms", "findings", "log")


def measure(bench: Bench) -> None:
    root = bench.folder / "open"
    root.mkdir()
    hook, arrays = begin(root / "run", 1000)
    with hook.step() as one:
        one.loss(1)
    view = browser(bench.folder / "heap-profile")
    with bench.server(root, home="heap-home") as server:
        identity = server.first_run().rsplit("/", 1)[1]
        view.open(server.link)
        view.until("document.querySelector('tbody tr') !== null")
        bench.note("JS heap at first, MB", view.heap_mb())
        begun = time.monotonic()
        count = 0
        while (minutes := (time.monotonic() - begun) / 60) < bench.minutes:
            if count % 80 == 0:
                name = VIEWS[count // 80 % len(VIEWS)]
                view.evaluate(f"location.hash = '#/run/{identity}?view={name}'")
            if count % 400 == 399:
                print(f"  {minutes:.1f} min, {count} steps: {view.heap_mb():.1f} MB", flush=True)
            arrays *= 0.999
            with hook.step() as one:
                one.loss(1 / (count + 1))
            count += 1
            time.sleep(0.25)
        bench.note("JS heap after minutes live, MB", view.heap_mb())
        bench.note("server after minutes live, anonymous MB", server.anonymous_mb())
    view.close()
    hook.close()
