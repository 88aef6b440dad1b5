"""Parsers of each kind of timeline."""

from __future__ import annotations

import os
from typing import Any

from luff.compat.smdebug.profiler._files import gzipped_trace
from luff.compat.smdebug.profiler.profiler_constants import TF_METRICS_PREFIX
from luff.compat.smdebug.profiler.trace_event_file_parser import TraceEvent, TraceEventParser
from luff.compat.smdebug.profiler.utils import read_tf_profiler_metadata_file

__all__ = [
    "HorovodProfilerEvents",
    "SMDataParallelProfilerEvents",
    "SMProfilerEvents",
    "TensorboardProfilerEvents",
]

_PHASES = ("ForwardPass", "ComputeGradient", "ApplyGradient")


class SMProfilerEvents(TraceEventParser):
    """Timelines of hooks."""

    def __init__(self, type: str = "PythontimelineMetrics") -> None:  # noqa: A002
        super().__init__(type)


class HorovodProfilerEvents(TraceEventParser):
    """Timelines of Horovod. Their `file_type` is empty, which is how rules know them."""


class SMDataParallelProfilerEvents(TraceEventParser):
    """Timelines of SageMaker's data parallelism."""

    def __init__(self) -> None:
        super().__init__("SMDataParallelMetrics")


class TensorboardProfilerEvents(TraceEventParser):
    """Traces of TensorFlow's profiler; the marker beside one says when it began."""

    def __init__(self) -> None:
        super().__init__("TFProfilerMetrics")

    def read_events_from_file(self, tracefile: str) -> None:
        """Adds the events of a trace. What cannot be read is logged, and left out."""
        try:
            records, self.problems = gzipped_trace(tracefile)
        except (OSError, ValueError) as error:
            self.problems = [str(error)]
            self.logger.error("a trace cannot be read: %s", error)
            return
        for problem in self.problems:
            self.logger.error("%s", problem)
        self._start_timestamp = int(read_tf_profiler_metadata_file(tracefile)[1])
        self._begun.clear()
        self._process(0)
        self.read_events_from_json_data(records, os.path.basename(tracefile).split(".")[0])

    def _get_event_phase(self, event: TraceEvent) -> str | None:
        if not event.event_name.startswith(TF_METRICS_PREFIX):
            return None
        phase = event.event_name.split("/")[0].removeprefix(TF_METRICS_PREFIX)
        return phase if phase in _PHASES else None

    def get_complete_op_events(self, tracefile: str) -> list[tuple[TraceEvent, str]]:
        """Returns the operations of a trace that belong to a phase of the step, with the phase."""
        self.read_events_from_file(tracefile)
        found = [(event, self._get_event_phase(event)) for event in self.get_all_events() if event.event_args]
        return [(event, phase) for event, phase in found if phase]

    def get_training_info(self, tracefile: str) -> dict[str, list[list[Any]]]:
        """Returns name, begin and duration of the operations of each phase."""
        info: dict[str, list[list[Any]]] = {phase: [] for phase in _PHASES}
        for event, phase in self.get_complete_op_events(tracefile):
            info[phase].append([event.event_name, event.start_time, event.duration])
        return info
