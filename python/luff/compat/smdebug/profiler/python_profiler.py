"""Profiles Python functions between two places of a training, and writes the result."""

from __future__ import annotations

import cProfile
import json
import os
import pstats
import sys
import time
from typing import Any

from luff.compat.smdebug.core.logger import get_logger
from luff.compat.smdebug.core.tfevent.timeline_file_writer import node_id
from luff.compat.smdebug.core.utils import FRAMEWORK
from luff.compat.smdebug.profiler.profiler_constants import (
    CONVERT_TO_MICROSECS,
    CPROFILE_NAME,
    CPROFILE_STATS_FILENAME,
    FRAMEWORK_PREFIX,
    PYINSTRUMENT_HTML_FILENAME,
    PYINSTRUMENT_JSON_FILENAME,
    PYINSTRUMENT_NAME,
    PYTHON_PROFILING_START_STEP_DEFAULT,
)
from luff.compat.smdebug.profiler.python_profile_utils import (
    TIMERS,
    PythonProfileModes,
    StepPhase,
    cProfileTimer,
    python_profile_mode_to_str,
    total_time,
)

__all__ = [
    "CPROFILE_STATS_FILENAME",
    "PYINSTRUMENT_HTML_FILENAME",
    "PYINSTRUMENT_JSON_FILENAME",
    "PyinstrumentPythonProfiler",
    "PythonProfiler",
    "cProfileDefaultPythonProfiler",
    "cProfilePythonProfiler",
    "cProfileTimer",
]


class PythonProfiler:
    """Profiles from `start_profiling` to `stop_profiling`, then writes a folder.

    Python has room for one profiler. Where the script, or a debugger, has one, nothing is profiled, and the log says so
    once.

    Parameters
    ----------
    base_folder
        Folder of the profiler.
    framework
        Part of the path.
    """

    _name = ""

    def __init__(self, base_folder: str, framework: FRAMEWORK | None) -> None:
        self._base_folder = base_folder
        self._framework = framework
        self._profiler: Any = None
        self._told = False
        self._reset()

    def _reset(self) -> None:
        self._start_mode: PythonProfileModes | None = None
        self._start_step: int | str | None = None
        self._start_phase: StepPhase | None = None
        self._start_time_since_epoch_in_micros: float | None = None
        self._is_profiling = False

    def _enable_profiler(self) -> None:
        raise NotImplementedError

    def _disable_profiler(self) -> None:
        raise NotImplementedError

    def _dump_stats(self, stats_dir: str) -> None:
        raise NotImplementedError

    def _tell(self, what: str, error: Exception) -> None:
        if not self._told:
            self._told = True
            get_logger().warning("%s: %s", what, error)

    def start_profiling(
        self,
        start_phase: StepPhase,
        start_mode: PythonProfileModes = PythonProfileModes.PRE_STEP_ZERO,
        start_step: int | str = "*",
    ) -> None:
        """Begins."""
        try:
            if sys.getprofile() is not None:
                raise RuntimeError("another profiler is at work")
            self._enable_profiler()
        except (ImportError, RuntimeError, ValueError) as error:  # another profiler is at work
            self._tell("Python functions are not profiled", error)
            return
        self._start_mode, self._start_step, self._start_phase = start_mode, start_step, start_phase
        self._start_time_since_epoch_in_micros = time.time() * CONVERT_TO_MICROSECS
        self._is_profiling = True

    def stop_profiling(
        self,
        end_phase: StepPhase,
        end_mode: PythonProfileModes = PythonProfileModes.POST_HOOK_CLOSE,
        end_step: int | str = "*",
    ) -> None:
        """Ends, and writes what was seen. Does nothing if it did not begin."""
        if not self._is_profiling or self._start_mode is None or self._start_phase is None:
            return
        self._disable_profiler()
        begin = (
            python_profile_mode_to_str(self._start_mode),
            self._start_step,
            self._start_phase.value,
            self._start_time_since_epoch_in_micros,
        )
        end = (
            python_profile_mode_to_str(end_mode),
            end_step,
            end_phase.value,
            time.time() * CONVERT_TO_MICROSECS,
        )
        folder = os.path.join(
            self._base_folder,
            FRAMEWORK_PREFIX,
            self._framework.value if self._framework is not None else "python",
            self._name,
            node_id(),
            "-".join(map(str, begin)) + "_" + "-".join(map(str, end)),
        )
        self._reset()
        try:
            os.makedirs(folder, exist_ok=True)
            self._dump_stats(folder)
        except OSError as error:
            self._tell("a profile of Python functions could not be written", error)

    @staticmethod
    def get_python_profiler(profiler_config: Any, framework: FRAMEWORK | None) -> PythonProfiler:
        """Returns the profiler that a configuration asks for."""
        folder, config = profiler_config.local_path, profiler_config.python_profiling_config
        if config.profiler_name == PYINSTRUMENT_NAME:
            return PyinstrumentPythonProfiler(folder, framework)
        if config.cprofile_timer is cProfileTimer.DEFAULT:
            return cProfileDefaultPythonProfiler(folder, framework)
        return cProfilePythonProfiler(folder, framework, config.cprofile_timer)


