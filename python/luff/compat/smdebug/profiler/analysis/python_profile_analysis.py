"""Gives the profiles of Python functions of a part of the training."""

from __future__ import annotations

import os
import pstats
from collections.abc import Callable
from typing import Any

from luff._bounded import parse_json, read_regular
from luff.compat.smdebug.core.access_layer.s3 import no_s3
from luff.compat.smdebug.core.logger import get_logger
from luff.compat.smdebug.profiler.analysis.python_stats_reader import LocalPythonStatsReader
from luff.compat.smdebug.profiler.analysis.utils.python_profile_analysis_utils import (
    PyinstrumentStepStats,
    StepPythonProfileStats,
    cProfileStats,
)
from luff.compat.smdebug.profiler.profiler_constants import (
    CONVERT_TO_MICROSECS,
    CPROFILE_NAME,
    PYINSTRUMENT_JSON_FILENAME,
    PYINSTRUMENT_NAME,
)
from luff.compat.smdebug.profiler.python_profile_utils import (
    PythonProfileModes,
    StepPhase,
    python_profile_mode_to_str,
)

__all__ = ["PyinstrumentAnalysis", "PythonProfileAnalysis", "cProfileAnalysis"]

_MOST_BYTES = 256 << 20


class PythonProfileAnalysis:
    """What both profilers have in common.

    Parameters
    ----------
    local_profile_dir
        Folder of one profiler, e.g. ``OUT/framework/pytorch/cprofile``.
    s3_path
        Not supported.
    """

    name = ""

    def __init__(self, local_profile_dir: str = "/tmp/python_stats", s3_path: str | None = None) -> None:
        if s3_path is not None:
            no_s3(s3_path)
        self.python_stats_reader = LocalPythonStatsReader(local_profile_dir)
        self.python_profile_stats: list[StepPythonProfileStats] = []
        self._refresh_python_profile_stats(True)

    def _refresh_python_profile_stats(self, refresh_stats: bool) -> None:
        if refresh_stats:
            found = self.python_stats_reader.load_python_profile_stats()
            self.python_profile_stats = [one for one in found if one.profiler_name == self.name]

    def _chosen(
        self, wanted: Callable[[StepPythonProfileStats], bool], node_id: str, refresh_stats: bool
    ) -> Any:
        self._refresh_python_profile_stats(refresh_stats)
        if node_id == "any" and self.python_profile_stats:
            node_id = self.python_profile_stats[0].node_id
        found = [one for one in self.python_profile_stats if one.has_node_id(node_id) and wanted(one)]
        if not found:
            get_logger().info("there is no profile of this part of the training")
            return self._nothing()
        return self._aggregate_stats(found)

    def _nothing(self) -> Any:
        return None

    def _aggregate_stats(self, stats: list[StepPythonProfileStats]) -> Any:
        raise NotImplementedError

    def fetch_profile_stats_by_step(
        self,
        start_step: int,
        end_step: int | None = None,
        mode: PythonProfileModes = PythonProfileModes.TRAIN,
        start_phase: StepPhase = StepPhase.STEP_START,
        end_phase: StepPhase = StepPhase.STEP_END,
        node_id: str = "any",
        refresh_stats: bool = True,
    ) -> Any:
        """Returns what lies between two places; without `end_step`, in one step."""
        last = start_step if end_step is None else end_step
        return self._chosen(
            lambda one: (
                one.has_start_and_end_mode(mode, mode)
                and one.in_step_interval(start_step, last, start_phase, end_phase)
            ),
            node_id,
            refresh_stats,
        )

    def fetch_profile_stats_by_time(
        self,
        start_time_since_epoch_in_secs: float,
        end_time_since_epoch_in_secs: float,
        node_id: str = "any",
        refresh_stats: bool = True,
    ) -> Any:
        """Returns what begins or ends in a time."""
        first = start_time_since_epoch_in_secs * CONVERT_TO_MICROSECS
        last = end_time_since_epoch_in_secs * CONVERT_TO_MICROSECS
        return self._chosen(lambda one: one.in_time_interval(first, last), node_id, refresh_stats)

    def fetch_profile_stats_between_modes(
        self,
        start_mode: PythonProfileModes,
        end_mode: PythonProfileModes,
        node_id: str = "any",
        refresh_stats: bool = True,
    ) -> Any:
        """Returns what begins in one mode and ends in another."""
        return self._chosen(
            lambda one: one.has_start_and_end_mode(start_mode, end_mode), node_id, refresh_stats
        )

    def fetch_pre_step_zero_profile_stats(self, node_id: str = "any", refresh_stats: bool = True) -> Any:
        """Returns what is before the first step."""
        return self._chosen(StepPythonProfileStats.has_pre_step_zero_profile_stats, node_id, refresh_stats)

    def fetch_post_hook_close_profile_stats(self, node_id: str = "any", refresh_stats: bool = True) -> Any:
        """Returns what is after the last step."""
        return self._chosen(StepPythonProfileStats.has_post_hook_close_profile_stats, node_id, refresh_stats)

    def list_profile_stats(self, refresh_stats: bool = True) -> Any:
        """Returns the profiles as a table."""
        import pandas as pd

        self._refresh_python_profile_stats(refresh_stats)
        rows = [dict(vars(one)) for one in self.python_profile_stats]
        for row in rows:
            row["start_mode"] = python_profile_mode_to_str(row["start_mode"])
            row["end_mode"] = python_profile_mode_to_str(row["end_mode"])
        return pd.DataFrame(rows)

    def list_available_node_ids(self, refresh_stats: bool = True) -> list[str]:
        """Returns the nodes, sorted."""
        self._refresh_python_profile_stats(refresh_stats)
        return sorted({one.node_id for one in self.python_profile_stats})


