"""The end of a watched training process: stopped by a finding, by an exception, by a signal, or normally.

The same holds for all of them: what was recorded reaches the run before the process ends, within a deadline, and the
process ends as it would have without Luff.
"""

from __future__ import annotations

import atexit
import sys
import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn, Protocol

from luff import _after_stop
from luff._codes import EndReason
from luff.errors import InvalidArgumentError, StopTraining

__all__ = ["EXIT_CODE", "StopTraining", "on_stop", "raise_stop", "watch"]

EXIT_CODE = 76
"""Exit code of a training process (and of ``luff run``) that a finding stopped."""

_CLOSE_DEADLINE_S = 2.0
_MOMENT_S = 0.05
_SIGNAL_DEADLINE_S = 0.3
_AFTER_OTHERS = (
    -100
)  # priority among what `multiprocessing` calls at an end; its own join children, flush queues


class Closable(Protocol):
    """Something to close when the process ends."""

    def close(self, reason: int = ..., timeout_s: float = ...) -> None: ...


_callbacks: list[Callable[[], object]] = []
_MAX_CALLBACKS = 64
_watched: weakref.WeakSet[Any] = weakref.WeakSet()
_reason = EndReason.COMPLETED
_installed = False
_last = None  # finalizer that multiprocessing calls when its process ends


def on_stop(callback: Callable[[], object]) -> Callable[[], object]:
    """Registers `callback` to run before a finding stops this process, e.g. to write a checkpoint.

    It runs in the training's own thread, after the last update, in every rank after the same step. Errors in it are
    counted. Under ``luff run`` it has ``leave_s`` of ``[stop]`` (60 s); then the job gets SIGTERM. Without Luff
    nothing ever calls it. Returns `callback`, so that this works as a decorator.

    Raises
    ------
    InvalidArgumentError
        If it cannot be called, or if there are more than 64.
    """
    if not callable(callback):
        raise InvalidArgumentError(f"on_stop got a {type(callback).__name__}; expected a function")
    if callback not in _callbacks:
        if len(_callbacks) >= _MAX_CALLBACKS:
            raise InvalidArgumentError(
                f"on_stop has {_MAX_CALLBACKS} call-backs already; call it outside of the loop"
            )
        _callbacks.append(callback)
    return callback


def callbacks() -> list[Callable[[], object]]:
    """Returns the call-backs passed to `on_stop`, newest last."""
    return list(_callbacks)


def raise_stop(reason: str) -> NoReturn:
    """Raises `StopTraining` with the exit code; `reason` is stored in the exception."""
    global _reason
    _reason = EndReason.STOPPED
    stop = StopTraining(EXIT_CODE)
    stop.reason = reason  # type: ignore[attr-defined]
    raise stop


def survived() -> None:
    """Called when a stop has ended a trial of this process, and the process goes on."""
    global _reason
    _reason = EndReason.COMPLETED


def watch(hook: Closable) -> None:
    """Closes `hook` when this process ends."""
    global _installed
    _watched.add(hook)
    _end_with_multiprocessing()
    if _installed:
        return
    _installed = True
    atexit.register(_at_exit)
    _chain_excepthook()
    from luff import _core

    _core.on_terminate(_by_signal)


def forget() -> None:
    """Drops what the parent watched, in a forked child."""
    global _last, _reason
    _after_stop.forget()
    _watched.clear()
    _reason, _last = EndReason.COMPLETED, None


def _close_all(reason: EndReason, timeout_s: float = _CLOSE_DEADLINE_S) -> None:
    """Closes all hooks within one common deadline, and a moment for each."""
    _after_stop.write()
    until = time.monotonic() + timeout_s
    for hook in list(_watched):
        try:
            hook.close(int(reason), max(until - time.monotonic(), _MOMENT_S))
        except Exception:
            pass
    _watched.clear()


def _at_exit() -> None:
    _close_all(_reason)


def _end_with_multiprocessing() -> None:
    """Registers a finalizer in processes of `multiprocessing`: forked ones exit by `os._exit`, none calls
    `sys.excepthook`.
    """
    global _last
    process = sys.modules.get("multiprocessing.process")
    if _last is not None or process is None or process.parent_process() is None:
        return
    from multiprocessing.util import Finalize

    _last = Finalize(None, _at_exit_of_child, exitpriority=_AFTER_OTHERS)


def _at_exit_of_child() -> None:
    kind = sys.exc_info()[0]  # exception of the process's target: finalizers run while it propagates
    if kind is not None and not issubclass(kind, SystemExit):
        _ended_by(kind)
    _at_exit()


def _ended_by(kind: type[BaseException]) -> None:
    global _reason
    if _reason != EndReason.STOPPED:
        _reason = EndReason.SIGNAL if issubclass(kind, KeyboardInterrupt) else EndReason.EXCEPTION


def _chain_excepthook() -> None:
    previous = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        _ended_by(kind)
        previous(kind, error, trace)

    sys.excepthook = excepthook


def _by_signal() -> None:
    """Closes the hooks after SIGTERM, between two lines of the main thread; the process ends in any case."""
    _close_all(EndReason.SIGNAL, _SIGNAL_DEADLINE_S)
