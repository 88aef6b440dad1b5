"""Traces the operators of a few steps with the profiler of PyTorch, when somebody asks for it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from luff._tracer import Tracer, Traces

__all__ = ["Profilers", "TorchTracer"]

_QUIET = "KINETO_LOG_LEVEL"


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
    """Kineto, without shapes and memory; the file is its own, JSON of the Trace Event Format."""

    def _why_not(self) -> str:
        if torch._C._autograd._profiler_enabled() or Profilers.others:
            return "another profiler of PyTorch is active"
        return ""

    def _start(self, stacks: bool) -> Any:
        return Profilers.of_ours(lambda: _started(stacks))

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
