"""Tables of what a profiler recorded. Needs pandas."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pandas as pd

from luff.compat.smdebug.profiler.algorithm_metrics_reader import LocalAlgorithmMetricsReader
from luff.compat.smdebug.profiler.profiler_constants import CONVERT_TO_MICROSECS
from luff.compat.smdebug.profiler.system_metrics_reader import LocalSystemMetricsReader
from luff.compat.smdebug.profiler.trace_event_file_parser import TraceEvent
from luff.compat.smdebug.profiler.utils import (
    convert_utc_datetime_to_microseconds,
    us_since_epoch_to_human_readable_time,
)

__all__ = ["PandasFrame"]

_MINUTE_US = 60_000_000

_SYSTEM_COLUMNS = ("timestamp", "timestamp_us", "value", "system_metric", "dimension", "nodeID", "type")
_FRAMEWORK_COLUMNS = (
    "start_time", "end_time", "start_time_us", "end_time_us", "tid", "pid", "framework_metric", "step", "bytes",
    "process", "nodeID",
)  # fmt: skip
_LOADER_COLUMNS = (
    "start_time", "end_time", "start_time_us", "end_time_us", "duration_us", "pid", "framework_metric", "step",
    "worker_id", "num_workers", "pin_memory", "process", "node_id",
)  # fmt: skip


def _step_of(args: dict[str, Any]) -> int:
    text = str(args.get("step_num", ""))
    return int(text) if text.isdecimal() else -1


def _name_of(event: TraceEvent, args: dict[str, Any]) -> str:
    return str(args.get("layer_name", args.get("name", event.event_name)))


def _times(event: TraceEvent) -> list[Any]:
    return [
        us_since_epoch_to_human_readable_time(event.start_time),
        us_since_epoch_to_human_readable_time(event.end_time),
        event.start_time,
        event.end_time,
    ]


class PandasFrame:
    """Reads system metrics and timelines of a job as tables.

    Parameters
    ----------
    path
        Folder of the profiler, or a run that Luff recorded.
    use_in_memory_cache
        Keep the timelines in memory.
    scan_interval
        How much time is read at once, in microseconds.
    """

    def __init__(
        self, path: str, use_in_memory_cache: bool = False, scan_interval: int = 5_000_000_000
    ) -> None:
        self.path = path
        self.system_metrics_reader = LocalSystemMetricsReader(path)
        self.framework_metrics_reader = LocalAlgorithmMetricsReader(path, use_in_memory_cache)
        self.system_metrics: list[list[Any]] = []  # that were asked for with cache_metrics
        self.framework_metrics: list[list[Any]] = []
        self.interval = scan_interval
        # Relative times count from here. Without system metrics, from the first event.
        self.start_time = self.system_metrics_reader.get_timestamp_of_first_available_file()
        if self.start_time == 0:
            latest = self.framework_metrics_reader.get_timestamp_of_latest_available_file()
            events = self.framework_metrics_reader.get_events(0, latest)
            self.start_time = int(min((event.start_time for event in events), default=0))

    def _end(self) -> float:
        self.framework_metrics_reader.refresh_event_file_list()
        return self.framework_metrics_reader.get_timestamp_of_latest_available_file()

    def get_all_system_metrics(self, selected_system_metrics: Sequence[str] = ()) -> pd.DataFrame:
        """Returns all system metrics, or those with these names.

        Columns: ``timestamp`` (text, UTC), ``timestamp_us`` (since `start_time`), ``value``, ``system_metric`` (name),
        ``dimension``, ``nodeID``, ``type``.
        """
        end = self.system_metrics_reader.get_timestamp_of_latest_available_file()
        end += max(self.interval, _MINUTE_US)  # a file is named after its begin
        return self.get_profiler_data_by_time(
            self.start_time,
            end,
            selected_system_metrics=selected_system_metrics,
            get_framework_metrics=False,
        )[0]

    def get_all_framework_metrics(self, selected_framework_metrics: Sequence[str] = ()) -> pd.DataFrame:
        """Returns all events of timelines, or those with these names or phases.

        Columns: ``start_time``, ``end_time`` (texts, UTC), ``start_time_us``, ``end_time_us`` (since `start_time`),
        ``tid``, ``pid``, ``framework_metric`` (name), ``step`` (-1: not known), ``bytes`` (-1), ``process`` (phase),
        ``nodeID``.
        """
        return self.get_profiler_data_by_time(
            self.start_time,
            self._end(),
            selected_framework_metrics=selected_framework_metrics,
            get_system_metrics=False,
        )[1]

    @staticmethod
    def convert_datetime_to_timestamp(timestamp: Any) -> int:
        """Converts a text of a table, or a date, to microseconds since 1970."""
        found = pd.to_datetime(timestamp, format="%Y-%m-%dT%H:%M:%S:%f", utc=True)
        return convert_utc_datetime_to_microseconds(found)

    def _windows(self, start: float, end: float) -> Iterator[tuple[float, float]]:
        """Yields the parts of a time, and reads each."""
        while start < end:
            stop = min(start + self.interval, end)
            yield start, stop
            start = stop

    def _events(self, start: float, end: float, selected: Sequence[str] = ()) -> Iterator[TraceEvent]:
        """Yields the events of a time; each once, although its parts share some."""
        for first, last in self._windows(start, end):
            self.framework_metrics_reader.refresh_event_file_list()
            for event in self.framework_metrics_reader.get_events(first, last):
                if first > start and event.start_time <= first:
                    continue  # the part before had it
                if not selected or event.event_name in selected or event.event_phase in selected:
                    yield event

    def get_framework_metrics_by_timesteps(
        self, timestep_list: Iterable[Any] = (), selected_framework_metrics: Sequence[str] = ()
    ) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
        """Returns what went on at some times.

        Parameters
        ----------
        timestep_list
            Texts of a table's ``timestamp``.
        selected_framework_metrics
            Only events with these names or phases.

        Returns
        -------
        tuple of dict
            Of the events that were going on: durations of each phase but steps, the largest scaled to 1; of each name
            but steps, microseconds; of each kind of step, microseconds. An event counts once for each time.
        """
        times = sorted(self.convert_datetime_to_timestamp(one) for one in timestep_list)
        phases: dict[str, float] = {}
        detailed: dict[str, float] = {}
        steps: dict[str, float] = {}
        if not times:
            return phases, detailed, steps
        for event in self._events(times[0], times[-1] + 1, selected_framework_metrics):
            took = sum(event.start_time < time < event.end_time for time in times) * event.duration
            if took:
                kind = steps if "Step" in event.event_phase else phases
                kind[event.event_phase] = kind.get(event.event_phase, 0) + took
                if "Step" not in event.event_name:
                    detailed[event.event_name] = detailed.get(event.event_name, 0) + took
        return _scaled(phases), detailed, steps

    def get_framework_metrics_by_begin_and_end_timesteps(
        self,
        begin_timestep_list: Sequence[Any],
        end_timestep_list: Sequence[Any],
        selected_framework_metrics: Sequence[str] = (),
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Returns what went on in some intervals, whose begins and ends are texts of a table.

        Returns
        -------
        tuple of dict
            Of the events that overlap an interval, but steps: durations of each phase, and of each name; the largest is
            scaled to 1. An event counts once for each interval.
        """
        spans = [
            (self.convert_datetime_to_timestamp(begin), self.convert_datetime_to_timestamp(end))
            for begin, end in zip(begin_timestep_list, end_timestep_list, strict=False)
        ]
        phases: dict[str, float] = {}
        detailed: dict[str, float] = {}
        if not spans:
            return phases, detailed
        first, last = min(begin for begin, _ in spans), max(end for _, end in spans)
        for event in self._events(first, last, selected_framework_metrics):
            if "Step" in event.event_name:
                continue
            took = (
                sum(event.end_time >= begin and event.start_time <= end for begin, end in spans)
                * event.duration
            )
            if took:
                phases[event.event_phase] = phases.get(event.event_phase, 0) + took
                detailed[event.event_name] = detailed.get(event.event_name, 0) + took
        return _scaled(phases), _scaled(detailed)

    def get_profiler_data_by_time(
        self,
        start_time_us: float,
        end_time_us: float,
        cache_metrics: bool = False,
        selected_framework_metrics: Sequence[str] = (),
        selected_system_metrics: Sequence[str] = (),
        get_framework_metrics: bool = True,
        get_system_metrics: bool = True,
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Returns both tables of a time, in microseconds since 1970.

        Parameters
        ----------
        start_time_us, end_time_us
            The time.
        cache_metrics
            The result has all that was asked for so.
        selected_framework_metrics, selected_system_metrics
            Only events with these names or phases; only metrics with these names.
        get_framework_metrics, get_system_metrics
            False: leave the table empty.
        """
        values: list[list[Any]] = []
        if get_system_metrics:
            for one in self.system_metrics_reader.get_events(start_time_us, end_time_us):
                if not selected_system_metrics or one.name in selected_system_metrics:
                    at = int(one.timestamp * CONVERT_TO_MICROSECS)
                    text = us_since_epoch_to_human_readable_time(at)
                    values.append([text, at, one.value, one.name, one.dimension, one.node_id, one.type])
            if cache_metrics:
                self.system_metrics.extend(values)
                values = self.system_metrics
        events: list[list[Any]] = []
        if get_framework_metrics:
            for event in self._events(start_time_us, end_time_us, selected_framework_metrics):
                args = event.event_args or {}
                events.append(
                    [
                        *_times(event),
                        event.tid,
                        event.pid,
                        _name_of(event, args),
                        _step_of(args),
                        args.get("bytes_fetched", -1),
                        event.event_phase,
                        event.node_id,
                    ]
                )
            if cache_metrics:
                self.framework_metrics.extend(events)
                events = self.framework_metrics
        system = pd.DataFrame(values, columns=list(_SYSTEM_COLUMNS))
        framework = pd.DataFrame(events, columns=list(_FRAMEWORK_COLUMNS))
        system["timestamp_us"] -= self.start_time
        framework["start_time_us"] -= self.start_time
        framework["end_time_us"] -= self.start_time
        return system[~system.duplicated()], framework[~framework.duplicated()]

    def get_profiler_data_by_step(
        self, start_step: int, end_step: int, cache_metrics: bool = False
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Returns the events of steps from `start_step` to `end_step`, both included, and the system metrics of their
        time.
        """
        system, framework = self.get_profiler_data_by_time(
            self.start_time,
            max(self._end(), self.start_time + 1) + self.interval,
            cache_metrics=cache_metrics,
        )
        framework = framework[framework["step"].between(start_step, end_step)]
        first, last = framework["start_time_us"].min(), framework["end_time_us"].max()
        return system[system["timestamp_us"].between(first, last)], framework

    def get_all_dataloader_metrics(self, selected_framework_metrics: Sequence[str] = ()) -> pd.DataFrame:
        """Returns the events of data loaders: those whose names or phases contain one of these expressions.

        Columns: those of `get_all_framework_metrics` with ``duration_us``, ``worker_id``, ``num_workers`` (-1: not
        known), ``pin_memory`` (``"True"``, ``"False"``, ``"NA"``), ``node_id``, and without ``tid`` and ``bytes``.
        """
        wanted = [re.compile(one) for one in selected_framework_metrics]
        rows: list[list[Any]] = []
        for event in self._events(self.start_time, self._end()):
            if wanted and not any(
                one.search(event.event_name) or one.search(event.event_phase) for one in wanted
            ):
                continue
            args = event.event_args or {}
            pinned = args.get("pin_memory")
            rows.append(
                [
                    *_times(event),
                    event.duration,
                    event.pid,
                    _name_of(event, args),
                    _step_of(args),
                    args.get("worker_id", -1),
                    args.get("num_workers", -1),
                    "NA" if pinned is None else str(pinned is True),
                    event.event_phase,
                    event.node_id,
                ]
            )
        found = pd.DataFrame(rows, columns=list(_LOADER_COLUMNS))
        found["start_time_us"] -= self.start_time
        found["end_time_us"] -= self.start_time
        return found[~found.duplicated()]


def _scaled(durations: dict[str, float]) -> dict[str, float]:
    most = max(durations.values(), default=0) or 1
    return {name: took / most for name, took in durations.items()}
