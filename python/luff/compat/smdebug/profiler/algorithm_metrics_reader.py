"""Readers of timelines."""

from __future__ import annotations

import bisect
from typing import Any

from luff.compat.smdebug.core.access_layer.s3 import no_s3
from luff.compat.smdebug.profiler import profiler_constants as names
from luff.compat.smdebug.profiler.metrics_reader_base import LocalReader, MetricsReaderBase
from luff.compat.smdebug.profiler.tf_profiler_parser import (
    HorovodProfilerEvents,
    SMDataParallelProfilerEvents,
    SMProfilerEvents,
    TensorboardProfilerEvents,
)
from luff.compat.smdebug.profiler.utils import (
    get_timestamp_from_tracefilename,
    is_valid_tfprof_tracefilename,
    is_valid_tracefilename,
)

__all__ = ["AlgorithmMetricsReader", "LocalAlgorithmMetricsReader", "S3AlgorithmMetricsReader"]


class AlgorithmMetricsReader(MetricsReaderBase):
    """Gives `TraceEvent`s."""

    prefix = names.FRAMEWORK_PREFIX

    def __init__(self, use_in_memory_cache: bool = False) -> None:
        super().__init__(use_in_memory_cache)
        self._parser_of_suffix = {
            names.PYTHONTIMELINE_SUFFIX: SMProfilerEvents(),
            names.MODELTIMELINE_SUFFIX: SMProfilerEvents("DetailedframeworkMetrics"),
            names.TENSORBOARDTIMELINE_SUFFIX: TensorboardProfilerEvents(),
            names.HOROVODTIMELINE_SUFFIX: HorovodProfilerEvents(),
            names.SMDATAPARALLELTIMELINE_SUFFIX: SMDataParallelProfilerEvents(),
        }
        self._event_parsers = list(self._parser_of_suffix.values())

    def _get_event_parser(self, filename: str) -> Any:
        return next((p for suffix, p in self._parser_of_suffix.items() if filename.endswith(suffix)), None)

    def _get_timestamp_from_filename(self, event_file: str) -> int | None:
        if is_valid_tracefilename(event_file) or is_valid_tfprof_tracefilename(event_file):
            return get_timestamp_from_tracefilename(event_file)
        return None

    def _is_in(self, event: Any, first: int, last: int, event_type: str | None) -> bool:  # noqa: ARG002
        return bool(event.end_time >= first and event.start_time <= last)

    def _first_file(self, times: list[int], start: float) -> int:
        return bisect.bisect_left(times, start)  # a file's time is that of its end


class LocalAlgorithmMetricsReader(LocalReader, AlgorithmMetricsReader):
    """Reads the timelines below a folder.

    Parameters
    ----------
    trace_root_folder
        Folder of the profiler, which holds ``framework``; or a run that Luff recorded.
    use_in_memory_cache
        Keep what was read.
    """

    of_run = "RunAlgorithmMetricsReader"


class S3AlgorithmMetricsReader:
    """A reader of a bucket; cannot be made, since buckets are not supported."""

    def __init__(self, s3_trial_path: str, use_in_memory_cache: bool = False) -> None:  # noqa: ARG002
        no_s3(s3_trial_path)
