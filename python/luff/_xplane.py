"""Traces a few steps with the profilers of JAX and TensorFlow, when somebody asks for it: files of XPlane.

Both write a folder for TensorBoard; what they measured, the file ``*.xplane.pb`` in it, is the trace.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from luff._codes import Mode, Phase
from luff._core import enter_phase, leave_phase
from luff._hook import Session
from luff._patch import once
from luff._step_hook import StepHook
from luff._tracer import TracedHook, Tracer, Traces, keep_looking

__all__ = ["Profiler", "TracedStepHook", "XplaneTracer", "jax_profiler", "tensorflow_profiler"]

_TRACE = int(Phase.TRACE)
_TRAIN = int(Mode.TRAIN)
_MOST_FILES = 64
_MADE = ".made-"
#: Of the process's memory between steps that count; what is held is converted when the trace ends.
_MOST_GROWTH = 128 << 20


class Profiler:
    """A framework's profiler, which a process has once."""

    #: Of the framework, for people.
    name = ""

    def __init__(self) -> None:
        self._here = threading.local()  # `ours`: Luff begins or ends it now, in this thread

    def why_not(self) -> str:
        """Returns why it cannot trace, or ""."""
        raise NotImplementedError

    def start(self, folder: str, stacks: bool) -> None:
        """Begins to trace."""
        raise NotImplementedError

    def stop(self) -> None:
        """Ends, and writes into the folder."""
        raise NotImplementedError

    def runs(self) -> bool:
        """Returns whether it traces, for anybody."""
        raise NotImplementedError

    def give_up(self) -> None:
        """Leaves what `stop` could not end, so that the training can begin its own."""

    def prints(self) -> str:
        """Returns what a trace prints that Luff cannot keep back, or ""."""
        return ""

    def no_stacks(self) -> str:
        """Returns why functions of Python cannot be traced, or ""."""
        return ""

    def of_ours(self, function: Callable[[], None]) -> None:
        """Calls a function that begins or ends a trace of Luff."""
        self._here.active = True
        try:
            function()
        finally:
            self._here.active = False

    def gives_way(self) -> None:
        """Called before the training uses the profiler, in any thread: that has precedence."""
        tracing = Traces.tracing
        if (
            isinstance(tracing, XplaneTracer)
            and tracing.profiler is self
            and not getattr(self._here, "active", False)
        ):
            tracing.yields()


class _YieldingLock:
    """The lock that a framework takes before it begins or ends a trace, in whichever way it was called.

    Whoever holds a function of the framework since before Luff's first trace passes here, too.
    """

    def __init__(self, lock: Any, before: Callable[[], None]) -> None:
        self._lock, self._before = lock, before

    def __enter__(self) -> Any:
        self._before()
        return self._lock.__enter__()

    def __exit__(self, *error: object) -> Any:
        return self._lock.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)


class _Jax(Profiler):
    name = "JAX"

    def __init__(self) -> None:
        import jax.profiler
        from jax._src import profiler

        super().__init__()
        self._public, self._inner = jax.profiler, profiler
        state = getattr(profiler, "_profile_state", None)
        self._yields = hasattr(state, "lock")
        if state is not None and self._yields:
            state.lock = _YieldingLock(state.lock, self.gives_way)

    def why_not(self) -> str:
        if not hasattr(self._public, "ProfileOptions") or not self._yields:
            return "the profiler of this version of JAX would trace Python, too"
        return "another profiler of JAX is active" if self.runs() else ""

    def start(self, folder: str, stacks: bool) -> None:
        options = self._public.ProfileOptions()
        options.python_tracer_level = int(stacks)
        self._public.start_trace(folder, profiler_options=options)

    def stop(self) -> None:
        self._public.stop_trace()

    def runs(self) -> bool:
        return self._inner._profile_state.profile_session is not None

    def give_up(self) -> None:
        self._inner._profile_state.reset()  # JAX keeps what it could not write


class _TensorFlow(Profiler):
    name = "TensorFlow"

    def __init__(self) -> None:
        import tensorflow as tf
        from tensorflow.python.profiler import profiler_v2

        super().__init__()
        self._public, self._inner = tf.profiler.experimental, profiler_v2
        self._yields = hasattr(profiler_v2, "_profiler_lock") and hasattr(profiler_v2, "_profiler")
        if self._yields:
            profiler_v2._profiler_lock = _YieldingLock(profiler_v2._profiler_lock, self.gives_way)

    def why_not(self) -> str:
        if not self._yields:
            return "the profiler of this version of TensorFlow does not say whether it is active"
        return "another profiler of TensorFlow is active" if self.runs() else ""

    def start(self, folder: str, stacks: bool) -> None:
        del stacks  # see `no_stacks`
        try:
            self._public.start(folder)  # with options it prints four lines more, and takes none of them
        except BaseException:
            self._inner._profiler = None  # `why_not` has seen none; TensorFlow may keep the one that failed
            raise

    def prints(self) -> str:
        # Not `os.environ`: Keras sets the variable there after TensorFlow has read it.
        try:
            variables = Path("/proc/self/environ").read_bytes().split(b"\0")
        except OSError:
            variables = []
        quiet = any(b"TF_CPP_MIN_LOG_LEVEL=%d" % level in variables for level in (1, 2, 3))
        return (
            ""
            if quiet
            else "TensorFlow prints lines for each trace unless it starts with TF_CPP_MIN_LOG_LEVEL=1"
        )

    def no_stacks(self) -> str:
        return "TensorFlow's profiler does not trace functions of Python"

    def stop(self) -> None:
        self._public.stop()

    def runs(self) -> bool:
        return self._inner._profiler is not None


