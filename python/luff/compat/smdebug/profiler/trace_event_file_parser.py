"""Timelines: trace events with processes and threads."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from luff.compat.smdebug.core.logger import get_logger
from luff.compat.smdebug.profiler._files import timeline_records
from luff.compat.smdebug.profiler.utils import (
    TimeUnits,
    convert_utc_datetime_to_microseconds,
    convert_utc_timestamp_to_microseconds,
    get_node_id_from_tracefilename,
)

__all__ = ["ProcessInfo", "ThreadInfo", "TraceEvent", "TraceEventParser"]

_PID_FIRST = re.compile(r"(.*)-(algo.*)")


class ThreadInfo:
    """A row of a process."""

    def __init__(self, tid: Any, thread_name: str) -> None:
        self.tid = tid
        self.thread_name = thread_name

    def __repr__(self) -> str:
        return f"tid:{self.tid} name:{self.thread_name}"


class ProcessInfo:
    """A phase of the training, which timelines call a process, with its threads."""

    def __init__(self, id: Any, name: str) -> None:  # noqa: A002
        self.id = id
        self.name = name
        self._threads: dict[Any, ThreadInfo] = {}

    def add_thread(self, threadid: Any, thread_name: str) -> None:
        """Adds a thread, unless it is there."""
        self._threads.setdefault(threadid, ThreadInfo(threadid, thread_name))

    def get_thread_info(self, threadid: Any) -> ThreadInfo:
        """Returns a thread. Raises KeyError if there is none of the number."""
        return self._threads[threadid]

    def __repr__(self) -> str:
        return f"id:{self.id} name:{self.name} threads:{self._threads}"


class TraceEvent:
    """Something that took a time.

    Attributes
    ----------
    start_time, end_time, duration
        Microseconds since 1970; microseconds.
    event_name, event_phase
        Name of the event, and of the process that shows it.
    pid, tid
        Process and thread that did it, where the event says so; else those that show it: `phase_pid`, `phase_tid`.
    event_args
        What else it says; None if nothing.
    node_id
        E.g. ``algo-1-0``.
    phase
        Kind of event: ``X``.
    file_type
        Kind of timeline.
    """

    def __init__(
        self,
        ts: float,
        name: str,
        dur: float,
        phase_pid: Any,
        phase_tid: Any,
        event_args: dict[str, Any] | None,
        node_id: str,
        phase: str,
        file_type: str,
        event_phase: str = "",
        pid: Any = 0,
        tid: Any = 0,
        process_info: ProcessInfo | None = None,
    ) -> None:
        self.start_time = ts
        self.event_name = name
        self.duration = dur
        self.end_time = ts + dur
        self.phase_pid = phase_pid
        self.phase_tid = phase_tid
        self.pid = pid
        self.tid = tid
        self.event_args = event_args
        self.node_id = node_id
        self.phase = phase
        self.event_phase = event_phase
        self.process_info = process_info
        self.file_type = file_type

    def to_json(self) -> str:
        """Returns it as a trace event."""
        args = dict(self.event_args or {})
        found: dict[str, Any] = {
            "name": self.event_name,
            "pid": self.pid,
            "tid": self.tid,
            "ph": self.phase,
            "ts": self.start_time,
        }
        if self.phase == "i":
            found["s"] = args.pop("s", "t")
        elif self.phase == "X":
            found["dur"] = self.duration
        if args:
            found["args"] = args
        return json.dumps(found)

    def __repr__(self) -> str:
        return f"<{self.event_phase}: {self.event_name} {self.start_time} +{self.duration} {self.node_id}>"


class TraceEventParser:
    """Collects the events of timelines of one kind.

    Events of phase ``X`` are taken as they are, and pairs of ``B`` and ``E``.
    """

    def __init__(self, type: str = "") -> None:  # noqa: A002
        self.type = type
        self.logger = get_logger()
        self.problems: list[str] = []  # of the file that was read last
        self._processes: dict[Any, ProcessInfo] = {}
        self._first_of_name: dict[str, Any] = {}  # one process of each name, whatever its number elsewhere
        self._trace_events: list[TraceEvent] = []
        self._begun: dict[Any, list[dict[str, Any]]] = {}  # B events without their E, by process
        self._start_timestamp: float = 0

    def _process(self, number: Any) -> ProcessInfo:
        found = self._processes.get(number)
        if found is None:
            found = self._processes[number] = ProcessInfo(number, "Unknown")
        return found

    def _read_metadata(self, event: dict[str, Any], node_id: str) -> None:
        args, name, number = event.get("args") or {}, event.get("name"), event.get("pid", 0)
        if name == "process_name":
            title = str(args.get("name", "Unknown"))
            self._processes[number] = ProcessInfo(self._first_of_name.setdefault(title, number), title)
        elif name == "thread_name":
            self._process(number).add_thread(event.get("tid", 0), f"{node_id}_{args.get('name', '')}")
        elif name == "thread_sort_index":
            self._process(number).add_thread(event.get("tid", 0), "Unknown")
        start = args.get("start_time_since_epoch_in_micros")
        if isinstance(start, (int, float)):
            self._start_timestamp = start

    def _add(self, event: dict[str, Any], duration: float, args: dict[str, Any] | None, node_id: str) -> None:
        number = event.get("pid", 0)
        process = self._process(number)
        tid = event.get("tid", 0)
        if "tid" not in event or tid not in process._threads:
            # A thread that nobody named: one for each node and process.
            title = f"{node_id}_{tid}"
            tid = zlib.crc32(f"{title}{process.name}".encode("utf-8", "replace"))
            process.add_thread(tid, title)
        told = args or {}
        self._trace_events.append(
            TraceEvent(
                event["ts"] + self._start_timestamp,
                str(event.get("name", "")),
                duration,
                number,
                tid,
                args,
                node_id,
                "X",
                self.type,
                process.name,
                told.get("pid", number),
                told.get("thread_id", tid),
                process,
            )
        )

    def _read_event(self, event: dict[str, Any], node_id: str = "") -> None:
        match = _PID_FIRST.fullmatch(node_id or "")
        if match:
            node_id = f"{match[2]}-{match[1]}"
        kind = event.get("ph")
        if kind == "M":
            self._read_metadata(event, node_id)
        elif kind == "X" and "ts" in event and "dur" in event:
            self._add(event, event["dur"], event.get("args"), node_id)
        elif kind == "B" and "ts" in event:
            self._begun.setdefault(event.get("pid", 0), []).append(event)
        elif kind == "E" and "ts" in event:
            open_ones = self._begun.get(event.get("pid", 0))
            if open_ones:
                begun = open_ones.pop()
                if event["ts"] >= begun["ts"]:
                    self._add(begun, event["ts"] - begun["ts"], event.get("args"), node_id)

    def read_events_from_json_data(self, trace_json_data: Iterable[dict[str, Any]], node_id: str) -> None:
        """Adds events; those that are none are left out."""
        for event in trace_json_data:
            if isinstance(event, dict):
                self._read_event(event, node_id)

    def read_events_from_file(self, tracefile: str) -> None:
        """Adds the events of a timeline. What cannot be read is logged with file and line, and left out."""
        try:
            records, self.problems = timeline_records(tracefile)
        except (OSError, ValueError) as error:
            self.problems = [str(error)]
            self.logger.error("a timeline cannot be read: %s", error)
            return
        for problem in self.problems:
            self.logger.error("%s", problem)
        self._begun.clear()
        self.read_events_from_json_data(records, get_node_id_from_tracefilename(tracefile))

    def get_all_events(self) -> list[TraceEvent]:
        """Returns all events."""
        return self._trace_events

    def get_events_start_time_sorted(self) -> list[TraceEvent]:
        """Returns all events by their begin."""
        return sorted(self._trace_events, key=lambda event: event.start_time)

    def get_events_end_time_sorted(self) -> list[TraceEvent]:
        """Returns all events by their end."""
        return sorted(self._trace_events, key=lambda event: event.end_time)

    def get_events_within_time_range(
        self, start_time: float, end_time: float, unit: TimeUnits = TimeUnits.MICROSECONDS
    ) -> list[TraceEvent]:
        """Returns events that overlap the time from `start_time` to `end_time`."""
        first = convert_utc_timestamp_to_microseconds(start_time, unit)
        last = convert_utc_timestamp_to_microseconds(end_time, unit)
        return [one for one in self._trace_events if one.end_time >= first and one.start_time <= last]

    def get_events_within_range(self, start_time: datetime, end_time: datetime) -> list[TraceEvent]:
        """The same between two dates."""
        return self.get_events_within_time_range(
            convert_utc_datetime_to_microseconds(start_time), convert_utc_datetime_to_microseconds(end_time)
        )

    def get_process_info(self, process_id: Any) -> ProcessInfo:
        """Returns a process. Raises KeyError if there is none of the number."""
        return self._processes[process_id]

    def get_processes(self) -> dict[Any, ProcessInfo]:
        """Returns the processes by number."""
        return self._processes

    def clear_events(self) -> None:
        """Forgets the events; processes stay known."""
        self._trace_events = []
