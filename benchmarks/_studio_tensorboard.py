"""1,000 tags x 2,000 steps beside TensorBoard."""

from __future__ import annotations

import os
import subprocess
import time
import urllib.request
from typing import Any

from _studio import Bench, Skipped
from _studio_beside import STEPS, TAGS, compare, drawn, other_server

WRITE = """
import sys
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
writer = EventFileWriter(sys.argv[1])
for step in range(int(sys.argv[3])):
    values = [
        Summary.Value(tag=f"h{i // 10}/part{i % 10}", simple_value=1 / (step + i + 1)) for i in range(int(sys.argv[2]))
    ]
    writer.add_event(Event(step=step, wall_time=1e9 + step, summary=Summary(value=values)))
writer.close()
"""


def measure(bench: Bench) -> None:
    python = os.environ.get("LUFF_BENCH_TENSORBOARD")
    if not python:
        raise Skipped("no environment with TensorBoard: ./dev bench makes it where it can be installed")
    folder = str(bench.folder / "tensorboard")
    subprocess.run([python, "-c", WRITE, folder, str(TAGS), str(STEPS)], check=True)

    def command(port: int) -> list[str]:
        words = [python, "-m", "tensorboard.main", "--logdir", folder, "--port", str(port)]
        return [*words, "--load_fast", "false"]

    def theirs(view: Any) -> dict[str, float]:
        with other_server(command) as (port, memory):
            base = f"http://127.0.0.1:{port}"
            _wait_until_read(base)
            begun = time.monotonic()
            view.open(f"{base}/#timeseries")
            text = "(document.body?.textContent ?? '')"
            listed = drawn(view, f"{text}.includes('part')", begun)
            chart = drawn(view, "document.querySelector('canvas, line-chart svg path') !== null", begun)
            return {"list": listed, "first chart": chart, "memory": memory()}

    compare(bench, "TensorBoard", theirs)


def _wait_until_read(base: str) -> None:
    """Waits until it has read everything, which is no part of the comparison."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{base}/data/plugin/scalars/tags", timeout=60) as answer:
                if answer.read().count(b"part") >= TAGS:
                    break
        except OSError:
            pass
        time.sleep(0.5)
