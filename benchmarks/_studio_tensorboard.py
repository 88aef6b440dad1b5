"""1,000 tags x 2,000 steps beside TensorBoard, in the same browser, interleaved."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import luff.numpy
import numpy as np
from _studio import Bench, Skipped, anonymous_mb, browser, wait

TAGS, STEPS = 1000, 2000
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
    folder = bench.folder / "beside"
    (folder / "ours").mkdir(parents=True)
    subprocess.run([python, "-c", WRITE, str(folder / "theirs"), str(TAGS), str(STEPS)], check=True)
    hook = luff.numpy.attach({"w": np.ones(1, np.float32)}, run=folder / "ours/run")
    for step in range(STEPS):
        with hook.step():
            for i in range(TAGS):
                luff.numpy.save_scalar(f"h{i // 10}/part{i % 10}", 1 / (step + i + 1))
    hook.close()
    found: dict[str, dict[bool, list[float]]] = {
        name: {True: [], False: []} for name in ("list", "first chart", "memory")
    }
    for number in range(bench.rounds):
        for name, value in ours(bench, folder / "ours", number).items():
            found[name][True].append(value)
        for name, value in theirs(bench, folder / "theirs", python, number).items():
            found[name][False].append(value)
    for name, both in found.items():
        unit = "MB" if name == "memory" else "s"
        bench.note(f"{name}, Luff, {unit}", min(both[True]))
        bench.note(f"{name}, TensorBoard, {unit}", min(both[False]))
        bench.note(f"{name}, beside TensorBoard", min(both[True]) / min(both[False]))


def drawn(view: Any, condition: str, begun: float) -> float:
    wait(lambda: view.evaluate(condition))
    return time.monotonic() - begun


def ours(bench: Bench, root: Path, number: int) -> dict[str, float]:
    """Times from opening the page: all names are known, and a chart is drawn."""
    view = browser(bench.folder / f"ours{number}")
    with bench.server(root, home=f"beside{number}") as server:
        run = server.first_run().rsplit("/", 1)[1]
        view.open(server.link)
        view.until("document.querySelector('tbody tr') !== null")
        begun = time.monotonic()
        view.evaluate(f"location.hash = '#/run/{run}?view=curves&t=1'")
        listed = drawn(view, "document.body.innerText.includes('part')", begun)
        chart = drawn(view, "document.querySelector('canvas') !== null", begun)
        memory = anonymous_mb(server.pid)
    view.close()
    return {"list": listed, "first chart": chart, "memory": memory}


def theirs(bench: Bench, folder: Path, python: str, number: int) -> dict[str, float]:
    """The same of TensorBoard, once it has read the files."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [python, "-m", "tensorboard.main", "--logdir", str(folder), "--port", str(port), "--load_fast", "false"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    view = browser(bench.folder / f"theirs{number}")
    try:
        base = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:  # it has read everything: not part of the comparison
            try:
                with urllib.request.urlopen(f"{base}/data/plugin/scalars/tags", timeout=60) as answer:
                    if answer.read().count(b"part") >= TAGS:
                        break
            except OSError:
                pass
            time.sleep(0.5)
        begun = time.monotonic()
        view.open(f"{base}/#timeseries")
        text = "(function all(node) { let t = node.textContent || ''; return t; })(document.body)"
        listed = drawn(view, f"{text}.includes('part')", begun)
        chart = drawn(view, "document.querySelector('canvas, line-chart svg path') !== null", begun)
        memory = anonymous_mb(process.pid)
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            memory += anonymous_mb(int(child))
    finally:
        view.close()
        process.terminate()
        process.wait()
    return {"list": listed, "first chart": chart, "memory": memory}
