"""A training whose writer thread gets no memory for some steps; the library that refuses it was preloaded."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import numpy as np
from luff._base_hook import choose_run, make_config
from luff._codes import Mode, Role
from luff._step_hook import StepHook

STEPS, FROM, UNTIL = 300, 100, 200

library = ctypes.CDLL(sys.argv[1])
hook = StepHook(choose_run(None, False, make_config(None, {"save_interval": 1})))


def writer() -> int:
    """Returns the id of the writer thread."""
    tasks = Path("/proc/self/task").iterdir()
    return next(int(t.name) for t in tasks if (t / "comm").read_text() == "luff-writer\n")


def step(index: int) -> None:
    """Makes one step of the training, as a framework's hook would report it."""
    if hook.ensure_session() is None:
        return
    hook.steps.begin(int(Mode.TRAIN))
    hook.steps.scalar("loss", 1.0 / (index + 1), int(Role.LOSS))
    hook.steps.array("dense.weight", np.full(4096, index, dtype=np.float32), int(Role.WEIGHT))
    hook.steps.updated()
    hook.steps.end()


for index in range(STEPS):
    hook.while_live("step", step, index)
    hook.boundary()
    if index in (FROM, UNTIL):
        hook.flush()
        library.starve(writer() if index == FROM else 0)
hook.close()
print("refused", library.refused() > 0, "places", hook.health()["hook_error_places"])
