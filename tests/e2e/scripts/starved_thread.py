"""A training in which a second thread, while it gets no memory, records for the first time."""

from __future__ import annotations

import ctypes
import sys
import threading

from luff._base_hook import choose_run, make_config
from luff._codes import GapReason, Mode, Role
from luff._step_hook import StepHook

STEPS, LATER = 20, 5

library = ctypes.CDLL(sys.argv[1])
hook = StepHook(choose_run(None, False, make_config(None, {"save_interval": 1})))


def step(index: int) -> None:
    """Makes one step of the training."""
    if hook.ensure_session() is None:
        return
    hook.steps.begin(int(Mode.TRAIN))
    hook.steps.scalar("loss", 1.0 / (index + 1), int(Role.LOSS))
    hook.steps.updated()
    hook.steps.end()


def first() -> None:
    """Records the thread's first entry."""
    session = hook.session
    assert session is not None
    library.starve(threading.get_native_id())
    session.gap(0, reason, 1)
    library.starve(0)


reason = int(GapReason.NOT_SEEN)
for index in range(STEPS + LATER):
    hook.while_live("step", step, index)
    hook.boundary()
    if index == STEPS - 1:
        hook.flush()
        thread = threading.Thread(target=first)
        thread.start()
        thread.join()
hook.close()
print("refused", library.refused() > 0)
