"""The server over one large run."""

from __future__ import annotations

import statistics
import time

import luff
from _studio import Bench, begin

TURNS = 6  # of idling and of steps in a round


def by_tensor_ns(bench: Bench, share: int = 50) -> float:
    """Returns nanoseconds of CPU time per row for reading every `share`-th tensor by itself, in a new trial."""
    with luff.open_trial(bench.large() / "run") as trial:
        names = [name for name in trial.tensors() if name.endswith("weight")][::share]
        begun = time.process_time()
        for name in names:
            trial.tensor(name).summaries()
        return 1e9 * (time.process_time() - begun) / (len(names) * bench.steps)


def measure(bench: Bench) -> None:
    root = bench.large()
    rows = bench.tensors * bench.steps
    for number in range(bench.rounds):
        home = f"large-home{number}"
        with bench.server(root, home=home) as server:
            run = server.first_run()
            server.get(f"{run}/tensors")  # opens the run
            begun = time.monotonic()
            server.get(f"{run}/heat/l2/0/0/0")
            bench.note("first tile, no overview, s", time.monotonic() - begun)
            before = server.cpu_s()
            begun = time.monotonic()
            server.whole_map(run)
            bench.note("overview, anonymous MB", server.anonymous_mb())
            bench.note("overview, s", time.monotonic() - begun)
            bench.note("overview, CPU ns a row", 1e9 * (server.cpu_s() - before) / rows)
        bench.note("by tensor, CPU ns a row", by_tensor_ns(bench))
        with bench.server(root, home=home) as server:
            run = server.first_run()
            begun = time.monotonic()
            server.get(f"{run}/heat/l2/0/0/0")
            bench.note("first tile, overview kept, s", time.monotonic() - begun)
            server.whole_map(run)
            levels = server.json(f"{run}/heat?stat=l2")["levels"]
            across = range((levels[0]["columns"] + 255) // 256)
            tiles = [f"{run}/heat/l2/0/{x}/{y}" for y in range(bench.tensors // 256) for x in across]
            bench.note("tile, CPU ms", server.each_ms(tiles, 200))
            ids = ",".join(str(i) for i in range(1, 9))
            bench.note(
                "8 curves of 1,024 points, CPU ms", server.each_ms([f"{run}/columns?tensor={ids}"], 100)
            )
            bench.note(
                "all tensors at one step, CPU ms", server.each_ms([f"{run}/at/{bench.steps // 2}"], 40)
            )
            bench.note("large run open, anonymous MB", server.anonymous_mb())
    step(bench)


def step(bench: Bench) -> None:
    """What a published step of 5,000 tensors costs until it is in the overview and in the stream."""
    root = bench.folder / "growing"
    root.mkdir()
    hook, arrays = begin(root / "run", bench.tensors)

    def publish(count: int, seconds: float) -> None:
        for i in range(count):
            arrays[:] *= 0.999
            with hook.step() as one:
                one.loss(1 / (i + 1))
            time.sleep(seconds)

    publish(30, 0)
    with bench.server(root) as server:
        run = server.first_run()
        stream = server.stream(run.rsplit("/", 1)[1])
        server.whole_map(run)
        server.json(f"{run}/heat?stat=l2")
        each = []
        for _ in range(bench.rounds):
            # Short turns, since what the machine gives differs from second to second, and idle counts most.
            used, count = 0.0, 0
            for _ in range(TURNS):
                before, begun = server.cpu_s(), time.monotonic()
                time.sleep(1.5)
                idle = (server.cpu_s() - before) / (time.monotonic() - begun)
                before, begun = server.cpu_s(), time.monotonic()
                for _ in range(5):
                    publish(1, 0.3)  # the server looks at each step by itself
                    server.json(f"{run}/heat?stat=l2")
                used += server.cpu_s() - before - idle * (time.monotonic() - begun)
                count += 5
            each.append(1e3 * used / count)
        # Not the best: a round whose idle time held something else would seem to cost nothing.
        bench.note("a published step of 5,000 tensors, CPU ms", statistics.median(each))
        stream.close()
    hook.close()
