"""Reads the profiler's configuration. The job may change it while it runs."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from luff._bounded import parse_json
from luff.compat.smdebug.core.logger import get_logger
from luff.compat.smdebug.core.utils import FRAMEWORK
from luff.compat.smdebug.profiler import profiler_constants as names
from luff.compat.smdebug.profiler.profiler_config import ProfilerConfig
from luff.compat.smdebug.profiler.python_profile_utils import (
    StepPhase,
    mode_keys_to_python_profile_mode,
)

if TYPE_CHECKING:
    from luff.compat.smdebug.profiler.python_profiler import PythonProfiler

__all__ = [
    "MetricsCategory",
    "ProfilerConfig",
    "ProfilerConfigParser",
    "get_profiler_config_parser",
    "reset_profiler_config_parser",
]

_MOST_BYTES = 1 << 20
_MOST_LITERAL = 4096  # characters of a part that is Python's literal
_PARTS = {
    "detailed": "detailedprofilingconfig",
    "dataloader": "dataloaderprofilingconfig",
    "python": "pythonprofilingconfig",
    "smdataparallel": "smdataparallelprofilingconfig",
}


class MetricsCategory(Enum):
    """What may be profiled."""

    DETAILED_PROFILING = 1
    DATALOADER_PROFILING = 2
    PYTHON_PROFILING = 3
    SMDATAPARALLEL_PROFILING = 4


def _lower(found: Any) -> dict[str, Any]:
    return {str(key).lower(): value for key, value in found.items()} if isinstance(found, Mapping) else {}


def _part(found: Any) -> dict[str, Any]:
    """Reads a part that is an object, or the text of one: of JSON, or a literal of Python. Nothing is evaluated.

    Raises ValueError for another text.
    """
    if isinstance(found, str):
        text = found.strip() or "{}"
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            if len(text) > _MOST_LITERAL:
                raise ValueError(f"found a text of {len(text)} characters that is no JSON") from None
            try:
                found = ast.literal_eval(text)
            except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
                raise ValueError(f"found {text[:100]!r}, expected a dictionary of literals") from None
    if not isinstance(found, Mapping):
        raise ValueError(f"found {type(found).__name__}, expected a dictionary")
    return _lower(found)


class ProfilerConfigParser:
    """Reads the file that SMPROFILER_CONFIG_PATH names; profiling is off if there is no such file.

    Parameters
    ----------
    framework
        For the paths of Python profiles.
    """

    def __init__(self, framework: FRAMEWORK | None = None) -> None:
        self.framework = framework
        self.config: Any = None
        self.profiling_enabled = False
        self.last_json_config: Any = None
        self._told: set[str] = set()
        self._looked: tuple[Any, ...] | None = None  # the file that was read, and when it changed
        self.load_config()
        self.python_profiler: PythonProfiler | None = None
        if self.is_python_profiling_enabled():
            from luff.compat.smdebug.profiler.python_profiler import PythonProfiler

            self.python_profiler = PythonProfiler.get_python_profiler(self.config, framework)

    def _tell(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            get_logger().warning("%s", message)

    def load_config(self) -> None:
        """Reads the file again; if it has not changed, what was read stays as it is."""
        path = os.environ.get(names.SMPROFILER_CONFIG_PATH_ENV, names.CONFIG_PATH_DEFAULT)
        try:
            info = os.stat(path)
            looked = (path, info.st_ino, info.st_size, info.st_mtime_ns)
            if looked == self._looked:
                return
            self._looked = looked
            with open(path, "rb") as file:
                raw = file.read(_MOST_BYTES + 1)
            if len(raw) > _MOST_BYTES:
                raise ValueError(f"has more than {_MOST_BYTES} bytes")
            found = parse_json(raw)
            if not isinstance(found, dict):
                raise ValueError("is no object")
        except OSError:
            self.profiling_enabled, self._looked = False, None
            self.last_json_config = None
            return
        except ValueError as error:
            self._tell(f"the profiler is off, its configuration is no JSON ({error}): {path}")
            self.profiling_enabled, self.config, self.last_json_config = False, None, None
            return
        if found == self.last_json_config:
            return
        self.last_json_config, self.config = found, None
        top = _lower(found)
        given = _lower(top.get("profilingparameters"))
        self.profiling_enabled = bool(given) and not top.get("disableprofiler")
        if self.profiling_enabled:
            self.config = self._read(given, path)

    def _read(self, given: Mapping[str, Any], path: str) -> ProfilerConfig:
        try:
            files = (
                str(given.get("localpath", names.BASE_FOLDER_DEFAULT)),
                int(float(given.get("rotatemaxfilesizeinbytes", names.MAX_FILE_SIZE_DEFAULT))),
                float(given.get("rotatefilecloseintervalinseconds", names.CLOSE_FILE_INTERVAL_DEFAULT)),
                int(given.get("fileopenfailthreshold", names.FILE_OPEN_FAIL_THRESHOLD_DEFAULT)),
            )
        except (TypeError, ValueError, OverflowError) as error:
            self._tell(f"the profiler takes its defaults for paths and sizes ({error}): {path}")
            files = (
                names.BASE_FOLDER_DEFAULT,
                names.MAX_FILE_SIZE_DEFAULT,
                float(names.CLOSE_FILE_INTERVAL_DEFAULT),
                names.FILE_OPEN_FAIL_THRESHOLD_DEFAULT,
            )
        parts: dict[str, Any] = {}
        for part, key in _PARTS.items():
            try:
                parts[f"{part}_profiling_config"] = _part(given.get(key, "{}"))
            except ValueError as error:
                self._tell(f"{part} profiling is off ({error}): {path}")
        config = ProfilerConfig(*files, **parts)
        for part in _PARTS:
            message = getattr(config, f"{part}_profiling_config").error_message
            if message is not None:
                self._tell(f"{message}: {path}")
        from luff.compat.smdebug.core.config_validator import is_model_parallel

        if is_model_parallel():
            config.detailed_profiling_config.disabled = True
        return config

    def should_save_metrics(
        self,
        metrics_category: MetricsCategory,
        current_step: int | str,
        metrics_name: str | None = None,
        current_time: float | None = None,
    ) -> bool:
        """Returns whether something is profiled in this step; of data loaders, of this name."""
        if not self.profiling_enabled or self.config is None:
            return False
        part = {
            MetricsCategory.DETAILED_PROFILING: self.config.detailed_profiling_config,
            MetricsCategory.DATALOADER_PROFILING: self.config.dataloader_profiling_config,
            MetricsCategory.PYTHON_PROFILING: self.config.python_profiling_config,
            MetricsCategory.SMDATAPARALLEL_PROFILING: self.config.smdataparallel_profiling_config,
        }.get(metrics_category)
        if part is None:
            return False
        if metrics_name is not None and metrics_category is MetricsCategory.DATALOADER_PROFILING:
            if not part.is_enabled() or not part.valid_metrics_name(metrics_name):
                return False
        return bool(part.can_start_profiling(current_step, current_time))

    # ---- Python functions ---------------------------------------------------------------------------------------

    def is_python_profiling_enabled(self) -> bool:
        """Returns whether Python functions are profiled at some time."""
        return (
            self.profiling_enabled
            and self.config is not None
            and self.config.python_profiling_config.is_enabled()
        )

    def _turn(self, phase: StepPhase, mode: Any, step: int) -> None:
        """Ends the profile that runs, and begins the next one if this step has one."""
        if self.python_profiler is None or not self.is_python_profiling_enabled():
            return
        profile_mode = mode_keys_to_python_profile_mode(mode)
        self.python_profiler.stop_profiling(phase, profile_mode, step)
        if self.should_save_metrics(MetricsCategory.PYTHON_PROFILING, step):
            self.python_profiler.start_profiling(phase, profile_mode, step)

    def start_pre_step_zero_python_profiling(self) -> None:
        """Begins before the first step."""
        if self.python_profiler is not None and self.is_python_profiling_enabled():
            self.python_profiler.start_profiling(StepPhase.START)

    def handle_step_start_python_profiling(self, mode: Any, current_step: int) -> None:
        """A step begins."""
        self._turn(StepPhase.STEP_START, mode, current_step)

    def handle_step_end_python_profiling(self, mode: Any, current_step: int) -> None:
        """A step ends."""
        self._turn(StepPhase.STEP_END, mode, current_step)

    def handle_forward_pass_end_python_profiling(self, mode: Any, current_step: int) -> None:
        """A forward pass ends."""
        self._turn(StepPhase.FORWARD_PASS_END, mode, current_step)

    def start_post_hook_close_python_profiling(self) -> None:
        """Begins after the last step."""
        if self.python_profiler is not None and self.is_python_profiling_enabled():
            self.python_profiler.start_profiling(StepPhase.END)

    def stop_post_hook_close_python_profiling(self) -> None:
        """Ends with the program."""
        if self.python_profiler is not None:
            self.python_profiler.stop_profiling(StepPhase.END)


_parser: ProfilerConfigParser | None = None


def get_profiler_config_parser(framework: FRAMEWORK | None = None) -> ProfilerConfigParser:
    """Returns the parser of this process."""
    global _parser
    if _parser is None:
        _parser = ProfilerConfigParser(framework)
    return _parser


def reset_profiler_config_parser() -> None:
    """Makes the next call read anew."""
    global _parser
    _parser = None
