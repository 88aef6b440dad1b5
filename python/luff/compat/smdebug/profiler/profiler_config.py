"""What a profiler's configuration asks for."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from luff.compat.smdebug.profiler.profiler_constants import (
    CPROFILE_NAME,
    PROFILING_NUM_STEPS_DEFAULT,
    PYINSTRUMENT_NAME,
)
from luff.compat.smdebug.profiler.python_profile_utils import cProfileTimer

__all__ = [
    "DataloaderProfilingConfig",
    "DetailedProfilingConfig",
    "ProfileRange",
    "ProfilerConfig",
    "PythonProfilingConfig",
    "RotationPolicy",
    "SMDataParallelProfilingConfig",
    "TraceFile",
]

_MOST_EXPRESSION = 1000  # characters


class RotationPolicy:
    """When a timeline's file is finished: beyond a size in bytes, and after a time in seconds."""

    def __init__(self, file_max_size: int, file_close_interval: float) -> None:
        self.file_max_size = file_max_size
        self.file_close_interval = file_close_interval


class TraceFile:
    """The files of timelines. After so many failures in a row none is written."""

    def __init__(self, file_max_size: int, file_close_interval: float, file_open_fail_threshold: int) -> None:
        self.rotation_policy = RotationPolicy(file_max_size, file_close_interval)
        self.file_open_fail_threshold = file_open_fail_threshold


class ProfileRange:
    """Steps, or a time, in which something is profiled.

    Parameters
    ----------
    name
        What is profiled, for messages.
    profile_range
        ``startstep``, ``numsteps``, or ``starttimeinsecsinceepoch``, ``durationinseconds``. Nothing: not at all.
    """

    def __init__(self, name: str, profile_range: Mapping[str, Any]) -> None:
        self.name = name
        self.error_message: str | None = None
        self.disabled = not profile_range
        self.start_step: int | None = None
        self.num_steps: int | None = None
        self.start_time_in_sec: float | None = None
        self.duration_in_sec: float | None = None
        self.end_step: int | None = None
        self.end_time: float | None = None
        if self.disabled:
            return

        def number(key: str, kind: type) -> Any:
            found = profile_range.get(key)
            return None if found is None else kind(found)

        try:
            self.start_step = number("startstep", int)
            self.num_steps = number("numsteps", int)
            self.start_time_in_sec = number("starttimeinsecsinceepoch", float)
            self.duration_in_sec = number("durationinseconds", float)
        except (TypeError, ValueError, OverflowError) as error:
            self._disable(f"{name}: {error}; it is off")
            return
        if self.has_step_range() and self.has_time_range():
            self.error_message = f"{name}: found steps and a time, expected one of them; it is off"

    def _disable(self, message: str) -> None:
        self.error_message = message
        self.start_step = self.num_steps = self.start_time_in_sec = self.duration_in_sec = None

    def has_step_range(self) -> bool:
        """Returns whether it is given by steps."""
        return self.start_step is not None or bool(self.num_steps)

    def has_time_range(self) -> bool:
        """Returns whether it is given by a time."""
        return self.start_time_in_sec is not None or bool(self.duration_in_sec)

    def is_enabled(self) -> bool:
        """Returns whether it was asked for, and well."""
        return not self.disabled and self.error_message is None

    def can_start_profiling(self, current_step: int | str, current_time: float | None = None) -> bool:
        """Returns whether this step is profiled. A range without a begin begins with the first question."""
        if not self.is_enabled():
            return False
        now = time.time() if current_time is None else current_time
        if self.has_step_range():
            if isinstance(current_step, str):  # "*": before the first step or after the last
                return True
            if self.start_step is None:
                self.start_step = current_step
            if self.num_steps is None:
                self.num_steps = PROFILING_NUM_STEPS_DEFAULT
            if self.end_step is None:
                self.end_step = self.start_step + self.num_steps
            return self.start_step <= current_step < self.end_step
        if not self.has_time_range():
            return False
        if self.start_time_in_sec is None:
            self.start_time_in_sec = now
        if self.duration_in_sec:
            if self.end_time is None:
                self.end_time = self.start_time_in_sec + self.duration_in_sec
            return self.start_time_in_sec <= now < self.end_time
        if now < self.start_time_in_sec or isinstance(current_step, str):
            return False
        if self.end_step is None:  # a begin alone: one step
            self.end_step = current_step + 1
        return current_step < self.end_step


