"""How a watched training process ends: stopped by a finding, by an exception, by a signal, or in peace.

One rule for all: what was recorded reaches the run before the process goes, within a deadline, and the process
ends as it would have without Luff.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import weakref
from types import FrameType, TracebackType
from typing import Any, NoReturn, Protocol

from luff._codes import EndReason
from luff.errors import StopTraining

__all__ = ["EXIT_CODE", "StopTraining", "raise_stop", "watch"]

EXIT_CODE = 76
"""Exit code of a training process (and of ``luff run``) that a finding stopped."""

_CLOSE_DEADLINE_S = 2.0


class Closable(Protocol):
    """What has to be closed when the process ends."""

    def close(self, reason: int = ..., timeout_s: float = ...) -> None: ...


_watched: weakref.WeakSet[Any] = weakref.WeakSet()
_reason = EndReason.COMPLETED
_installed = False


def raise_stop(reason: str) -> NoReturn:
    """Raises `StopTraining` with the exit code; `reason` is its text."""
    global _reason
    _reason = EndReason.STOPPED
    stop = StopTraining(EXIT_CODE)
    stop.reason = reason  # type: ignore[attr-defined]
    raise stop


def watch(hook: Closable) -> None:
    """Closes `hook` when this process ends."""
    global _installed
    _watched.add(hook)
    if _installed:
        return
    _installed = True
    atexit.register(_at_exit)
    _chain_excepthook()
    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    ):
        signal.signal(signal.SIGTERM, _on_terminate)


def forget() -> None:
    """In a forked child: what the parent watched is not ours."""
    global _reason
    _watched.clear()
    _reason = EndReason.COMPLETED


def _close_all(reason: EndReason) -> None:
    for hook in list(_watched):
        try:
            hook.close(int(reason), _CLOSE_DEADLINE_S)
        except Exception:
            pass
    _watched.clear()


def _at_exit() -> None:
    _close_all(_reason)


def _chain_excepthook() -> None:
    previous = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        global _reason
        if _reason != EndReason.STOPPED:
            interrupted = issubclass(kind, KeyboardInterrupt)
            _reason = EndReason.SIGNAL if interrupted else EndReason.EXCEPTION
        previous(kind, error, trace)

    sys.excepthook = excepthook


def _on_terminate(_signum: int, _frame: FrameType | None) -> None:
    _close_all(EndReason.SIGNAL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
