"""Modes, phases and timers of Python profiling."""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import Enum, IntEnum
from typing import Any

from luff.compat.smdebug.profiler.profiler_constants import CPROFILE_NAME, PYINSTRUMENT_NAME

__all__ = [
    "CPROFILE_NAME",
    "PYINSTRUMENT_NAME",
    "PythonProfileModes",
    "PythonProfilerName",
    "StepPhase",
    "cProfileTimer",
    "cpu_time",
    "mode_keys_to_python_profile_mode",
    "off_cpu_time",
    "python_profile_mode_to_str",
    "str_to_python_profile_mode",
    "total_time",
]


class PythonProfileModes(IntEnum):
    """Modes of the hook, and what is before and after its steps."""

    TRAIN = 1
    EVAL = 2
    PREDICT = 3
    GLOBAL = 4
    PRE_STEP_ZERO = 5
    POST_HOOK_CLOSE = 6


class StepPhase(Enum):
    """Places at which profiling begins and ends."""

    START = "start"
    STEP_START = "stepstart"
    FORWARD_PASS_END = "forwardpassend"
    STEP_END = "stepend"
    END = "end"


class PythonProfilerName(Enum):
    """Profilers."""

    CPROFILE = CPROFILE_NAME
    PYINSTRUMENT = PYINSTRUMENT_NAME


class cProfileTimer(Enum):
    """What cProfile counts. The default counts another time in each of three steps."""

    TOTAL_TIME = "total_time"
    CPU_TIME = "cpu_time"
    OFF_CPU_TIME = "off_cpu_time"
    DEFAULT = "default"


def python_profile_mode_to_str(mode: PythonProfileModes) -> str:
    """Returns the mode as names of folders have it."""
    return PythonProfileModes(mode).name.replace("_", "").lower()


def str_to_python_profile_mode(mode_str: str) -> PythonProfileModes:
    """The reverse. Raises ValueError for another text."""
    for mode in PythonProfileModes:
        if python_profile_mode_to_str(mode) == mode_str:
            return mode
    raise ValueError(
        f"found mode {mode_str!r}, expected one of {', '.join(map(python_profile_mode_to_str, PythonProfileModes))}"
    )


def mode_keys_to_python_profile_mode(mode: Any) -> PythonProfileModes:
    """Converts a mode of the hook."""
    return PythonProfileModes(mode.value)


def total_time() -> float:
    """Returns the time that has passed since some time, in seconds."""
    return os.times().elapsed


def cpu_time() -> float:
    """Returns the CPU time of the process, in seconds."""
    times = os.times()
    return times.system + times.user


def off_cpu_time() -> float:
    """Returns the difference of both."""
    return total_time() - cpu_time()


TIMERS: dict[cProfileTimer, Callable[[], float]] = {
    cProfileTimer.TOTAL_TIME: total_time,
    cProfileTimer.CPU_TIME: cpu_time,
    cProfileTimer.OFF_CPU_TIME: off_cpu_time,
}