_made: dict[str, Profiler] = {}


@once
def _make(name: str, make: Callable[[], Profiler]) -> None:
    _made[name] = make()


def jax_profiler() -> Profiler:
    """Returns that of JAX; the first call wraps the lock that a training passes to begin its own."""
    _make("jax", _Jax)
    return _made["jax"]


def tensorflow_profiler() -> Profiler:
    """Returns that of TensorFlow; the first call wraps the lock that a training passes to begin its own."""
    _make("tensorflow", _TensorFlow)
    return _made["tensorflow"]


class XplaneTracer(Tracer):
    """Traces with a profiler that writes XPlane.

    Parameters
    ----------
    profiler
        `jax_profiler()` or `tensorflow_profiler()`.
    gives_way
        Of the hook: ends the trace, guarded.
    looks
        Of the hook: calls `look`, guarded.
    """

    suffix = ".xplane.pb"
    #: How many traces of this kind the process has begun, of all trainings: each holds what all threads do.
    begun: ClassVar[int] = 0

    def __init__(
        self,
        session: Session,
        facts: dict[str, Any],
        since_s: float,
        profiler: Profiler,
        gives_way: Callable[[], None],
        looks: Callable[[], None],
    ) -> None:
        super().__init__(session, session.run_path, facts, since_s)
        self.profiler = profiler
        # A trace must not keep its training's hook alive: `Traces.tracing` and the thread that looks hold the tracer.
        self._gives_way, self._looks = weakref.WeakMethod(gives_way), weakref.WeakMethod(looks)
        self._ended = threading.Event()
        self._began_in = self._seen_done = 0
        self._made_in = ""
        for left in Path(self._folder).glob(_MADE + "*"):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)

    def yields(self) -> None:
        """Ends the trace, because the training begins its own."""
        gives_way = self._gives_way()
        if gives_way is None:
            self.end()
        else:
            gives_way()

    def begin(
        self, steps: int, first: int, *, stacks: bool = False, asked: Mapping[str, Any] | None = None
    ) -> str:
        """See `Tracer.begin`. What an action asks for must not print; a person may want it nevertheless."""
        asked = asked or {}
        why = self.profiler.prints() if "finding" in asked else ""
        why = why or (self.profiler.no_stacks() if stacks else "")
        if why:
            return self.refuse(why, first, {k: str(asked[k])[:64] for k in ("finding", "rule") if k in asked})
        return super().begin(steps, first, stacks=stacks, asked=asked)

    def _why_not(self) -> str:
        return self.profiler.why_not()

    def _start(self, stacks: bool) -> Any:
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        self._made_in = folder = tempfile.mkdtemp(dir=self._folder, prefix=_MADE)
        self._ended = threading.Event()
        self._began_in, self._seen_done = threading.get_ident(), -1
        XplaneTracer.begun += 1
        try:
            threading.Thread(
                target=keep_looking, args=(self._looks, self._ended), name="luff-trace", daemon=True
            ).start()
            self._ours(lambda: self.profiler.start(folder, stacks))
        except BaseException:
            self._ended.set()
            self._clear()
            raise
        return folder

    def look(self) -> None:
        """Ends the trace if it has taken long or much memory, whatever the training does meanwhile."""
        if self.active and not (self._may_go_on() and self._grows_little()):
            self.end()

    def _grows_little(self) -> bool:
        resident = self._memory()
        if self._seen_done != self._done:  # steps may take memory of their own
            self._seen_done, self._resident = self._done, resident
        return resident - self._resident < _MOST_GROWTH

    def _stop(self, profiler: Any, facts: str, path: str) -> None:
        try:
            self._ours(self.profiler.stop)
        except BaseException:
            self.profiler.give_up()
            raise
        found = sorted(Path(profiler).rglob("*.xplane.pb"))[:_MOST_FILES]
        if len(found) != 1:
            raise FileNotFoundError(f"the profiler of {self.profiler.name} has written {len(found)} files")
        with open(found[0], "ab") as file:
            file.write(_plane_of(facts))
        os.rename(found[0], path)

    def _runs(self) -> bool:
        return self.profiler.runs()

    def give_way(self) -> None:
        """Called before another profiler begins, in any thread."""
        self.end()

    def end(self) -> None:
        """Ends the trace, if there is one, and writes it; unlike PyTorch's it can be ended by any thread."""
        if self.active:
            self._thread = threading.get_ident()
        self._ended.set()
        try:
            super().end()
        finally:
            self._clear()

    def _clear(self) -> None:
        folder, self._made_in = self._made_in, ""
        if folder:
            shutil.rmtree(folder, ignore_errors=True)

    def _ours(self, function: Callable[[], None]) -> None:
        in_phase = threading.get_ident() == self._began_in  # another thread has no phases
        if in_phase:
            enter_phase(_TRACE)
        try:
            self.profiler.of_ours(function)
        finally:
            if in_phase:
                leave_phase(_TRACE)