class cProfileAnalysis(PythonProfileAnalysis):
    """Profiles of Python's own profiler. Results are `cProfileStats`, or None."""

    name = CPROFILE_NAME

    def _aggregate_stats(self, stats: list[StepPythonProfileStats]) -> cProfileStats:
        return cProfileStats(pstats.Stats(*(one.stats_path for one in stats)))

    def fetch_profile_stats_by_training_phase(
        self, node_id: str = "any", refresh_stats: bool = True
    ) -> dict[tuple[PythonProfileModes, PythonProfileModes], cProfileStats]:
        """Returns the profiles of each pair of modes that has some."""
        self._refresh_python_profile_stats(refresh_stats)
        pairs = sorted({(one.start_mode, one.end_mode) for one in self.python_profile_stats})
        found = {pair: self.fetch_profile_stats_between_modes(*pair, node_id, False) for pair in pairs}
        return {pair: stats for pair, stats in found.items() if stats is not None}

    def fetch_profile_stats_by_job_phase(
        self, node_id: str = "any", refresh_stats: bool = True
    ) -> dict[str, cProfileStats]:
        """Returns the profiles of ``initialization``, ``training_loop`` and ``finalization``, where there are some."""

        def part(one: StepPythonProfileStats) -> str:
            if one.start_mode is PythonProfileModes.PRE_STEP_ZERO:
                return "initialization"
            return "finalization" if one.end_mode is PythonProfileModes.POST_HOOK_CLOSE else "training_loop"

        self._refresh_python_profile_stats(refresh_stats)
        found = {
            name: self._chosen(lambda one, name=name: part(one) == name, node_id, False)  # type: ignore[misc]
            for name in ("initialization", "training_loop", "finalization")
        }
        return {name: stats for name, stats in found.items() if stats is not None}


class PyinstrumentAnalysis(PythonProfileAnalysis):
    """Profiles of pyinstrument. Results are lists of `PyinstrumentStepStats`."""

    name = PYINSTRUMENT_NAME

    def _nothing(self) -> list[PyinstrumentStepStats]:
        return []

    def _aggregate_stats(self, stats: list[StepPythonProfileStats]) -> list[PyinstrumentStepStats]:
        pages = {
            os.path.dirname(one.stats_path): one.stats_path
            for one in stats
            if one.stats_path.endswith(".html")
        }
        found = []
        for one in stats:
            folder, name = os.path.split(one.stats_path)
            if name != PYINSTRUMENT_JSON_FILENAME:
                continue
            try:
                tree = parse_json(read_regular(folder, name, _MOST_BYTES))
            except (OSError, ValueError) as error:
                get_logger().warning("a profile is left out (%s): %s", error, one.stats_path)
                continue
            found.append(PyinstrumentStepStats(pages.get(folder), tree))
        return found
