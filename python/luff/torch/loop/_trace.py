"""Traces the operators of a few steps with the profiler of PyTorch, when somebody asks for it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from luff._core import call_soon
from luff._hook import Session
from luff._tracer import Tracer, Traces, keep_looking

__all__ = ["Profilers", "TorchTracer"]

_QUIET = "KINETO_LOG_LEVEL"
#: Events that a node of the autograd graph stands for, forward and backward, with what they call. Measured: 41 in a
#: resnet18, 17 in a gpt, 12 in a chain of products of single numbers, 9 in a loop over an LSTM's cell, 5 in one of
#: products without a backward pass: long steps are such loops. What needs no gradient is not counted.
_EVENTS_A_NODE = 10


class Profilers(Traces):
    """Which threads have a profiler of PyTorch that is not ours, from its preparation to its end.

    The process has one profiler at a time: of two, the one that ends last crashes.
    """

    #: Threads that prepare or run one.
    others: set[int] = set()  # noqa: RUF012 (one for the process)
    _own = threading.local()

    @classmethod
    def ours(cls) -> bool:
        """Whether this thread is starting or stopping a trace of Luff."""
        return getattr(cls._own, "active", False)

    @classmethod
    def of_ours(cls, function: Callable[[], Any]) -> Any:
        """Calls a function that starts or stops a trace of Luff."""
        cls._own.active = True
        try:
            return function()
        finally:
            cls._own.active = False

    @classmethod
    def forked(cls) -> None:
        """Leaves, in a forked child, only what its one thread has."""
        cls.others.intersection_update({threading.get_ident()})
        super().forked()


class TorchTracer(Tracer):
    """Kineto, without shapes and memory; the file is its own, JSON of the Trace Event Format.

    Only the thread that began it can end it. Where that is the main one, it is asked to look twice a second, in
    whatever code it is; elsewhere it looks as the training calls Luff.

    Parameters
    ----------
    session, run, facts, since_s
        See `Tracer`.
    looks
        Of the hook: calls `look_here`, guarded.
    """

    def __init__(
        self, session: Session, run: str, facts: dict[str, Any], since_s: float, looks: Callable[[], None]
    ) -> None:
        super().__init__(session, run, facts, since_s)
        self._looks = weakref.WeakMethod(looks)  # a trace must not keep its training's hook alive
        self._ended = threading.Event()
        self._nodes = 0  # of the graph, when it began
        self._awaited = False  # the main thread has been asked to look, and has not yet

    def _ends_here(self) -> bool:
        # Within a backward pass autograd keeps the profiler's state aside, and puts it back when the pass returns.
        task = getattr(torch._C, "_current_graph_task_id", None)
        return task is None or task() == -1

    def _events(self) -> int:
        return (_nodes() - self._nodes) * _EVENTS_A_NODE if self.is_here() else 0

    def look(self) -> None:
        """Has the thread that trains look; called in a thread of Luff's."""
        if not self._awaited and self._thread == threading.main_thread().ident:
            self._awaited = True  # before: the main thread may come between
            if not call_soon(self._look_now):
                self._awaited = False

    def _look_now(self) -> None:
        """Called in the main thread, between two bytecodes of any code."""
        self._awaited = False
        looks = self._looks()
        if looks is not None:
            looks()

    def end(self) -> None:
        """Ends the trace, if there is one, and writes it."""
        self._ended.set()
        super().end()

    def _why_not(self) -> str:
        if torch._C._autograd._profiler_enabled() or Profilers.others:
            return "another profiler of PyTorch is active"
        return ""

    def _start(self, stacks: bool) -> Any:
        self._ended = threading.Event()
        self._nodes = _nodes()
        profiler = Profilers.of_ours(lambda: _started(stacks))
        looking = weakref.WeakMethod(self.look), self._ended
        with contextlib.suppress(RuntimeError):  # there can be no more threads
            # After the profiler: with stacks it traces the threads that are there.
            threading.Thread(target=keep_looking, args=looking, name="luff-trace", daemon=True).start()
        return profiler

    def _stop(self, profiler: Any, facts: str, path: str) -> None:
        profiler.add_metadata_json("luff", facts)  # Kineto takes it only while it runs
        Profilers.of_ours(profiler.stop)
        profiler.export_chrome_trace(path)

    def _runs(self) -> bool:
        return bool(torch._C._autograd._profiler_enabled())

    def _record_no_more(self) -> None:
        clear = getattr(torch._C._autograd, "_clear_callbacks", None)
        if clear is not None:
            clear()
        if type(sys.getprofile()).__name__ == "TraceContext":  # PyTorch's, with stacks
            sys.setprofile(None)


def _nodes() -> int:
    """Returns how many nodes of autograd's graphs this thread has made."""
    count = getattr(torch._C._autograd, "_get_sequence_nr", None)
    return 0 if count is None else int(count())


def _started(stacks: bool) -> Any:
    from torch.profiler import ProfilerActivity
    from torch.profiler.profiler import _KinetoProfile

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        activities.append(ProfilerActivity.CUDA)
    profiler = _KinetoProfile(activities=activities, with_stack=stacks)
    # Kineto reads it when it is used first, and else prints two lines a trace.
    said = os.environ.get(_QUIET)
    os.environ[_QUIET] = "99" if said is None else said
    try:
        profiler.start()
    finally:
        if said is None:
            os.environ.pop(_QUIET, None)
    return profiler
