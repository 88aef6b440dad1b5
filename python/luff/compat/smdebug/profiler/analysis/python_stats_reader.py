"""Finds the profiles of Python functions."""

from __future__ import annotations

import os

from luff.compat.smdebug.core.access_layer.s3 import no_s3
from luff.compat.smdebug.core.logger import get_logger
from luff.compat.smdebug.profiler._files import walk
from luff.compat.smdebug.profiler.analysis.utils.python_profile_analysis_utils import StepPythonProfileStats
from luff.compat.smdebug.profiler.profiler_constants import (
    CPROFILE_NAME,
    CPROFILE_STATS_FILENAME,
    PYINSTRUMENT_HTML_FILENAME,
    PYINSTRUMENT_JSON_FILENAME,
    PYINSTRUMENT_NAME,
)

__all__ = ["LocalPythonStatsReader", "PythonStatsReader", "S3PythonStatsReader"]

_PROFILER_OF = {
    CPROFILE_STATS_FILENAME: CPROFILE_NAME,
    PYINSTRUMENT_JSON_FILENAME: PYINSTRUMENT_NAME,
    PYINSTRUMENT_HTML_FILENAME: PYINSTRUMENT_NAME,
}


class PythonStatsReader:
    """Reads the folder of a profiler: ``NODE/INTERVAL/FILE``."""

    def __init__(self, profile_dir: str) -> None:
        self.profile_dir = profile_dir

    def load_python_profile_stats(self) -> list[StepPythonProfileStats]:
        """Returns the profiles, by their begin and node."""
        framework = os.path.basename(os.path.dirname(os.path.abspath(self.profile_dir)))
        found = []
        for path in walk(self.profile_dir):
            parts = os.path.relpath(path, self.profile_dir).split(os.sep)
            profiler = _PROFILER_OF.get(parts[-1])
            if profiler is None or len(parts) != 3:
                continue
            try:
                found.append(StepPythonProfileStats(framework, profiler, parts[0], parts[1], path))
            except ValueError as error:
                get_logger().warning("a profile is left out: %s: %s", error, path)
        return sorted(found, key=lambda one: (one.start_time_since_epoch_in_micros, one.node_id))


class LocalPythonStatsReader(PythonStatsReader):
    """Reads a folder of this machine."""

    def __init__(self, profile_dir: str) -> None:
        if not os.path.isdir(profile_dir):
            raise FileNotFoundError(
                f"found no directory, expected the folder of a profiler, e.g. "
                f"OUT/framework/pytorch/{CPROFILE_NAME}: {profile_dir}"
            )
        super().__init__(profile_dir)


class S3PythonStatsReader:
    """A reader of a bucket; cannot be made, since buckets are not supported."""

    def __init__(self, profile_dir: str, s3_path: str) -> None:  # noqa: ARG002
        no_s3(s3_path)
