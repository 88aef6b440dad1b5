"""The page's memory while it stays open on a live run, going from view to view."""

from __future__ import annotations

import time

from _studio import Bench, live_page

VIEWS = ("verdict", "curves", "heat", "tensors", "histograms", "findings", "log")


def measure(bench: Bench) -> None:
    with live_page(bench, "open", 1000) as (view, server, identity, step):
        bench.note("JS heap at first, MB", view.heap_mb())
        begun = time.monotonic()
        count = 0
        while (minutes := (time.monotonic() - begun) / 60) < bench.minutes:
            if count % 80 == 0:
                name = VIEWS[count // 80 % len(VIEWS)]
                view.evaluate(f"location.hash = '#/run/{identity}?view={name}'")
            if count % 400 == 399:
                print(f"  {minutes:.1f} min, {count} steps: {view.heap_mb():.1f} MB", flush=True)
            step(1 / (count + 1))
            count += 1
            time.sleep(0.25)
        bench.note("JS heap after minutes live, MB", view.heap_mb())
        bench.note("server after minutes live, anonymous MB", server.anonymous_mb())
