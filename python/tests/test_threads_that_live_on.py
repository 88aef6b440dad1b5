"""A thread that lives on after a session keeps nothing of it once the next session records there."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from luff import _core
from luff._codes import DType, EndReason, GapReason, Mode, Role

CONFIG = {"collections": [{"name": "w", "roles": ["weight"], "forms": ["raw"], "save": {"save_interval": 1}}]}
RUNS = 12


def resident_mib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20


def record(run: Path, thread: ThreadPoolExecutor, values: np.ndarray) -> None:
    session = _core.Session.open(str(run), config_json=json.dumps(CONFIG))
    weight = session.define_tensor("w", int(Role.WEIGHT))
    layout = session.define_layout(int(DType.FLOAT32), list(values.shape))
    for step in range(3):
        session.begin_step(int(Mode.TRAIN), step)
        session.capture_one(weight, layout, values.ctypes.data)
        thread.submit(session.gap, weight, int(GapReason.UNSUPPORTED), 1, 1).result()
        session.end_step(int(Mode.TRAIN), step, step, step)
    session.close(int(EndReason.COMPLETED), 10.0)


def test_sessions_that_ended_are_freed(tmp_path: Path) -> None:
    values = np.ones(1_000_000, np.float32)
    with ThreadPoolExecutor(1) as thread:
        record(tmp_path / "first", thread, values)
        before = resident_mib()
        for run in range(RUNS):
            record(tmp_path / str(run), thread, values)
        assert resident_mib() - before < 6 * RUNS  # each held at least 12 MiB of values
