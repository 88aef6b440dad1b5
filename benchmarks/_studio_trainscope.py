"""1,000 tags x 2,000 steps beside trainscope: as the gradient norms of 1,000 layers, since it knows no other series."""

from __future__ import annotations

import os
import subprocess
import time
import urllib.request
from typing import Any

from _studio import Bench, Skipped
from _studio_beside import STEPS, TAGS, compare, drawn, other_server

# Its own writer needs minutes for so much; its files are made with its schemas, one batch a layer, as it leaves them
# after a compaction.
WRITE = """
import sys, urllib.parse
from pathlib import Path
import numpy as np
import pyarrow as pa
from trainscope.core.config import TrainScopeConfig
from trainscope.io.writer import LAYER_SCHEMA, DiskWriter

run, tags, steps = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
writer = DiskWriter(run, TrainScopeConfig(run_dir=str(run.parent), run_name=run.name))
writer.write_meta("model", {})
for step in range(steps):
    writer.append_global({"step": step, "loss": 1 / (step + 1)})
writer.close()
numbers = np.arange(steps)
same = {}
for field in LAYER_SCHEMA:
    if pa.types.is_list(field.type):
        same[field.name] = pa.array([[]] * steps, field.type)
    else:
        same[field.name] = pa.array(numbers if field.name == "step" else np.full(steps, 0.5), field.type)
for i in range(tags):
    name = urllib.parse.quote(f"h{i // 10}/part{i % 10}", safe="")
    columns = same | {"grad_l2_norm": pa.array(1 / (numbers + i + 1))}
    batch = pa.record_batch([columns[field.name] for field in LAYER_SCHEMA], schema=LAYER_SCHEMA)
    with pa.OSFile(str(run / "layers" / f"{name}.arrow"), "wb") as sink, pa.ipc.new_stream(sink, LAYER_SCHEMA) as out:
        out.write_batch(batch)
"""
TAB = "[...document.querySelectorAll('button, a')].find(one => one.textContent.includes('Layer drill-down'))"


def measure(bench: Bench) -> None:
    python = os.environ.get("LUFF_BENCH_TRAINSCOPE")
    if not python:
        raise Skipped("no environment with trainscope: ./dev bench makes it where it can be installed")
    run = str(bench.folder / "trainscope" / "run")
    subprocess.run([python, "-c", WRITE, run, str(TAGS), str(STEPS)], check=True)

    def command(port: int) -> list[str]:
        return [python, "-m", "trainscope", "ui", "--run", run, "--port", str(port), "--log-level", "error"]

    def theirs(view: Any) -> dict[str, float]:
        with other_server(command) as (port, memory):
            base = f"http://127.0.0.1:{port}"
            _wait_until_there(base)
            begun = time.monotonic()
            view.open(base)
            drawn(view, f"{TAB} !== undefined", begun)
            view.evaluate(f"{TAB}.click()")
            options = "document.querySelectorAll('#layer-drilldown-select option').length"
            listed = drawn(view, f"{options} >= {TAGS}", begun)
            chart = drawn(view, "document.querySelector('.js-plotly-plot .main-svg') !== null", begun)
            return {"list": listed, "first chart": chart, "memory": memory()}

    compare(bench, "trainscope", theirs)


def _wait_until_there(base: str) -> None:
    """Waits until it answers; it reads nothing before it is asked."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{base}/api/health", timeout=60):
                return
        except OSError:
            time.sleep(0.2)
    raise Skipped("trainscope does not answer within 120 s")
