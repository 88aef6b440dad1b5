"""Writes timelines of all nodes into one file that Chrome and Perfetto show."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from enum import Enum
from typing import Any

from luff.compat.smdebug.core.access_layer.s3 import no_s3
from luff.compat.smdebug.core.tfevent.timeline_file_writer import node_id
from luff.compat.smdebug.profiler.algorithm_metrics_reader import LocalAlgorithmMetricsReader
from luff.compat.smdebug.profiler.profiler_constants import CONVERT_TO_MICROSECS, MERGEDTIMELINE_SUFFIX
from luff.compat.smdebug.profiler.system_metrics_reader import LocalSystemMetricsReader
from luff.compat.smdebug.profiler.utils import TimeUnits

__all__ = ["MergeUnit", "MergedTimeline"]

LOW_GPU_PERCENT = 85
_TOGETHER_US = 20_000  # values of one tick
# What a process's name begins with or contains, and the first number of such processes. Viewers order by number.
_GROUPS = (
    ("Step", 1),
    ("Forward", 10_000),
    ("Backward", 20_000),
    ("DataIterator", 30_000),
    ("Dataset", 40_000),
    ("/device", 50_000),
    ("/host", 60_000),
    ("gpu_functions", 70_000),
    ("cpu_functions", 80_000),
    ("Horovod", 90_000),
)
_OTHERS = 1_000_000


class MergeUnit(Enum):
    """What begin and end are: times in microseconds, or steps."""

    TIME = "time"
    STEP = "step"


class _Numbers:
    """Gives each process a number in its group."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._next: dict[int, int] = {}

    def of(self, name: str, horovod: bool) -> tuple[int, bool]:
        """Returns the number, and whether it is new."""
        found = self._known.get(name)
        if found is not None:
            return found, False
        first = next((start for part, start in _GROUPS if part in name), _OTHERS)
        if horovod and first == _OTHERS:
            first = 90_000
        number = self._next.setdefault(first, first)
        self._next[first] = number + 1
        self._known[name] = number
        return number, True


class MergedTimeline:
    """Merges the timelines below a folder.

    Parameters
    ----------
    path
        Folder of the profiler, or a run that Luff recorded.
    file_suffix_filter
        Only timelines whose names end with one of these.
    output_directory
        Where to write; by default `path`.
    """

    def __init__(
        self, path: str, file_suffix_filter: list[str] | None = None, output_directory: str | None = None
    ) -> None:
        self.path = path
        self.file_suffix_filter = file_suffix_filter
        self.out_dir = os.fspath(output_directory if output_directory is not None else path)
        if self.out_dir.startswith("s3://"):
            no_s3(self.out_dir)
        self.reader = LocalAlgorithmMetricsReader(path)
        self._system = LocalSystemMetricsReader(path)

    def merge_timeline(
        self,
        start: float,
        end: float,
        unit: MergeUnit | str = MergeUnit.TIME,
        sys_metrics_filter: Mapping[str, Any] | None = None,
    ) -> str:
        """Writes the events of a time, or from the begin of one step to that of another.

        Parameters
        ----------
        start, end, unit
            Microseconds since 1970, or steps.
        sys_metrics_filter
            ``{"lowgpu": ()}``, the default, adds system metrics as counters, and a mark wherever a GPU was used less
            than 85 %. Nothing: none of it.

        Returns
        -------
        str
            Path of the file: ``<end>_<node>_merged_timeline.json``.
        """
        if sys_metrics_filter is None:
            sys_metrics_filter = {"lowgpu": ()}
        if MergeUnit(unit) is MergeUnit.STEP:
            start, end = self.reader._get_time_interval_for_step(int(start), int(end))
        events = self.reader.get_events(start, end, file_suffix_filter=self.file_suffix_filter)
        events.sort(key=lambda event: event.start_time)
        zero = events[0].start_time if events else 0
        last = max((event.end_time for event in events), default=int(end))
        rows: list[dict[str, Any]] = [
            _metadata("process_name", 0, start_time_since_epoch_in_micros=zero),
            _metadata("process_sort_index", 0, sort_index=0),
        ]
        numbers, threads = _Numbers(), set()
        timed: list[dict[str, Any]] = []
        for event in events:
            horovod = event.file_type == ""
            number, new = numbers.of(event.event_phase, horovod)
            if new:
                rows.append(_metadata("process_name", number, name=event.event_phase))
                rows.append(_metadata("process_sort_index", number, sort_index=number))
            if (number, event.phase_tid) not in threads:
                threads.add((number, event.phase_tid))
                info = event.process_info
                known = info._threads.get(event.phase_tid) if info is not None else None
                name = known.thread_name if known is not None else str(event.phase_tid)
                rows.append({**_metadata("thread_name", number, name=name), "tid": event.phase_tid})
            row = {
                "name": event.event_name,
                "pid": number,
                "tid": event.phase_tid,
                "ph": event.phase,
                "ts": event.start_time - zero,
                "dur": event.duration,
            }
            if event.event_args:
                row["args"] = event.event_args
            timed.append(row)
        if sys_metrics_filter:
            timed += self._system_rows(start, end, zero)
            timed.sort(key=lambda row: row["ts"])
        return self._write(rows + timed, int(last))

    def _system_rows(self, start: float, end: float, zero: float) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        low_until = -float("inf")
        values = self._system.get_events(start, end, TimeUnits.MICROSECONDS)
        for value in sorted(values, key=lambda one: one.timestamp):
            at = value.timestamp * CONVERT_TO_MICROSECS - zero
            title = f"{value.node_id} {value.dimension} {value.name or ''}".strip()
            rows.append(
                {
                    "name": title,
                    "ph": "C",
                    "pid": 0,
                    "ts": at,
                    "args": {value.name or value.type: value.value},
                }
            )
            if value.dimension == "GPUUtilization" and value.value < LOW_GPU_PERCENT and at > low_until:
                low_until = at + _TOGETHER_US
                rows.append({"name": "sys_metrics_bottlenecks", "ph": "i", "pid": 0, "s": "g", "ts": at})
        return rows

    def _write(self, rows: list[dict[str, Any]], last: int) -> str:
        os.makedirs(self.out_dir, exist_ok=True)
        path = os.path.join(self.out_dir, f"{last}_{node_id()}_{MERGEDTIMELINE_SUFFIX}")
        with open(f"{path}.tmp", "w", encoding="utf-8") as file:
            file.write("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
        os.replace(f"{path}.tmp", path)
        return path


def _metadata(kind: str, number: int, /, **args: Any) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": number, "args": args}
