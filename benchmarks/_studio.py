"""What the parts of `./dev bench studio` share: the server, the runs, the browser, and the limits."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import luff.numpy
import numpy as np
from _gates import gate_of_best, luff_command, say

TICKS = os.sysconf("SC_CLK_TCK")
ROOT = Path(os.environ.get("LUFF_BENCH_ROOT", Path(__file__).resolve().parents[1]))

#: Limits, by the name of the figure.
LIMITS = {
    "start to listening, CPU ms": 100,
    "bundle gzip, KB": 150,
    "wheel growth, MB": 1.5,
    "overview, CPU ns a row": 60,
    "a published step of 5,000 tensors, CPU ms": 1,
    "8 curves of 1,024 points, CPU ms": 5,
    "tile, CPU ms": 1,
    "all tensors at one step, CPU ms": 15,
    "large run open, anonymous MB": 250,
    "first tile, overview kept, s": 1,
    "first tile, no overview, s": 2,
    "500 runs from nothing, CPU s": 2,
    "500 runs from the kept index, CPU s": 0.3,
    "500 runs, anonymous MB": 60,
    "keystroke in the filter, CPU ms": 50,
    "500 live runs watched, of a core": 0.02,
    "200 viewers at 4 Hz, of a core": 0.05,
    "200 viewers, anonymous MB": 60,
    "first picture, overview kept, s": 1,
    "first picture, no overview, s": 2,
    "frames: main thread p95, CPU ms": 16,
    "JS heap after live steps, MB": 200,
    "JS heap after minutes live, MB": 200,
    "end of step to pixel, p50 s": 0.5,
    "end of step to pixel, p95 s": 1,
    "training with the page open, extra CPU %": 0.5,
    "list, beside TensorBoard": 1,
    "first chart, beside TensorBoard": 1,
    "memory, beside TensorBoard": 1,
    "list, beside trainscope": 1,
    "first chart, beside trainscope": 1,
    "memory, beside trainscope": 1,
}


class Skipped(Exception):
    """A part that cannot be measured here, and why."""


class Bench:
    """A folder, the figures, and the large run, which is made when it is needed."""

    def __init__(self, folder: Path, tensors: int, steps: int, rounds: int) -> None:
        self.folder, self.tensors, self.steps, self.rounds = folder, tensors, steps, rounds
        self.minutes = 10.0  # of the part heap
        self.found: dict[str, list[float]] = {}
        self.skipped: dict[str, str] = {}
        self._shown: set[str] = set()

    def note(self, name: str, value: float) -> None:
        self.found.setdefault(name, []).append(value)

    def skip(self, name: str, reason: str) -> None:
        self.skipped[name] = reason
        print(f"  skipped: {name}: {reason}", flush=True)

    def show(self) -> None:
        """Prints what is new."""
        for name, values in self.found.items():
            if name not in self._shown:
                self._shown.add(name)
                limit = LIMITS.get(name)
                tail = f"limit {limit:g}  {say(min(values) <= limit)}" if limit is not None else ""
                print(f"  {name:<46} {min(values):10.4g}  {tail}", flush=True)

    def gates(self) -> list[dict[str, Any]]:
        return [
            gate_of_best(name, values, LIMITS[name]) for name, values in self.found.items() if name in LIMITS
        ]

    def large(self) -> Path:
        """Returns the folder that holds the large run."""
        root = self.folder / "large"
        if not root.exists():
            root.mkdir()
            record(root / "run", self.tensors, self.steps)
        return root

    @contextlib.contextmanager
    def server(self, *roots: Path, home: str = "home") -> Iterator[Server]:
        server = Server(self.folder / home, *roots)
        try:
            yield server
        finally:
            server.end()


def record(path: Path, tensors: int, steps: int, size: int = 8) -> None:
    """Writes a run. Modules are as in a transformer."""
    hook, arrays = begin(path, tensors, size)
    for step_number in range(steps):
        arrays *= 0.999
        with hook.step() as step:
            step.loss(1 / (step_number + 1))
    hook.close()


def begin(path: Path, tensors: int, size: int = 8) -> tuple[Any, np.ndarray]:
    """Begins a run; returns its hook and the values of all its tensors."""
    arrays = np.random.default_rng(0).normal(size=(tensors, size)).astype(np.float32)
    weights = {f"h.{i // 12}.part{i % 12}.weight": arrays[i] for i in range(tensors)}
    return luff.numpy.attach(weights, run=path), arrays


@contextlib.contextmanager
def live_page(
    bench: Bench, name: str, tensors: int
) -> Iterator[tuple[Any, Server, str, Callable[[float], None]]]:
    """Yields a browser that lists one live run, its server, the run's id, and what records a step with a loss."""
    root = bench.folder / name
    root.mkdir()
    hook, arrays = begin(root / "run", tensors)

    def step(loss: float) -> None:
        np.multiply(arrays, 0.999, out=arrays)
        with hook.step() as one:
            one.loss(loss)

    step(1)
    view = browser(bench.folder / f"{name}-profile")
    try:
        with bench.server(root, home=f"{name}-home") as server:
            view.open(server.link)
            view.until("document.querySelector('tbody tr') !== null")
            yield view, server, server.first_run().rsplit("/", 1)[1], step
    finally:
        view.close()
        hook.close()


