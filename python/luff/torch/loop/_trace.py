"""Traces the operators of a few steps with the profiler of PyTorch, when somebody asks for it.

A trace lies in the worker's folder of the run. It is refused where it could harm: beside another profiler, with little
memory, after many others; the document "traces" says why. Nothing is printed and no result changes.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from luff._hook import Session
from luff.corrections import Corrections
from luff.torch.replay._isolation import free_memory, resident_memory

__all__ = ["MOST_STEPS", "Profilers", "Tracer", "WithTraces", "why_not"]

MOST_STEPS = 10
_MOST_TRACES = 16
_MOST_BYTES = 256 << 20  # of all traces of a worker
_LEAST_MEMORY, _LEAST_SHARE = 2 << 30, 0.05
_MOST_SECONDS = 60.0
_MOST_GROWTH = (
    256 << 20
)  # of the process's memory between steps; writing a trace takes several times what it holds
_OTHERS = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")
_QUIET = "KINETO_LOG_LEVEL"


class Profilers:
    """Which threads have a profiler of PyTorch that is not ours, from its preparation to its end.

    The process has one profiler at a time: of two, the one that ends last crashes.
    """

    #: Threads that prepare or run one.
    others: set[int] = set()  # noqa: RUF012 (one for the process)
    #: The trace that is being made, of any training of this process.
    tracing: Tracer | None = None
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
        if cls.tracing is not None:
            cls.tracing.forget()


def why_not() -> str:
    """Returns why nothing can be traced now, or ""."""
    if torch._C._autograd._profiler_enabled() or Profilers.others:
        return "another profiler of PyTorch is active"
    for name in _OTHERS:
        if name in os.environ:
            return f"another profiler is attached ({name} is set)"
    total, available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), _available()
    if available < max(_LEAST_MEMORY, int(_LEAST_SHARE * total)):
        return f"only {available >> 20} MiB of memory are available, of {total >> 20}"
    return ""


def _available() -> int:
    """Returns the bytes of memory that may still be taken; if that cannot be read, enough."""
    try:
        return free_memory()
    except (OSError, ValueError, IndexError):
        return 1 << 62


class Tracer:
    """The traces of one session.

    Parameters
    ----------
    session
        Where the document "traces" goes.
    run
        Directory of the run.
    facts
        What stands in each trace: rank, world, run.
    """

    def __init__(self, session: Session, run: str, facts: dict[str, Any]) -> None:
        self._session = session
        self._folder = os.path.join(run, f"w{session.worker:04d}", "traces")
        self._facts = facts
        self._told: list[dict[str, Any]] = []
        self._made = self._bytes = 0
        self._profiler: Any = None
        self._thread = 0  # where it began; no other one can end it
        self._lost = False
        self._left = self._first = self._done = 0
        self._passes = self._resident = (
            0  # since the last step that was traced: forward passes, and memory after one
        )
        self._begun = self._cost = 0.0

    @property
    def active(self) -> bool:
        """Whether steps are being traced."""
        return self._profiler is not None

    def is_here(self) -> bool:
        """Whether what this thread does is being recorded."""
        return self.active and threading.get_ident() == self._thread

    def begin(self, steps: int, first: int, *, stacks: bool = False) -> str:
        """Traces from here until `steps` steps have ended.

        Parameters
        ----------
        steps
            How many, from 1 to `MOST_STEPS`.
        first
            TRAIN steps so far.
        stacks
            Also functions of Python.

        Returns
        -------
        str
            Why it is refused, or "".
        """
        why = self._refusal()
        if not why:
            self._done, self._first, self._passes = 0, first, 0
            self._left = max(1, min(int(steps), MOST_STEPS))
            self._begun = time.perf_counter()
            try:
                self._profiler = Profilers.of_ours(lambda: _started(stacks))
                self._made += 1
                Profilers.tracing = self
                self._thread, self._lost = threading.get_ident(), False
                self._session.traced(True)
            except Exception as error:
                why = f"the profiler of PyTorch does not start: {type(error).__name__}: {error}"[:300]
            self._cost = time.perf_counter() - self._begun
        return self.refuse(why, first) if why else ""

    def refuse(self, why: str, first: int) -> str:
        """Tells why there is no trace from here on, and returns it; `first`: TRAIN steps so far."""
        self._tell({"refused": why, "first_step": first})
        return why

    def _refusal(self) -> str:
        if self.active or Profilers.tracing is not None:
            return "a trace is being made"
        if self._made >= _MOST_TRACES:
            return f"there are {_MOST_TRACES} traces of this worker already"
        if self._bytes >= _MOST_BYTES:
            return f"the traces of this worker take {self._bytes >> 20} MiB already"
        return why_not()

    def step_ended(self) -> bool:
        """Counts a step. Returns False when the trace has ended, early if it takes long or memory is scarce."""
        self._done += 1
        self._left -= 1
        self._passes = 0
        if self._left > 0 and self._may_go_on():
            return True
        self.end()
        return False

    def other_step_ended(self) -> None:
        """Called when another training of this process has ended a step: this one may never go on."""
        if threading.get_ident() == self._thread and (not self.active or not self._may_go_on()):
            self.end()

    def evaluates(self) -> None:
        """Called before a forward pass that trains nothing: however many there are, no step that is counted ends."""
        if threading.get_ident() == self._thread and not (self.active and self._may_go_on() and self._fits()):
            self.end()

    def _fits(self) -> bool:
        """Whether the memory of the process has grown little since the first of these forward passes."""
        self._passes += 1
        try:
            resident = resident_memory()
        except (OSError, ValueError, IndexError):
            return True
        if self._passes <= 2:  # the first one may take memory for good
            self._resident = resident
        return resident - self._resident < _MOST_GROWTH

    def _may_go_on(self) -> bool:
        scarce = _available() < _LEAST_MEMORY // 2
        return not scarce and not self._lost and time.perf_counter() - self._begun < _MOST_SECONDS

    def give_way(self) -> None:
        """Called before another profiler begins, in the thread that begins it."""
        if threading.get_ident() == self._thread:
            self.end()
        else:
            self._lost = True

    def forget(self) -> None:
        """Ends, in a forked child, what its copy of the parent's thread records for the parent's trace."""
        Profilers.tracing = None
        _record_no_more()

    def end(self) -> None:
        """Ends the trace, if there is one, and writes it."""
        profiler, self._profiler = self._profiler, None
        here = threading.get_ident() == self._thread
        if here and Profilers.tracing is self:  # else it may still record there
            Profilers.tracing = None
            if profiler is None:  # given up in another thread
                _record_no_more()
        if profiler is None:
            return
        self._session.traced(False)
        if self._lost or not here or not torch._C._autograd._profiler_enabled():
            # What ends it would end the other one, or crash.
            if here:
                _record_no_more()
            why = "another profiler began" if here else "the training went on in another thread"
            self._tell({"first_step": self._first, "steps": self._done, "refused": why})
            return
        begin = time.perf_counter()
        one: dict[str, Any] = {"first_step": self._first, "steps": self._done}
        try:
            # Kineto takes them only while it runs.
            profiler.add_metadata_json("luff", json.dumps({**self._facts, **one}))
            Profilers.of_ours(profiler.stop)
            name = f"{self._first:09d}-{self._made - 1:02d}.json"
            one["bytes"] = self._write(profiler, name)
            one["file"] = f"traces/{name}"
            self._bytes += one["bytes"]
        except Exception as error:
            one["refused"] = f"it cannot be written: {type(error).__name__}: {error}"[:300]
        one["cost_s"] = round(self._cost + time.perf_counter() - begin, 6)
        self._tell(one)

    def _write(self, profiler: Any, name: str) -> int:
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        unfinished = os.path.join(self._folder, f"{name}.part.json")
        try:
            profiler.export_chrome_trace(unfinished)
            os.chmod(unfinished, 0o600)
            size = os.path.getsize(unfinished)
            if self._bytes + size > _MOST_BYTES:
                raise ValueError(f"{size >> 20} MiB are more than the traces of a worker may take")
            os.rename(unfinished, os.path.join(self._folder, name))
        finally:
            if os.path.exists(unfinished):
                os.unlink(unfinished)
        return size

    def _tell(self, one: dict[str, Any]) -> None:
        # A loop may ask at each step: refusals must not take the place of traces.
        refusals = sum("file" not in other for other in self._told)
        if "file" in one or refusals < 3 * _MOST_TRACES:
            self._told.append(one)
            self._session.set_document("traces", json.dumps({"traces": self._told}))


class WithTraces(Corrections):
    """What a training has opted into, and traces, which need no consent: its results do not change.

    Parameters
    ----------
    base
        What it has opted into.
    trace
        Begins a trace of so many steps, with or without stacks; returns why not, or "".
    """

    _trace: Callable[[int, bool], str | None]

    def __init__(self, base: Corrections, trace: Callable[[int, bool], str | None]) -> None:
        super().__init__(base.lower_lr, base.skip_batch, base.rollback)
        object.__setattr__(self, "_trace", trace)  # the class is frozen

    def kinds(self) -> list[str]:
        """Returns what ranks may agree on."""
        return [*super().kinds(), "trace"]

    def carry_out(self, kind: str, body: str, lower_lr: Callable[[float], object]) -> None:
        """Does it, or raises what prevents it."""
        if kind != "trace":
            super().carry_out(kind, body, lower_lr)
            return
        wanted = json.loads(body)
        why = self._trace(wanted["steps"], wanted.get("stacks", False))
        if why or why is None:
            raise RuntimeError(why or "nothing is recorded")


def _record_no_more() -> None:
    """Makes this thread record nothing any more for a profiler that cannot be ended."""
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
