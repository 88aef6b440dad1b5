"""Traces a few steps with the profilers of JAX and TensorFlow, when somebody asks for it: files of XPlane.

Both write a folder for TensorBoard; what they measured, the file ``*.xplane.pb`` in it, is the trace.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from luff._codes import Mode, Phase
from luff._core import enter_phase, leave_phase
from luff._hook import Session
from luff._patch import Method, once, wrap
from luff._step_hook import StepHook
from luff._tracer import TracedHook, Tracer, Traces

__all__ = ["Profiler", "TracedStepHook", "XplaneTracer", "jax_profiler", "tensorflow_profiler"]

_TRACE = int(Phase.TRACE)
_MOST_FILES = 64


class Profiler:
    """A framework's profiler, which a process has once."""

    #: Of the framework, for people.
    name = ""
    #: Luff begins it now.
    ours = False

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

    def gives_way(self, original: Method) -> Method:
        """Returns a wrapper of the function that begins a trace of the training's own: that has precedence."""

        def start(*args: Any, **kwargs: Any) -> Any:
            tracing = Traces.tracing
            if not self.ours and isinstance(tracing, XplaneTracer) and tracing.profiler is self:
                tracing.yields()
            return original(*args, **kwargs)

        return start


class _Jax(Profiler):
    name = "JAX"

    def __init__(self) -> None:
        import jax.profiler
        from jax._src import profiler

        self._public, self._inner = jax.profiler, profiler
        wrap(profiler, "start_trace", self.gives_way, also=(jax.profiler,))

    def why_not(self) -> str:
        if not hasattr(self._public, "ProfileOptions") or not hasattr(self._inner, "_profile_state"):
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

        self._public, self._inner = tf.profiler.experimental, profiler_v2
        wrap(profiler_v2, "start", self.gives_way, also=(self._public,))

    def why_not(self) -> str:
        if not hasattr(self._inner, "_profiler"):
            return "the profiler of this version of TensorFlow does not say whether it is active"
        return "another profiler of TensorFlow is active" if self.runs() else ""

    def start(self, folder: str, stacks: bool) -> None:
        self._public.start(folder, self._public.ProfilerOptions(python_tracer_level=int(stacks)))

    def stop(self) -> None:
        self._public.stop()

    def runs(self) -> bool:
        return self._inner._profiler is not None


_made: dict[str, Profiler] = {}


@once
def _make(name: str, make: Callable[[], Profiler]) -> None:
    _made[name] = make()


def jax_profiler() -> Profiler:
    """Returns that of JAX; the first call wraps the function by which a training begins its own."""
    _make("jax", _Jax)
    return _made["jax"]


def tensorflow_profiler() -> Profiler:
    """Returns that of TensorFlow; the first call wraps the function by which a training begins its own."""
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
    """

    suffix = ".xplane.pb"

    def __init__(
        self,
        session: Session,
        facts: dict[str, Any],
        since_s: float,
        profiler: Profiler,
        gives_way: Callable[[], None],
    ) -> None:
        super().__init__(session, session.run_path, facts, since_s)
        self.profiler = profiler
        self.yields = gives_way
        self._made_in = ""

    def _why_not(self) -> str:
        return self.profiler.why_not()

    def _start(self, stacks: bool) -> Any:
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        self._made_in = folder = tempfile.mkdtemp(dir=self._folder, prefix=".made-")
        try:
            self._ours(lambda: self.profiler.start(folder, stacks))
        except BaseException:
            self._clear()
            raise
        return folder

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
        try:
            super().end()
        finally:
            self._clear()

    def _clear(self) -> None:
        folder, self._made_in = self._made_in, ""
        if folder:
            shutil.rmtree(folder, ignore_errors=True)

    def _ours(self, function: Callable[[], None]) -> None:
        enter_phase(_TRACE)
        self.profiler.ours = True
        try:
            function()
        finally:
            self.profiler.ours = False
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
        return XplaneTracer(session, facts, self.opened_s, profiler(), self.gives_way)

    def trace(self, steps: int = 3, *, stacks: bool = False) -> str:
        """Traces from here until `steps` TRAIN steps have ended; see `luff.trace`. Returns why not, or ""."""
        if not self.can_trace():
            return "this backend of Keras has no profiler that Luff can use"
        why = self.told("trace", self._trace, steps, stacks)
        return "the training is not recorded, or this thread does not train" if why is None else str(why)

    def _trace(self, steps: int, stacks: bool, asked: Mapping[str, Any] | None = None) -> str | None:
        self.publish()  # steps that are held are not traced
        return super()._trace(steps, stacks, asked)

    def told(self, place: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Does what `StepHook.told` does, and looks whether a trace may go on: evaluations end no step that counts."""
        tracer = self._tracer
        if tracer is not None and tracer.active:
            self.guarded("trace", tracer.evaluates)
        return super().told(place, function, *arguments)

    def boundary(self) -> None:
        """Counts traced steps, and does what `StepHook.boundary` does.

        Raises
        ------
        StopTraining
            If a finding stops the run.
        """
        tracer = self._tracer
        if tracer is not None and tracer.active and tracer.is_here():
            self.guarded("trace", self._count, tracer)
        super().boundary()

    def _count(self, tracer: Tracer) -> None:
        self.publish()
        more = self.steps.clock.mode_steps[int(Mode.TRAIN)] - tracer.next_step
        tracer.step_ended(max(more, 1))
