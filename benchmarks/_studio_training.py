"""What a page that is open costs the training: CPU time of its process, in pairs of blocks."""

from __future__ import annotations

import time

from _gates import measured
from _studio import Bench, begin, browser

STEPS = 150


def measure(bench: Bench) -> None:
    root = bench.folder / "trained"
    root.mkdir()
    hook, arrays = begin(root / "run", 300, 2048)
    view = browser(bench.folder / "training-profile")

    def block() -> float:
        begun = time.process_time()
        for count in range(STEPS):
            arrays[:] *= 0.999
            with hook.step() as one:
                one.loss(1 / (count + 1))
        return time.process_time() - begun

    block()
    with bench.server(root) as server:
        identity = server.first_run().rsplit("/", 1)[1]
        view.open(server.link)
        view.until("document.querySelector('tbody tr') !== null")
        extra = []
        for pair in range(8):
            times = {}
            for watched in (True, False) if pair % 2 else (False, True):
                view.open("about:blank")
                if watched:
                    view.open(server.link.split("#", 1)[0] + f"#/run/{identity}?view=curves")
                    time.sleep(1)
                times[watched] = block()
            extra.append(100 * (times[True] / times[False] - 1))
    found = measured(extra)
    bench.found["training with the page open, extra CPU %"] = [found.median]
    bench.note("training with the page open, interval from, %", found.low)
    bench.note("training with the page open, interval to, %", found.high)
    view.close()
    hook.close()