class cProfilePythonProfiler(PythonProfiler):
    """Python's own profiler; writes what `pstats` reads."""

    _name = CPROFILE_NAME

    def __init__(self, base_folder: str, framework: FRAMEWORK | None, cprofile_timer: Any) -> None:
        super().__init__(base_folder, framework)
        self.cprofile_timer = TIMERS.get(cprofile_timer, total_time)

    def _enable_profiler(self) -> None:
        self._profiler = cProfile.Profile(self.cprofile_timer)
        self._profiler.enable()

    def _disable_profiler(self) -> None:
        self._profiler.disable()

    def _dump_stats(self, stats_dir: str) -> None:
        pstats.Stats(self._profiler).dump_stats(os.path.join(stats_dir, CPROFILE_STATS_FILENAME))


class cProfileDefaultPythonProfiler(cProfilePythonProfiler):
    """Counts all time in step 9, CPU time in step 10, and the rest in step 11; elsewhere all time."""

    def __init__(self, base_folder: str, framework: FRAMEWORK | None) -> None:
        super().__init__(base_folder, framework, cProfileTimer.DEFAULT)

    def start_profiling(
        self,
        start_phase: StepPhase,
        start_mode: PythonProfileModes = PythonProfileModes.PRE_STEP_ZERO,
        start_step: int | str = "*",
    ) -> None:
        """Begins."""
        place = start_step - PYTHON_PROFILING_START_STEP_DEFAULT if isinstance(start_step, int) else 0
        timers = list(TIMERS.values())
        self.cprofile_timer = timers[place] if 0 <= place < len(timers) else total_time
        super().start_profiling(start_phase, start_mode, start_step)


class PyinstrumentPythonProfiler(PythonProfiler):
    """The profiler of the package pyinstrument, if it is installed: a tree as JSON and as HTML."""

    _name = PYINSTRUMENT_NAME

    def _enable_profiler(self) -> None:
        from pyinstrument import Profiler

        self._profiler = Profiler()
        self._profiler.start()

    def _disable_profiler(self) -> None:
        self._profiler.stop()

    def _dump_stats(self, stats_dir: str) -> None:
        from pyinstrument.renderers import JSONRenderer

        try:
            text = JSONRenderer().render(self._profiler.last_session)
            page = self._profiler.output_html()
        except Exception as error:  # it fails on sessions without a sample
            self._tell("a profile of pyinstrument is empty", error)
            text, page = json.dumps({"root_frame": None}), "<p>No sample was taken."
        for name, content in ((PYINSTRUMENT_JSON_FILENAME, text), (PYINSTRUMENT_HTML_FILENAME, page)):
            with open(os.path.join(stats_dir, name), "w", encoding="utf-8") as file:
                file.write(content)
