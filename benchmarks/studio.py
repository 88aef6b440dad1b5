"""What `luff serve` costs: CPU time of the server for each kind of answer, and its memory, over one large run.

usage: ./dev bench studio [--tensors N] [--steps N] [--full] [--json FILE]

The run has N tensors with a summary at each step (default 5,000 x 500; --full 5,000 x 2,000). CPU time is that of the
server's process, of all its threads, so that load on the machine does not count. The baseline of the heat map is what
reading the same rows costs tensor by tensor, measured here through `luff.open_trial`, interleaved.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import luff
import luff.numpy
import numpy as np
from _gates import finish, gate_of_best, luff_command, say

TICKS = os.sysconf("SC_CLK_TCK")
ROUNDS = 3


def record(path: Path, tensors: int, steps: int) -> None:
    """Writes the run. Each tensor has 64 numbers; modules are as in a transformer."""
    random = np.random.default_rng(0)
    values = random.normal(size=(tensors, 64)).astype(np.float32)
    weights = {f"h.{i // 12}.part{i % 12}.weight": values[i] for i in range(tensors)}
    hook = luff.numpy.attach(weights, run=path)
    for step_number in range(steps):
        values *= 0.999
        with hook.step() as step:
            step.loss(1 / (step_number + 1))
    hook.close()


class Server:
    """`luff serve`, and what it has used."""

    def __init__(self, home: Path, root: Path) -> None:
        begun = time.perf_counter()
        self._process = subprocess.Popen(
            [luff_command(), "serve", str(root)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=os.environ | {"LUFF_HOME": str(home)},
        )  # fmt: skip
        assert self._process.stdout is not None
        base, self._token = self._process.stdout.readline().strip().split("/#token=")
        self.listening_ms = 1e3 * (time.perf_counter() - begun)
        self.port = int(base.rsplit(":", 1)[1])
        self._connection = http.client.HTTPConnection("127.0.0.1", self.port)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}"}

    def get(self, path: str) -> bytes:
        self._connection.request("GET", path, headers=self.headers)
        answer = self._connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        return body

    def json(self, path: str) -> Any:
        return json.loads(self.get(path))

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def anonymous_mb(self) -> float:
        lines = Path(f"/proc/{self._process.pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) / 1024

    def end(self) -> None:
        self._process.terminate()
        self._process.wait()


def of_map(server: Server, run: str) -> tuple[float, int]:
    """Reads a heat map until it is complete; returns CPU seconds and steps of the map."""
    before = server.cpu_s()
    while not (info := server.json(f"/api/v1/runs/{run}/heat?stat=l2"))["complete"]:
        continue
    return server.cpu_s() - before, len(info["levels"])


def by_tensor(path: Path, tensors: int, steps: int, share: int = 20) -> float:
    """Returns nanoseconds of CPU time per row for reading every `share`-th tensor by itself, in a new trial."""
    with luff.open_trial(path) as trial:
        names = [name for name in trial.tensors() if name.endswith("weight")][::share]
        begun = time.process_time()
        for name in names:
            trial.tensor(name).summaries()
        return 1e9 * (time.process_time() - begun) / (len(names) * steps)


def each_ms(server: Server, paths: list[str], times: int) -> float:
    """Returns milliseconds of the server's CPU time for each request."""
    before = server.cpu_s()
    for i in range(times):
        server.get(paths[i % len(paths)])
    return 1e3 * (server.cpu_s() - before) / times


def viewers(server: Server, run: str, count: int, seconds: float) -> float:
    """Returns the share of a core that so many open event streams use."""
    text = f"GET /api/v1/live?runs={run} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
    text += "".join(f"{name}: {value}\r\n" for name, value in server.headers.items()) + "\r\n"
    clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(count)]
    try:
        for client in clients:
            client.sendall(text.encode())
        time.sleep(1)
        before = server.cpu_s()
        time.sleep(seconds)
        return (server.cpu_s() - before) / seconds
    finally:
        for client in clients:
            client.close()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tensors", type=int, default=5000)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--full", action="store_true", help="5,000 tensors x 2,000 steps")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    steps = 2000 if args.full else args.steps
    rows = args.tensors * steps
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "runs"
        root.mkdir()
        record(root / "large", args.tensors, steps)
        found: dict[str, list[float]] = {}

        def note(name: str, value: float) -> None:
            found.setdefault(name, []).append(value)

        for _ in range(ROUNDS):
            server = Server(Path(folder) / "home", root)
            try:
                run = server.json("/api/v1/runs")["runs"][0]["id"]
                at = f"/api/v1/runs/{run}"
                note("start to listening, ms", server.listening_ms)
                server.get(f"{at}/tensors")  # opens the run
                note("heat map, ns a row", 1e9 * of_map(server, run)[0] / rows)
                note("by tensor, ns a row", by_tensor(root / "large", args.tensors, steps))
                tiles = [f"{at}/heat/l2/0/0/{y}" for y in range(args.tensors // 256)]
                note("tile, ms", each_ms(server, tiles, 200))
                ids = ",".join(str(i) for i in range(8))
                note("8 curves of 1,024 points, ms", each_ms(server, [f"{at}/columns?tensor={ids}"], 100))
                note("all tensors at one step, ms", each_ms(server, [f"{at}/at/{steps // 2}"], 40))
                note("list of runs, ms", each_ms(server, ["/api/v1/runs"], 100))
                note("200 viewers, of a core", viewers(server, run, 200, 4))
                note("anonymous memory, MB", server.anonymous_mb())
            finally:
                server.end()
    limits = {
        "start to listening, ms": 100,
        "heat map, ns a row": 60,
        "tile, ms": 1,
        "8 curves of 1,024 points, ms": 5,
        "all tensors at one step, ms": 15,
        "200 viewers, of a core": 0.05,
        "anonymous memory, MB": 250,
    }
    gates = [gate_of_best(name, found[name], limit) for name, limit in limits.items()]
    verdicts = {str(gate["name"]): f"limit {gate['limit']:g}  {say(gate['ok'])}" for gate in gates}
    print(f"{args.tensors} tensors x {steps} steps; best of {ROUNDS}, CPU time of the server")
    for name, values in found.items():
        print(f"  {name:<30} {min(values):9.3f}  {verdicts.get(name, '')}")
    ratio = min(found["by tensor, ns a row"]) / min(found["heat map, ns a row"])
    print(f"  reading by tensor costs {ratio:.1f} times as much a row")
    return finish([{"name": name, "values": values} for name, values in found.items()], gates, args.json)


if __name__ == "__main__":
    sys.exit(main())
