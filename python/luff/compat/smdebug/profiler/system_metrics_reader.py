"""Readers of system metrics."""

from __future__ import annotations

import bisect
from typing import Any

from luff.compat.smdebug.core.access_layer.s3 import no_s3
from luff.compat.smdebug.profiler.metrics_reader_base import LocalReader, MetricsReaderBase
from luff.compat.smdebug.profiler.profiler_constants import (
    CONVERT_TO_MICROSECS,
    DEFAULT_SYSTEM_PROFILER_PREFIX,
)
from luff.compat.smdebug.profiler.system_profiler_file_parser import ProfilerSystemEvents
from luff.compat.smdebug.profiler.utils import get_utctimestamp_us_since_epoch_from_system_profiler_file

__all__ = [
    "LocalSystemMetricsReader",
    "ProfilerSystemEvents",
    "S3NumpySystemMetricsReader",
    "S3SystemMetricsReader",
    "SystemMetricsReader",
]


class SystemMetricsReader(MetricsReaderBase):
    """Gives `ProfilerSystemEvent`s."""

    prefix = DEFAULT_SYSTEM_PROFILER_PREFIX

    def __init__(self, use_in_memory_cache: bool = False) -> None:
        super().__init__(use_in_memory_cache)
        self._parser = ProfilerSystemEvents()
        self._event_parsers = [self._parser]

    def _get_event_parser(self, filename: str) -> Any:  # noqa: ARG002
        return self._parser

    def _get_timestamp_from_filename(self, event_file: str) -> int | None:
        return get_utctimestamp_us_since_epoch_from_system_profiler_file(event_file)

    def _is_in(self, event: Any, first: int, last: int, event_type: str | None) -> bool:
        at = int(event.timestamp * CONVERT_TO_MICROSECS)
        return first <= at <= last and (event_type is None or event.type == event_type)

    def _first_file(self, times: list[int], start: float) -> int:
        return max(bisect.bisect_right(times, start) - 1, 0)  # a file's time is that of its begin


class LocalSystemMetricsReader(LocalReader, SystemMetricsReader):
    """Reads the metrics below a folder.

    Parameters
    ----------
    trace_root_folder
        Folder of the profiler, which holds ``system``; or a run that Luff recorded.
    use_in_memory_cache
        Keep what was read.
    """

    of_run = "RunSystemMetricsReader"


class S3SystemMetricsReader:
    """A reader of a bucket; cannot be made, since buckets are not supported."""

    def __init__(self, s3_trial_path: str, *_: Any, **__: Any) -> None:
        no_s3(s3_trial_path)


class S3NumpySystemMetricsReader(S3SystemMetricsReader):
    """Another one."""
