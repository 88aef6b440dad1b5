"""500 runs: their list, their memory, and what it costs to watch them."""

from __future__ import annotations

import shutil
import time

from _studio import Bench, begin, linked, record

RUNS = 500


def measure(bench: Bench) -> None:
    record(bench.folder / "one", 40, 500)
    root = bench.folder / "runs"
    linked(bench.folder / "one", root, RUNS)
    for number in range(bench.rounds):
        home = f"many-home{number}"
        for name in ("500 runs from nothing, CPU s", "500 runs from the kept index, CPU s"):
            with bench.server(root, home=home) as server:
                assert server.json("/api/v1/runs?limit=500")["all"] == RUNS
                bench.note(name, server.cpu_s())
                filters = [f"/api/v1/runs?where=name+~+run0{i}&limit=200" for i in range(10)]
                bench.note("keystroke in the filter, CPU ms", server.each_ms(filters, 30))
                bench.note("list of 200 runs, CPU ms", server.each_ms(["/api/v1/runs"], 30))
                stream = server.stream()
                before = server.cpu_s()
                time.sleep(6)
                bench.note("500 ended runs watched, of a core", (server.cpu_s() - before) / 6)
                stream.close()
                bench.note("500 runs, anonymous MB", server.anonymous_mb())
    viewers(bench)
    shutil.rmtree(root)
    live(bench)


def viewers(bench: Bench) -> None:
    root = bench.folder / "viewed"
    root.mkdir()
    hook, arrays = begin(root / "run", 40)
    with bench.server(root) as server:
        for count in range(5):
            with hook.step() as one:
                one.loss(count)
        run = server.first_run().rsplit("/", 1)[1]
        clients = [server.stream(run) for _ in range(200)]
        time.sleep(1)
        for _ in range(bench.rounds):
            before, begun = server.cpu_s(), time.monotonic()
            for count in range(16):  # there is always news
                arrays *= 0.999
                with hook.step() as one:
                    one.loss(count)
                time.sleep(0.25)
                for client in clients:
                    client.recv(1 << 16)
            bench.note(
                "200 viewers at 4 Hz, of a core", (server.cpu_s() - before) / (time.monotonic() - begun)
            )
        bench.note("200 viewers, anonymous MB", server.anonymous_mb())
        for client in clients:
            client.close()
    hook.close()


def live(bench: Bench) -> None:
    """Runs that all take a step a second: one live run under 500 names."""
    hook, arrays = begin(bench.folder / "live-one", 40)
    for count in range(50):
        with hook.step() as one:
            one.loss(count)
    root = bench.folder / "live-runs"
    linked(bench.folder / "live-one", root, RUNS)
    with bench.server(root, home="live-home") as server:
        assert server.json("/api/v1/runs?limit=500&where=verdict+%3D+running")["matching"] == RUNS
        stream = server.stream()
        for _ in range(bench.rounds):
            before, begun = server.cpu_s(), time.monotonic()
            while time.monotonic() - begun < 20:
                arrays *= 0.999
                with hook.step() as one:
                    one.loss(1)
                time.sleep(1)
            bench.note(
                "500 live runs watched, of a core", (server.cpu_s() - before) / (time.monotonic() - begun)
            )
        bench.note("500 live runs, anonymous MB", server.anonymous_mb())
        stream.close()
    hook.close()
