"""Traces of a few steps by a framework's own profiler: where they lie, what bounds them, what the run says of them.

A trace lies in the worker's folder of the run. It is refused where it could harm: beside another profiler, with little
memory, after many others; the document "traces" says why. Nothing is printed, except by TensorFlow (`Profiler.prints`),
and no result changes. A framework derives from `Tracer` and says how its profiler begins and ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from luff._base_hook import BaseHook
from luff._codes import Mode
from luff._hook import Refused, Session
from luff._memory import free_memory, resident_memory
from luff.corrections import Corrections

__all__ = ["LOOKS_EVERY_S", "MOST_STEPS", "TracedHook", "Tracer", "Traces", "WithTraces", "keep_looking"]

MOST_STEPS = 10
_MOST_TRACES = 16
_MOST_BYTES = 256 << 20  # of all traces of a worker
_LEAST_MEMORY, _LEAST_SHARE = 2 << 30, 0.05
_MOST_SECONDS = 60.0
#: With functions of Python: four million calls a second were seen, and each costs four microseconds at the end.
_MOST_SECONDS_OF_PYTHON = 5.0
#: Of the process's memory between steps; writing a trace takes several times what it holds.
_MOST_GROWTH = 256 << 20
#: Of one trace, where they can be told while it is made: each costs some 250 bytes of the file, and microseconds at its
#: end.
_MOST_EVENTS = 1_000_000
#: What a profiler records in a second at the most, as far as was seen, and how many times that it takes to write it.
_BYTES_A_SECOND, _TO_WRITE = 80 << 20, 8
LOOKS_EVERY_S = 0.5
_FIRST_S = 1.0  # what a first trace may cost
_OTHERS = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")
_TRAIN = int(Mode.TRAIN)
_NAME = re.compile(r"\d{9,}-(\d{2,3})\.(?:json|xplane\.pb)")
_MOST_TOLD, _MOST_TOLD_BYTES = 64, 1 << 20  # entries of the document


class Traces:
    """The trace that is being made in this process, of any training and framework: there is one at a time."""

    tracing: ClassVar[Tracer | None] = None

    @classmethod
    def forked(cls) -> None:
        """Forgets, in a forked child, what the parent traces."""
        if Traces.tracing is not None:
            Traces.tracing.forget()


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
    since_s
        When the run began, by `time.monotonic`.
    """

    #: How names of files end.
    suffix = ".json"

    def __init__(self, session: Session, run: str, facts: dict[str, Any], since_s: float) -> None:
        self._session = session
        self._folder = os.path.join(run, f"w{session.worker:04d}", "traces")
        self._facts = facts
        self._since_s = since_s
        self._told: list[dict[str, Any]] = []
        self._made = self._bytes = 0
        self._spent_s = self._last_s = 0.0  # what all traces have cost, and the last one
        self._profiler: Any = None
        self._thread = 0  # where it began; no other one can end it
        self._lost = False
        self._left = self._first = self._done = 0
        self._passes = self._resident = (
            0  # since the last step that was traced: forward passes, and memory after one
        )
        self._at_begin = self._after_first = 0  # memory: at the begin, after the first traced step
        self._begins = self._stacks = False
        self._begun = self._cost = self._looked = 0.0
        self._asked: dict[str, Any] = {}  # of the trace that is being made: who asked for it
        self._number = 0  # of the next file
        self._go_on()

    def _go_on(self) -> None:
        """Takes over what earlier processes have traced as this worker: bounds are those of the run, not of a process.

        Called where somebody asks for the first trace of this process.
        """
        try:
            names = os.listdir(self._folder)
        except OSError:
            return
        for name in names:
            path = os.path.join(self._folder, name)
            number = _NAME.fullmatch(name)
            with contextlib.suppress(OSError):
                if number is not None:
                    self._number = max(self._number, int(number[1]) + 1)
                    self._made += 1
                    self._bytes += os.path.getsize(path)
                elif ".part." in name:  # of a process that was killed
                    os.unlink(path)
        if self._made:
            self._told = _told_before(self._folder + ".json")

    # Of a framework ----------------------------------------------------------------------------------------------

    def _why_not(self) -> str:
        """Returns why the framework's profiler cannot trace now, or ""."""
        raise NotImplementedError

    def _start(self, stacks: bool) -> Any:
        """Begins, and returns what ends it."""
        raise NotImplementedError

    def _stop(self, profiler: Any, facts: str, path: str) -> None:
        """Ends, and writes the trace to `path`, with `facts` (JSON) inside."""
        raise NotImplementedError

    def _runs(self) -> bool:
        """Returns whether what `_start` began still runs."""
        raise NotImplementedError

    def _record_no_more(self) -> None:
        """Makes this thread record nothing any more for a profiler that cannot be ended."""

    def _ends_here(self) -> bool:
        """Returns whether the profiler can be ended in the midst of the code that runs now."""
        return True

    def _events(self) -> int:
        """Returns about how many events are recorded so far; 0 where nobody knows. Called in the thread that trains."""
        return 0

    # -------------------------------------------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        """Whether steps are being traced."""
        return self._profiler is not None

    @property
    def next_step(self) -> int:
        """The TRAIN step that follows those that were traced."""
        return self._first + self._done

    def is_here(self) -> bool:
        """Whether what this thread does is being recorded."""
        return self.active and threading.get_ident() == self._thread

    def begin(
        self, steps: int, first: int, *, stacks: bool = False, asked: Mapping[str, Any] | None = None
    ) -> str:
        """Traces from here until `steps` steps have ended.

        Parameters
        ----------
        steps
            How many, from 1 to `MOST_STEPS`.
        first
            TRAIN steps so far.
        stacks
            Also functions of Python.
        asked
            Of a rule's action: ``finding`` and ``rule``, which the document repeats, and ``share``, of the run's time
            that traces may take.

        Returns
        -------
        str
            Why it is refused, or "".
        """
        asked = asked or {}
        why = self._refusal() or self._over_budget(asked.get("share"))
        by = {key: str(asked[key])[:64] for key in ("finding", "rule") if key in asked}
        if not why:
            self._done, self._first, self._passes, self._after_first = 0, first, 0, 0
            self._left = max(1, min(int(steps), MOST_STEPS))
            self._begun, self._at_begin = time.perf_counter(), self._memory()
            Traces.tracing = self  # before it begins: another thread may begin its own meanwhile
            self._begins, self._stacks = True, stacks
            try:
                self._profiler = self._start(stacks)
                self._made += 1
                self._number += 1
                self._thread, self._lost = threading.get_ident(), False
                self._asked = by
                self._session.traced(True)
            except Exception as error:
                why = f"the profiler does not start: {type(error).__name__}: {error}"[:300]
            finally:
                self._begins = False
                if self._profiler is None:
                    Traces.tracing = None
            self._cost = time.perf_counter() - self._begun
        return self.refuse(why, first, by) if why else ""

    def refuse(self, why: str, first: int, asked: Mapping[str, Any] | None = None) -> str:
        """Tells why there is no trace from here on, and returns it; `first`: TRAIN steps so far."""
        self._tell({"refused": why, "first_step": first, **(asked or {})})
        return why

    def _refusal(self) -> str:
        if self.active or Traces.tracing is not None:
            return "a trace is being made"
        if self._made >= _MOST_TRACES:
            return f"there are {_MOST_TRACES} traces of this worker already"
        if self._bytes >= _MOST_BYTES:
            return f"the traces of this worker take {self._bytes >> 20} MiB already"
        why = self._why_not()
        if why:
            return why
        for name in _OTHERS:
            if name in os.environ:
                return f"another profiler is attached ({name} is set)"
        total, available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), _available()
        if available < max(_LEAST_MEMORY, int(_LEAST_SHARE * total)):
            return f"only {available >> 20} MiB of memory are available, of {total >> 20}"
        return ""

    def _over_budget(self, share: Any) -> str:
        if not isinstance(share, (int, float)):
            return ""
        run_s, spent_s = time.monotonic() - self._since_s, self._spent_s + (self._last_s or _FIRST_S)
        if spent_s <= share * run_s:
            return ""
        return (
            f"it would take traces to {spent_s:.1f} s, more than {100 * share:g} % of the run's {run_s:.0f} s"
        )

    def step_ended(self, steps: int = 1) -> bool:
        """Counts steps. Returns False when the trace has ended, early if it takes long or much, or memory is scarce."""
        self._done += steps
        self._left -= steps
        self._passes = 0
        if not self._ends_here() or (self._left > 0 and self._may_go_on() and self._holds_one_more()):
            return True
        self.end()
        return False

    def _holds_one_more(self) -> bool:
        """Whether another step like those that were traced stays within the bounds."""
        events = self._events()
        if events + events // max(self._done, 1) > _MOST_EVENTS:
            return False
        resident = self._memory()
        if self._after_first == 0:  # the first one may take memory for good
            self._after_first = resident
        return resident - self._after_first < _MOST_GROWTH

    def look_here(self) -> None:
        """Ends the trace within a step that takes long or records much. Looks twice a second, however often called."""
        now = time.perf_counter()
        if self._begins or now - self._looked < LOOKS_EVERY_S or not (self.is_here() and self._ends_here()):
            return
        self._looked = now
        if not self._may_go_on():
            self.end()

    def compiles(self) -> None:
        """Called when the framework begins to compile: with functions of Python, it would record all of that."""
        if self._stacks and self.is_here() and self._ends_here():
            self.end()

    def other_step_ended(self) -> None:
        """Called when another training of this process has ended a step: this one may never go on."""
        here = threading.get_ident() == self._thread and self._ends_here()
        if here and (not self.active or not self._may_go_on()):
            self.end()

    def evaluates(self) -> None:
        """Called before a forward pass that trains nothing: however many there are, no step that is counted ends."""
        here = threading.get_ident() == self._thread and self._ends_here()
        if here and not (self.active and self._may_go_on() and self._fits()):
            self.end()

    def _fits(self) -> bool:
        """Whether the memory of the process has grown little since the first of these forward passes."""
        self._passes += 1
        resident = self._memory()
        if self._passes <= 2:  # the first one may take memory for good
            self._resident = resident
        return resident - self._resident < _MOST_GROWTH

    @staticmethod
    def _memory() -> int:
        """Returns the bytes that this process takes; 0 if that cannot be read."""
        try:
            return resident_memory()
        except (OSError, ValueError, IndexError):
            return 0

    def _may_go_on(self) -> bool:
        passed_s = time.perf_counter() - self._begun
        most_s = min(_MOST_SECONDS, _MOST_SECONDS_OF_PYTHON) if self._stacks else _MOST_SECONDS
        if self._lost or passed_s >= most_s or self._events() > _MOST_EVENTS:
            return False
        # Within a step, memory also grows by what the step holds.
        recorded = min(self._memory() - self._at_begin, _BYTES_A_SECOND * passed_s)
        return _available() >= max(_LEAST_MEMORY // 2, _TO_WRITE * recorded)

    def give_way(self) -> None:
        """Called before another profiler begins, in the thread that begins it."""
        if threading.get_ident() == self._thread:
            self.end()
        else:
            self._lost = True

    def forget(self) -> None:
        """Ends, in a forked child, what its copy of the parent's thread records for the parent's trace."""
        Traces.tracing = None
        self._record_no_more()

    def end(self) -> None:
        """Ends the trace, if there is one, and writes it."""
        profiler, self._profiler = self._profiler, None
        here = threading.get_ident() == self._thread
        if here and Traces.tracing is self:  # else it may still record there
            Traces.tracing = None
            if profiler is None:  # given up in another thread
                self._record_no_more()
        if profiler is None:
            return
        self._session.traced(False)
        one: dict[str, Any] = {"first_step": self._first, "steps": self._done, **self._asked}
        if self._lost or not here or not self._runs():
            # What ends it would end the other one, or crash.
            if here:
                self._record_no_more()
            one["refused"] = "another profiler began" if here else "the training went on in another thread"
            self._tell(one)
            return
        begin = time.perf_counter()
        try:
            name = f"{self._first:09d}-{self._number - 1:02d}{self.suffix}"
            one["bytes"] = self._write(profiler, json.dumps({**self._facts, **one}), name)
            one["file"] = f"traces/{name}"
            self._bytes += one["bytes"]
        except Exception as error:
            one["refused"] = f"it cannot be written: {type(error).__name__}: {error}"[:300]
        self._last_s = self._cost + time.perf_counter() - begin
        self._spent_s += self._last_s
        one["cost_s"] = round(self._last_s, 6)
        self._tell(one)

    def _write(self, profiler: Any, facts: str, name: str) -> int:
        unfinished = os.path.join(self._folder, f"{name}.part{self.suffix}")
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
        finally:
            self._stop(profiler, facts, unfinished)  # it must not go on, whatever the disk says
        try:
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
            text = json.dumps({"traces": self._told})
            self._session.set_document("traces", text)
            with contextlib.suppress(OSError):  # for the next process: to read a run for it would take long
                _keep(self._folder + ".json", text)


def _keep(path: str, text: str) -> None:
    descriptor = os.open(f"{path}.part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.replace(f"{path}.part", path)


def _told_before(path: str) -> list[dict[str, Any]]:
    """Returns the entries of the document "traces" that an earlier process has kept; none if they cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            told = json.loads(file.read(_MOST_TOLD_BYTES))["traces"]
        return [one for one in told if isinstance(one, dict)][:_MOST_TOLD]
    except Exception:  # the traces themselves are there, and count
        return []


def keep_looking(looks: weakref.WeakMethod[Callable[[], None]], ended: threading.Event) -> None:
    """Looks whether a trace may go on, until it has ended: a training need not call Luff meanwhile."""
    while not ended.wait(LOOKS_EVERY_S):
        look = looks()
        if look is None:
            return
        look()
        del look  # else it would keep the hook alive


def _available() -> int:
    """Returns the bytes of memory that may still be taken; if that cannot be read, enough."""
    try:
        return free_memory()
    except (OSError, ValueError, IndexError):
        return 1 << 62


class WithTraces(Corrections):
    """What a training has opted into, and traces, which need no consent: its results do not change.

    Parameters
    ----------
    base
        What it has opted into.
    trace
        Begins a trace as the body of a proposal says (docs/spec/control.md); returns why not, or "".
    """

    _trace: Callable[[dict[str, Any]], str | None]

    def __init__(self, base: Corrections, trace: Callable[[dict[str, Any]], str | None]) -> None:
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
        why = self._trace(json.loads(body))
        if why or why is None:
            raise Refused(why or "nothing is recorded")


class TracedHook(BaseHook):
    """A hook whose framework has a profiler."""

    _tracer: Tracer | None = None

    def make_tracer(self, session: Session, facts: dict[str, Any]) -> Tracer | None:
        """Returns what traces; None where nothing can."""
        raise NotImplementedError

    def can_trace(self) -> bool:
        """Whether `make_tracer` returns one."""
        return True

    def _corrections(self) -> Corrections:
        allowed = super()._corrections()
        if not self.can_trace():
            return allowed
        return WithTraces(
            allowed, lambda asked: self._trace(asked["steps"], bool(asked.get("stacks", False)), asked)
        )

    def _trace(self, steps: int, stacks: bool, asked: Mapping[str, Any] | None = None) -> str | None:
        session = self.session or self.ensure_session()
        if session is None or not self.live:
            return None
        if self._tracer is None:
            rank, world = self.rank() or (0, 1)
            facts = {"rank": rank, "world_size": world, "run": session.run_path, "worker": session.worker}
            try:
                self._tracer = self.make_tracer(session, facts)
            except Exception as error:  # another version of the framework
                self.guard.note("trace", error)
                return f"the profiler of this framework cannot be used: {type(error).__name__}: {error}"[:300]
        if self._tracer is None:
            return "the profiler of this framework cannot be used"
        first = self.steps.clock.mode_steps[_TRAIN]
        if self._options.config.get("profile") == "off":
            return self._tracer.refuse('profile = "off" in the configuration', first)
        return self._tracer.begin(steps, first, stacks=stacks, asked=asked)

    def gives_way(self) -> None:
        """Called before another profiler begins: a process has one at a time."""
        tracer = self._tracer
        if tracer is not None and tracer.active:
            self.guarded("trace", tracer.give_way)

    def give_up(self, why: str) -> None:
        """Ends the run and records why the hook gives up; a trace would go on for ever."""
        self.guarded("trace", self._end_trace)
        super().give_up(why)

    def _end_trace(self) -> None:
        tracer, self._tracer = self._tracer, None
        if tracer is not None:
            tracer.end()

    def _finish(self) -> None:
        self._end_trace()
        super()._finish()

    def forked(self) -> None:
        """Leaves the parent's trace to the parent."""
        super().forked()
        self._tracer = None
        Traces.forked()