def _plane_of(facts: str) -> bytes:
    """Returns a plane without events whose name holds `facts`, as a further member of an XSpace."""
    name = ("luff " + facts).encode()
    plane = b"\x12" + _varint(len(name)) + name
    return b"\x0a" + _varint(len(plane)) + plane


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


class TracedStepHook(TracedHook, StepHook):
    """A `StepHook` whose steps can be traced with the profiler of JAX or TensorFlow."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._traces_seen = XplaneTracer.begun  # of all trainings of the process
        self._beside = False  # another training's trace was being made at the last look

    def profiler(self) -> Callable[[], Profiler] | None:
        """Returns what makes the framework's profiler; None where there is none."""
        raise NotImplementedError

    def can_trace(self) -> bool:
        """Whether there is a profiler."""
        return self.profiler() is not None

    def make_tracer(self, session: Session, facts: dict[str, Any]) -> Tracer | None:
        """Returns what traces with it."""
        profiler = self.profiler()
        if profiler is None:
            return None
        return XplaneTracer(session, facts, self.opened_s, profiler(), self.gives_way, self.look_at_trace)

    def trace(self, steps: int = 3, *, stacks: bool = False) -> str:
        """Traces from here until `steps` TRAIN steps have ended; see `luff.trace`. Returns why not, or ""."""
        if not self.can_trace():
            return "this backend of Keras has no profiler that Luff can use"
        why = self.told("trace", self._trace, steps, stacks)
        return "the training is not recorded, or this thread does not train" if why is None else str(why)

    def _trace(self, steps: int, stacks: bool, asked: Mapping[str, Any] | None = None) -> str | None:
        self.publish()  # steps that are held are not traced
        before = XplaneTracer.begun
        why = super()._trace(steps, stacks, asked)
        if XplaneTracer.begun != before:
            self._traces_seen += 1  # it marks its own steps
        return why

    def gives_way(self) -> None:
        """Called before the training uses the profiler itself, in any thread: waits for a trace that begins."""
        self.guarded("trace", self._yield_trace)

    def _yield_trace(self) -> None:
        tracer = self._tracer
        if tracer is not None and tracer.active:
            self._count(tracer)
            tracer.give_way()

    def look_at_trace(self) -> None:
        """Ends a trace that has taken long or much memory; called in a thread of Luff's."""
        self.guarded("trace", self._look_at_trace)

    def _look_at_trace(self) -> None:
        tracer = self._tracer
        if isinstance(tracer, XplaneTracer) and tracer.active:
            self._count(tracer)
            tracer.look()

    def boundary(self) -> None:
        """Counts traced steps, and does what `StepHook.boundary` does.

        Raises
        ------
        StopTraining
            If a finding stops the run.
        """
        tracer = self._tracer
        if tracer is not None and tracer.active and tracer.is_here():
            self.guarded("trace", self._publish_and_count, tracer)
        super().boundary()

    def told(self, place: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Does what `StepHook.told` does, and marks steps while another training is traced."""
        if self._traces_seen == XplaneTracer.begun:
            return super().told(place, function, *arguments)
        return super().told(place, self._marked, function, arguments)

    def _marked(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Called in the thread that trains."""
        self.guarded("trace", self._mark_traced)
        return function(*arguments)

    def _mark_traced(self) -> None:
        """Marks steps from here on while another training is traced, and the one in which that ends.

        The profiler traces whatever trains in the process.
        """
        session, tracing = self.session, Traces.tracing
        if tracing is None:
            self._traces_seen = XplaneTracer.begun
        if session is None or (tracing is not None and tracing is self._tracer):
            return
        if not self._beside:
            self.publish()  # steps that are held ended before it began
        self._beside = tracing is not None
        session.traced(True)
        if tracing is None:
            self.publish()
            session.traced(False)

    def _publish_and_count(self, tracer: Tracer) -> None:
        self.publish()
        self._count(tracer)

    def _count(self, tracer: Tracer) -> None:
        """Counts the steps that have ended since it last did: a boundary may also stand before a step."""
        more = self.steps.clock.mode_steps[_TRAIN] - tracer.next_step
        if more > 0:
            tracer.step_ended(more)

    def _end_trace(self) -> None:
        if self._tracer is not None and self._tracer.active:
            self._count(self._tracer)
        super()._end_trace()
