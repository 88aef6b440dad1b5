"""One profile of Python functions, and the functions in it."""

from __future__ import annotations

import pstats
from enum import Enum
from typing import Any

from luff.compat.smdebug.profiler.python_profile_utils import (
    PythonProfileModes,
    StepPhase,
    str_to_python_profile_mode,
)

__all__ = [
    "Metrics",
    "PyinstrumentStepStats",
    "StepPythonProfileStats",
    "cProfileFunctionStats",
    "cProfileStats",
]


class Metrics(Enum):
    """What functions are ordered by."""

    TOTAL_TIME = "tottime"
    CUMULATIVE_TIME = "cumtime"
    PRIMITIVE_CALLS = "pcalls"
    TOTAL_CALLS = "ncalls"


class StepPythonProfileStats:
    """Where a profile begins and ends, as the name of its folder says.

    Steps are -1 before the first one and infinity after the last; times are microseconds since 1970.

    Raises ValueError for another name.
    """

    def __init__(
        self, framework: str, profiler_name: str, node_id: str, stats_dir: str, stats_path: str
    ) -> None:
        halves = [half.split("-") for half in stats_dir.split("_")]
        if len(halves) != 2 or any(len(half) != 4 for half in halves):
            raise ValueError(
                f"found a folder {stats_dir!r}, expected MODE-STEP-PHASE-TIME_MODE-STEP-PHASE-TIME"
            )
        begin, end = halves
        self.profiler_name = profiler_name
        self.framework = framework
        self.node_id = node_id
        self.start_mode = str_to_python_profile_mode(begin[0])
        self.start_step: float = -1 if begin[1] == "*" else int(begin[1])
        self.start_phase = StepPhase(begin[2])
        self.start_time_since_epoch_in_micros = float(begin[3])
        self.end_mode = str_to_python_profile_mode(end[0])
        self.end_step: float = float("inf") if end[1] == "*" else int(end[1])
        self.end_phase = StepPhase(end[2])
        self.end_time_since_epoch_in_micros = float(end[3])
        self.stats_path = stats_path

    def has_start_and_end_mode(self, start_mode: PythonProfileModes, end_mode: PythonProfileModes) -> bool:
        """Returns whether it begins and ends in these modes."""
        return (self.start_mode, self.end_mode) == (start_mode, end_mode)

    def in_time_interval(self, start: float, end: float) -> bool:
        """Returns whether it begins or ends between two times in microseconds."""
        return (
            start <= self.start_time_since_epoch_in_micros <= end
            or start <= self.end_time_since_epoch_in_micros <= end
        )

    def in_step_interval(
        self, start_step: float, end_step: float, start_phase: StepPhase, end_phase: StepPhase
    ) -> bool:
        """Returns whether it lies between two places of the training."""
        if start_step < self.start_step and end_step > self.end_step:
            return True
        if start_step > self.start_step or end_step < self.end_step:
            return False
        late = start_phase in (StepPhase.STEP_END, StepPhase.FORWARD_PASS_END)
        if start_step == self.start_step and late and self.start_phase is not start_phase:
            return False
        early = end_phase is StepPhase.STEP_START
        return not (end_step == self.end_step and early and self.end_phase is not end_phase)

    def has_pre_step_zero_profile_stats(self) -> bool:
        """Returns whether it begins before the first step."""
        return self.start_phase is StepPhase.START

    def has_post_hook_close_profile_stats(self) -> bool:
        """Returns whether it ends with the program."""
        return self.end_phase is StepPhase.END

    def has_node_id(self, node_id: str) -> bool:
        """Returns whether it is of this node."""
        return self.node_id == node_id

    def __repr__(self) -> str:
        return repr(self.__dict__)


class cProfileFunctionStats:
    """One function: calls, seconds in it, seconds in it and in what it calls, and who calls it."""

    def __init__(
        self, key: tuple[str, int, str], value: tuple[int, int, float, float, dict[Any, Any]]
    ) -> None:
        self.function_name = pstats.func_std_string(key)  # type: ignore[attr-defined]
        self.prim_calls, self.total_calls, self.total_time, self.cumulative_time, callers = value
        self.callers = [pstats.func_std_string(caller) for caller in callers]  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return repr(
            {
                "function name": self.function_name,
                "# of primitive calls": self.prim_calls,
                "# of total calls": self.total_calls,
                "total time": self.total_time,
                "cumulative time": self.cumulative_time,
            }
        )


class cProfileStats:
    """The functions of one profile or several.

    Attributes
    ----------
    ps
        The `pstats.Stats`.
    function_stats_list
        The functions.
    """

    def __init__(self, ps: pstats.Stats) -> None:
        self.ps = ps
        found: dict[Any, Any] = ps.stats  # type: ignore[attr-defined]
        self.function_stats_list = [cProfileFunctionStats(key, value) for key, value in found.items()]

    def print_top_n_functions(self, by: Metrics, n: int = 10) -> None:
        """Prints the first functions in this order."""
        if not isinstance(by, Metrics):
            raise TypeError(f"found {by!r}, expected one of Metrics, e.g. Metrics.TOTAL_TIME")
        self.ps.sort_stats(by.value).print_stats(int(n))

    def get_function_stats(self) -> Any:
        """Returns the functions as a table."""
        import pandas as pd

        return pd.DataFrame(
            [
                {
                    "function_name": one.function_name,
                    "prim_calls": one.prim_calls,
                    "total_calls": one.total_calls,
                    "total_time": one.total_time,
                    "cumulative_time": one.cumulative_time,
                }
                for one in self.function_stats_list
            ]
        )


class PyinstrumentStepStats:
    """One profile of pyinstrument: path of its page, and its tree."""

    def __init__(self, html_file_path: str | None, json_stats: Any) -> None:
        self.html_file_path = html_file_path
        self.json_stats = json_stats