def linked(run: Path, root: Path, count: int) -> None:
    """Fills a folder with runs that are one run under other names: they grow as it does."""
    root.mkdir()
    for i in range(count):
        shutil.copytree(run, root / f"run{i:03}", copy_function=os.link)


def cpu_s(pid: int) -> float:
    """Returns what a process and its threads have used so far: by the scheduler where it tells, else in ticks."""
    threads = list(Path(f"/proc/{pid}/task").glob("*/schedstat"))
    if threads:
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def anonymous_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) / 1024


class Server:
    """`luff serve`, and what it has used."""

    def __init__(self, home: Path, *roots: Path) -> None:
        self._process = subprocess.Popen(
            [luff_command(), "serve", *map(str, roots)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=os.environ | {"LUFF_HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")},
        )  # fmt: skip
        assert self._process.stdout is not None
        self.pid = self._process.pid
        self.link = self._process.stdout.readline().strip()
        self.cpu_to_listening_s = cpu_s(self.pid)
        base, self._token = self.link.split("/#token=")
        self.port = int(base.rsplit(":", 1)[1])
        self._connection = http.client.HTTPConnection("127.0.0.1", self.port)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}"}

    def get(self, path: str) -> bytes:
        time.sleep(0.006)  # the server answers 200 requests a second
        self._connection.request("GET", path, headers=self.headers)
        answer = self._connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        return body

    def json(self, path: str) -> Any:
        return json.loads(self.get(path))

    def first_run(self) -> str:
        """Returns the address of the only run."""
        return f"/api/v1/runs/{self.json('/api/v1/runs')['runs'][0]['id']}"

    def whole_map(self, run: str) -> None:
        """Reads the overview until it is complete."""
        while not self.json(f"{run}/heat?stat=l2")["complete"]:
            continue

    def cpu_s(self) -> float:
        return cpu_s(self.pid)

    def anonymous_mb(self) -> float:
        return anonymous_mb(self.pid)

    def each_ms(self, paths: list[str], times: int) -> float:
        """Returns milliseconds of CPU time for each request."""
        before = self.cpu_s()
        for i in range(times):
            self.get(paths[i % len(paths)])
        return 1e3 * (self.cpu_s() - before) / times

    def stream(self, run: str = "") -> Any:
        """Returns a socket with an open event stream."""
        import socket

        client = socket.create_connection(("127.0.0.1", self.port))
        text = f"GET /api/v1/live?runs={run} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
        text += "".join(f"{name}: {value}\r\n" for name, value in self.headers.items()) + "\r\n"
        client.sendall(text.encode())
        return client

    def end(self) -> None:
        self._process.terminate()
        self._process.wait()


def browser(folder: Path, *words: str) -> Any:
    """Returns a browser, which also traces; `words`: more of its command line. Raises Skipped if there is none."""
    if shutil.which("chromium") is None and shutil.which("google-chrome") is None:
        raise Skipped("there is no browser; install chromium")
    sys.path.insert(0, str(ROOT))
    from _studio_browser import TracingBrowser

    return TracingBrowser(folder, *words)


def wait(condition: Any, limit_s: float = 120) -> float:
    """Waits until `condition()` is true; returns seconds."""
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > limit_s:
            raise AssertionError("it did not come")
        time.sleep(0.005)
    return time.monotonic() - begun
