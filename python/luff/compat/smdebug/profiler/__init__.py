"""Reads, analyses and checks what a profiler recorded of a job: its system, its phases, its Python functions."""

from __future__ import annotations

from luff.compat.smdebug.profiler.algorithm_metrics_reader import (
    LocalAlgorithmMetricsReader,
    S3AlgorithmMetricsReader,
)
from luff.compat.smdebug.profiler.metrics_reader_base import MetricsReaderBase
from luff.compat.smdebug.profiler.system_metrics_reader import (
    LocalSystemMetricsReader,
    ProfilerSystemEvents,
    S3NumpySystemMetricsReader,
    S3SystemMetricsReader,
)
from luff.compat.smdebug.profiler.system_profiler_file_parser import SystemProfilerEventParser
from luff.compat.smdebug.profiler.tf_profiler_parser import (
    HorovodProfilerEvents,
    SMDataParallelProfilerEvents,
    SMProfilerEvents,
    TensorboardProfilerEvents,
)
from luff.compat.smdebug.profiler.trace_event_file_parser import TraceEvent, TraceEventParser

__all__ = [
    "HorovodProfilerEvents",
    "LocalAlgorithmMetricsReader",
    "LocalSystemMetricsReader",
    "MetricsReaderBase",
    "ProfilerSystemEvents",
    "S3AlgorithmMetricsReader",
    "S3NumpySystemMetricsReader",
    "S3SystemMetricsReader",
    "SMDataParallelProfilerEvents",
    "SMProfilerEvents",
    "SystemProfilerEventParser",
    "TensorboardProfilerEvents",
    "TraceEvent",
    "TraceEventParser",
]
