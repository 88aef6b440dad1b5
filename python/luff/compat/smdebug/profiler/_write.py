"""Writes a run in the layout of the original's profiler: system metrics by minute, timelines, end markers."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Any

from luff.compat.smdebug.core.config_constants import TRAINING_END_FILENAME
from luff.compat.smdebug.profiler._run import system_events, trace_events
from luff.compat.smdebug.profiler.profiler_constants import (
    CONVERT_TO_MICROSECS,
    DEFAULT_PREFIX,
    FRAMEWORK_PREFIX,
    MAX_FILE_SIZE_DEFAULT,
    PYTHONTIMELINE_SUFFIX,
    TRACE_DIRECTORY_FORMAT,
)
from luff.compat.smdebug.profiler.trace_event_file_parser import TraceEvent
from luff.errors import AlreadyExistsError
from luff.trial import open_trial

__all__ = ["write_profile"]

_MINUTE_S = 60


class _Timeline:
    """The timelines of one worker; a file is closed when it is large, or when a minute has passed in it."""

    def __init__(self, root: str, node: str) -> None:
        self._root = root
        self._node = node
        self._rows: list[str] = []
        self._bytes = 0
        self._phases: dict[str, int] = {}
        self._told: set[str] = set()
        self._start = self._last = 0

    def _metadata(self, number: int, **args: Any) -> None:
        for name, given in (("process_name", args), ("process_sort_index", {"sort_index": number})):
            self._rows.append(json.dumps({"name": name, "ph": "M", "pid": number, "args": given}))

    def add(self, event: TraceEvent) -> None:
        begin, took = round(event.start_time), round(event.duration)
        full = self._bytes > MAX_FILE_SIZE_DEFAULT
        if self._rows and (full or begin - self._start > _MINUTE_S * CONVERT_TO_MICROSECS):
            self.close()
        if not self._rows:
            self._start, self._bytes, self._told = begin, 0, set()
            self._metadata(0, start_time_since_epoch_in_micros=begin)
        # The first record's process is number 0, which has no phase.
        number = self._phases.setdefault(event.event_phase, len(self._phases) + 1)
        if event.event_phase not in self._told:
            self._told.add(event.event_phase)
            self._metadata(number, name=event.event_phase)
        row = json.dumps(
            {
                "name": event.event_name,
                "pid": number,
                "ph": "X",
                "ts": begin - self._start,
                "dur": took,
                "args": {**(event.event_args or {}), "pid": event.pid},
            }
        )
        self._rows.append(row)
        self._bytes += len(row) + 2
        self._last = max(self._last, begin + took)

    def close(self) -> None:
        if not self._rows:
            return
        hour = time.strftime(TRACE_DIRECTORY_FORMAT, time.gmtime(self._last / CONVERT_TO_MICROSECS))
        folder = os.path.join(self._root, DEFAULT_PREFIX, hour)
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"{self._last}_{self._node}_{PYTHONTIMELINE_SUFFIX}")
        with open(path, "x", encoding="utf-8") as file:
            file.write("[\n" + ",\n".join(self._rows) + "\n]")
        self._rows = []


def _minutes(events: list[Any]) -> Iterator[tuple[str, int, list[Any]]]:
    """Yields node, minute (seconds since 1970) and values of each file of system metrics."""
    files: dict[tuple[str, int], list[Any]] = {}
    for event in events:
        minute = int(event.timestamp // _MINUTE_S) * _MINUTE_S
        files.setdefault((event.node_id, minute), []).append(event)
    for (node, minute), values in files.items():
        yield node, minute, values


def write_profile(run: str, out: str) -> dict[str, int]:
    """Writes what a run has of phases and samples.

    Parameters
    ----------
    run
        The run that Luff recorded.
    out
        A directory that is new or empty.

    Returns
    -------
    dict
        ``steps``, ``events`` and ``values`` that were written.

    Raises
    ------
    AlreadyExistsError
        If `out` is not empty.
    """
    if os.path.isdir(out) and os.listdir(out):
        raise AlreadyExistsError(f"the output directory is not empty; give another one: {out}")
    trial = open_trial(run)
    os.makedirs(out, exist_ok=True)
    timelines: dict[str, _Timeline] = {}
    steps = events = values = 0
    for event in trace_events(trial):
        # The original's name: the worker first.
        host, _, worker = event.node_id.rpartition("-")
        timeline = timelines.setdefault(event.node_id, _Timeline(out, f"{worker}-{host}"))
        timeline.add(event)
        events += 1
        steps += event.event_name.startswith("Step:")
    for timeline in timelines.values():
        timeline.close()
    for node, minute, found in _minutes(system_events(trial.profile())):
        hour = time.strftime(TRACE_DIRECTORY_FORMAT, time.gmtime(minute))
        folder = os.path.join(out, "system", "incremental", hour)
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, f"{minute}.{node}.json"), "x", encoding="utf-8") as file:
            for one in found:
                row = {
                    "Type": one.type, "Name": one.name, "Dimension": one.dimension, "Value": one.value,
                    "NodeId": one.node_id, "Timestamp": one.timestamp,
                }  # fmt: skip
                file.write(json.dumps(row) + "\n")
                values += 1
    if trial.loaded_all_steps:
        for folder, there in (("system", values), (FRAMEWORK_PREFIX, events)):
            if there:
                with open(os.path.join(out, folder, TRAINING_END_FILENAME), "w", encoding="utf-8"):
                    pass
    return {"steps": steps, "events": events, "values": values}
