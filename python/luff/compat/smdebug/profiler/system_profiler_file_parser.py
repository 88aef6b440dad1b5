"""Metrics of the system: a JSON object a line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from luff.compat.smdebug.core.logger import get_logger
from luff.compat.smdebug.profiler._files import system_records
from luff.compat.smdebug.profiler.utils import TimeUnits, convert_utc_timestamp_to_nanoseconds

__all__ = ["ProfilerSystemEvent", "ProfilerSystemEvents", "SystemProfilerEventParser"]


class ProfilerSystemEvent:
    """One value.

    Attributes
    ----------
    type
        ``cpu``, ``gpu``, ``i/o``, ``memory`` or ``network``, as it was written.
    name
        E.g. ``cpu0``; None if there is none.
    dimension
        E.g. ``CPUUtilization``.
    value
        Percent; bytes a second of networks.
    node_id
        E.g. ``algo-1``.
    timestamp
        In seconds since 1970.
    """

    __slots__ = ("dimension", "name", "node_id", "timestamp", "type", "value")

    def __init__(
        self, event_type: str, name: str | None, dimension: str, value: float, node_id: str, timestamp: float
    ) -> None:
        self.type = event_type
        self.name = name
        self.dimension = dimension
        self.value = value
        self.node_id = node_id
        self.timestamp = timestamp

    def __repr__(self) -> str:
        return f"<{self.type} {self.name} {self.dimension}={self.value} {self.node_id} {self.timestamp}>"


class SystemProfilerEventParser:
    """Collects the values of files."""

    def __init__(self) -> None:
        self._events: list[ProfilerSystemEvent] = []
        self.problems: list[str] = []  # of the file that was read last
        self.logger = get_logger()

    def read_event_from_dict(self, event: Mapping[str, Any]) -> None:
        """Adds one value."""
        self._events.append(
            ProfilerSystemEvent(
                event["Type"],
                event.get("Name"),
                event["Dimension"],
                event["Value"],
                event["NodeId"],
                event["Timestamp"],
            )
        )

    def read_events_from_json_data(self, system_profiler_json_data: Iterable[Mapping[str, Any]]) -> None:
        """Adds many."""
        for event in system_profiler_json_data:
            self.read_event_from_dict(event)

    def read_events_from_file(self, eventfile: str) -> None:
        """Adds those of a file. A last line that is unfinished is skipped.

        Raises
        ------
        ValueError
            If another line is no value; the error names file and line. What is before and after it is added.
        """
        self.problems = []
        records, self.problems = system_records(eventfile)
        self.read_events_from_json_data(records)
        if self.problems:
            raise ValueError("; ".join(self.problems[:3]))

    def get_events_within_time_range(
        self,
        start_time: float,
        end_time: float,
        unit: TimeUnits = TimeUnits.MICROSECONDS,
        event_type: str | None = None,
    ) -> list[ProfilerSystemEvent]:
        """Returns values from `start_time` to `end_time`, both included, of one type or of all."""
        first = convert_utc_timestamp_to_nanoseconds(start_time, unit)
        last = convert_utc_timestamp_to_nanoseconds(end_time, unit)
        return [
            event
            for event in self._events
            if (event_type is None or event.type == event_type)
            and first <= convert_utc_timestamp_to_nanoseconds(event.timestamp, TimeUnits.SECONDS) <= last
        ]

    def get_all_events(self) -> list[ProfilerSystemEvent]:
        """Returns all values."""
        return self._events

    def clear_events(self) -> None:
        """Forgets them."""
        self._events = []


class ProfilerSystemEvents(SystemProfilerEventParser):
    """The same, under the name that readers use."""
