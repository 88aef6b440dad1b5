"""What a hook does while a profiler is on: timelines of steps and modules, profiles of Python functions."""

from __future__ import annotations

import time
from typing import Any

from luff.compat.smdebug.profiler.profiler_config_parser import MetricsCategory, ProfilerConfigParser

__all__ = ["HookProfile"]

_STEP, _FORWARD, _INNER = "Step:ModeKeys.", "Forward", "Forward-SubModuleInternal"


class HookProfile:
    """Follows the steps of one hook. Without a configuration it does nothing.

    A step's event is written when the next step begins. It ends with the last module that ran, or, where the framework
    tells of none, with the begin of the next step.
    """

    def __init__(self, hook: Any, parser: ProfilerConfigParser) -> None:
        self._hook = hook
        self._parser = parser
        self._step: tuple[float, str, int] | None = None  # begin, mode, number
        self._mode: Any = None
        self._seen = 0.0  # end of the last module
        self._root: str | None = None
        self._detailed = False
        parser.start_pre_step_zero_python_profiling()

    def step_begins(self, mode: Any, number: int) -> None:
        """A step begins."""
        self._finish()
        self._parser.load_config()
        if not self._parser.profiling_enabled:
            return
        self._mode = mode
        self._step = (time.time(), mode.name, number)
        self._seen, self._root = 0.0, None
        self._detailed = self._parser.should_save_metrics(MetricsCategory.DETAILED_PROFILING, number)
        self._parser.handle_step_start_python_profiling(mode, number)

    def module_ran(self, name: str, root: bool) -> None:
        """A module has computed its outputs."""
        if self._step is None:
            return
        begin, _, number = self._step
        now = time.time()
        if root:
            self._record(begin, _FORWARD, name, now)
            self._parser.handle_forward_pass_end_python_profiling(self._mode, number)
        elif self._detailed:  # a module is taken to begin when the one before it has ended
            self._record(self._seen or begin, _INNER, name, now)
        self._seen = now

    def _record(self, begin: float, phase: str, name: str, end: float) -> None:
        if self._step is not None:
            self._hook.record_trace_events(
                begin, phase, name, duration=max(end - begin, 0.0), step_num=str(self._step[2])
            )

    def _finish(self) -> None:
        if self._step is not None:
            begin, mode, _ = self._step
            self._record(begin, _STEP + mode, _STEP + mode, self._seen or time.time())
            self._step = None

    def close(self) -> None:
        """The hook is closed."""
        self._finish()
        if self._parser.python_profiler is not None:
            from luff.compat.smdebug.profiler.python_profile_utils import StepPhase

            self._parser.python_profiler.stop_profiling(StepPhase.END)