class DetailedProfilingConfig(ProfileRange):
    """Times of modules."""

    def __init__(self, detailed_profiling_config: Mapping[str, Any]) -> None:
        super().__init__("detailed profiling", detailed_profiling_config)


class DataloaderProfilingConfig(ProfileRange):
    """Events of data loaders, by their names."""

    def __init__(self, dataloader_config: Mapping[str, Any]) -> None:
        super().__init__("dataloader profiling", dataloader_config)
        self.metrics_regex: re.Pattern[str] | None = None
        if self.error_message:
            return
        text = str(dataloader_config.get("metricsregex", ".*")).lower()
        try:
            if len(text) > _MOST_EXPRESSION:
                raise re.error(f"found an expression of {len(text)} characters")
            self.metrics_regex = re.compile(text)
        except re.error as error:
            self._disable(f"{self.name}: {error}; it is off")

    def valid_metrics_name(self, metrics_name: str) -> bool:
        """Returns whether events of this name are wanted."""
        return self.metrics_regex is not None and self.metrics_regex.match(metrics_name.lower()) is not None


class PythonProfilingConfig(ProfileRange):
    """Python functions."""

    def __init__(self, python_profiling_config: Mapping[str, Any]) -> None:
        super().__init__("python profiling", python_profiling_config)
        self.profiler_name: str | None = None
        self.cprofile_timer: cProfileTimer | None = None
        if self.error_message:
            return
        name = str(python_profiling_config.get("profilername", CPROFILE_NAME)).lower()
        if name not in (CPROFILE_NAME, PYINSTRUMENT_NAME):
            self._disable(
                f"{self.name}: found profiler {name!r}, expected {CPROFILE_NAME} or {PYINSTRUMENT_NAME}; it is off"
            )
            return
        if name == CPROFILE_NAME:
            timer = str(python_profiling_config.get("cprofiletimer", cProfileTimer.TOTAL_TIME.value)).lower()
            try:
                self.cprofile_timer = cProfileTimer(timer)
            except ValueError as error:
                self._disable(f"{self.name}: {error}; it is off")
                return
        self.profiler_name = name


class SMDataParallelProfilingConfig(ProfileRange):
    """SageMaker's data parallelism."""

    def __init__(self, smdataparallel_profiling_config: Mapping[str, Any]) -> None:
        super().__init__("smdataparallel profiling", smdataparallel_profiling_config)


class ProfilerConfig:
    """All of it."""

    def __init__(
        self,
        local_path: str,
        file_max_size: int,
        file_close_interval: float,
        file_open_fail_threshold: int,
        detailed_profiling_config: Mapping[str, Any] | None = None,
        dataloader_profiling_config: Mapping[str, Any] | None = None,
        python_profiling_config: Mapping[str, Any] | None = None,
        smdataparallel_profiling_config: Mapping[str, Any] | None = None,
    ) -> None:
        self.local_path = local_path
        self.trace_file = TraceFile(file_max_size, file_close_interval, file_open_fail_threshold)
        self.detailed_profiling_config = DetailedProfilingConfig(detailed_profiling_config or {})
        self.dataloader_profiling_config = DataloaderProfilingConfig(dataloader_profiling_config or {})
        self.python_profiling_config = PythonProfilingConfig(python_profiling_config or {})
        self.smdataparallel_profiling_config = SMDataParallelProfilingConfig(
            smdataparallel_profiling_config or {}
        )
