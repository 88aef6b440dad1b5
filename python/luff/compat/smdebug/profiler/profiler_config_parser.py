"""The profiler's configuration, as far as timelines need it. Other keys are accepted and ignored."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

from luff.compat.smdebug.core.logger import get_logger
from luff.compat.smdebug.profiler.profiler_constants import (
    DEFAULT_LOCAL_PATH,
    DEFAULT_PROFILER_CONFIG_FILE,
    SMPROFILER_CONFIG_PATH_ENV,
)

__all__ = ["ProfilerConfig", "ProfilerConfigParser"]


@dataclass
class ProfilerConfig:
    """Where timelines are written, and when a file is finished."""

    local_path: str = DEFAULT_LOCAL_PATH
    file_max_size: float = 10_485_760.0
    file_close_interval: float = 60.0
    file_open_fail_threshold: int = 50


def _lower(found: Any) -> dict[str, Any]:
    return {str(key).lower(): value for key, value in found.items()} if isinstance(found, dict) else {}


class ProfilerConfigParser:
    """Reads the file that SMPROFILER_CONFIG_PATH names; profiling is off if there is no such file."""

    def __init__(self) -> None:
        self.config = ProfilerConfig()
        self.profiling_enabled = False
        self.load_config()

    def load_config(self) -> None:
        """Reads the file again."""
        path = os.environ.get(SMPROFILER_CONFIG_PATH_ENV, DEFAULT_PROFILER_CONFIG_FILE)
        self.profiling_enabled = False
        try:
            with open(path, encoding="utf-8") as file:
                top = _lower(json.load(file))
        except OSError:
            return
        except ValueError as error:
            get_logger().warning("the profiler is off, its configuration is no JSON (%s): %s", error, path)
            return
        given = _lower(top.get("profilingparameters"))
        if not given or top.get("disableprofiler"):
            return
        self.profiling_enabled = True
        try:
            self.config = ProfilerConfig(
                str(given.get("localpath", DEFAULT_LOCAL_PATH)),
                float(given.get("rotatemaxfilesizeinbytes", ProfilerConfig.file_max_size)),
                float(given.get("rotatefilecloseintervalinseconds", ProfilerConfig.file_close_interval)),
                int(given.get("fileopenfailthreshold", ProfilerConfig.file_open_fail_threshold)),
            )
        except (TypeError, ValueError):
            self.config = ProfilerConfig()
