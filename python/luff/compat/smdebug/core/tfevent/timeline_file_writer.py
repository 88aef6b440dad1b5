"""Timelines: what happened when, as a JSON array of trace events that Chrome and Perfetto show.

A file is written beside its final path and moved there when it is large or old enough. Its name holds the time of its
last event.
"""

from __future__ import annotations

import io
import json
import os
import socket
import sys
import time
from typing import Any

from luff._held_file import HeldFile
from luff.compat.smdebug.core.config_constants import DEFAULT_RESOURCE_CONFIG_FILE
from luff.compat.smdebug.core.logger import get_logger
from luff.compat.smdebug.profiler.profiler_constants import (
    CONVERT_TO_MICROSECS,
    FRAMEWORK_PREFIX,
    PYTHONTIMELINE_SUFFIX,
    TRACE_DIRECTORY_FORMAT,
)

__all__ = ["TimelineFileWriter", "node_id"]


def node_id() -> str:
    """Returns the rank, or the process id if there is none, and the host."""
    number = os.getpid()
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        number = distributed.get_rank()
    try:
        with open(DEFAULT_RESOURCE_CONFIG_FILE, encoding="utf-8") as file:
            host = str(json.load(file)["current_host"])
    except (OSError, ValueError, KeyError, TypeError):
        host = socket.gethostname()
    return f"{number}-{host}".replace("_", "-")


class _File:
    """Writes one file after the other; at most one is open."""

    def __init__(self, config: Any, suffix: str) -> None:
        self._folder = os.path.join(config.local_path, FRAMEWORK_PREFIX)
        self._suffix = suffix
        self._most_bytes = config.trace_file.rotation_policy.file_max_size
        self._most_s = config.trace_file.rotation_policy.file_close_interval
        self._most_failures = config.trace_file.file_open_fail_threshold
        self._file: Any = None
        self._failures = 0
        self._healthy = True
        self._closed_at = time.time()
        self._phases: dict[str, int] = {}
        self._told: set[str] = set()
        self._start_us = self._last_us = 0
        self._bytes = 0
        self._pid = os.getpid()

    def _write(self, record: dict[str, Any]) -> None:
        text = json.dumps(record)
        lead = ",\n" if self._bytes else "[\n"
        self._file.write(lead + text)
        self._bytes += len(lead) + len(text)

    def _open(self, start_us: int) -> bool:
        self._temporary = os.path.join(self._folder, f"{node_id()}_{self._suffix}.tmp")
        try:
            os.makedirs(self._folder, exist_ok=True)
            self._file = io.TextIOWrapper(io.BufferedWriter(HeldFile(self._temporary)), encoding="utf-8")
        except OSError as error:
            self._failures += 1
            if self._failures >= self._most_failures:
                self._healthy = False
                get_logger().warning("no timeline is written: %s", error)
            return False
        self._failures, self._bytes, self._told, self._start_us = 0, 0, set(), start_us
        for name, args in (
            ("process_name", {"start_time_since_epoch_in_micros": start_us}),
            ("process_sort_index", {"sort_index": 0}),
        ):
            self._write({"name": name, "ph": "M", "pid": 0, "args": args})
        return True

    def add(self, phase: str, record: dict[str, Any], at_us: int, end_us: int) -> None:
        """Writes an event, into a new file if the open one is full or old."""
        if not self._healthy or os.getpid() != self._pid:
            return
        try:
            if self._file is not None and (
                self._bytes > self._most_bytes or time.time() - self._closed_at > self._most_s
            ):
                self.close()
            if self._file is None and not self._open(at_us):
                return
            number = self._phases.setdefault(phase, len(self._phases))
            if phase not in self._told and record["ph"] != "i":
                self._told.add(phase)
                self._write({"name": "process_name", "ph": "M", "pid": number, "args": {"name": phase}})
                self._write(
                    {"name": "process_sort_index", "ph": "M", "pid": number, "args": {"sort_index": number}}
                )
            self._write({**record, "pid": number, "ts": at_us - self._start_us})
            self._last_us = max(self._last_us, end_us)
        except OSError as error:
            self._healthy = False
            get_logger().warning("no more of the timeline is written: %s", error)

    def flush(self) -> None:
        if self._file is not None:
            try:
                self._file.flush()
            except OSError:
                self._healthy = False

    def close(self) -> None:
        """Moves the open file to its final path."""
        if self._file is None or os.getpid() != self._pid:
            return
        file, self._file = self._file, None
        self._closed_at = time.time()
        try:
            file.write("\n]\n")
            file.close()
            hour = time.strftime(TRACE_DIRECTORY_FORMAT, time.gmtime(self._last_us / CONVERT_TO_MICROSECS))
            folder = os.path.join(self._folder, "pevents", hour)
            os.makedirs(folder, exist_ok=True)
            name = os.path.basename(self._temporary).removesuffix(".tmp")
            os.replace(self._temporary, os.path.join(folder, f"{self._last_us}_{name}"))
        except OSError as error:
            get_logger().warning("a timeline could not be finished: %s", error)
        self._last_us = 0


class TimelineFileWriter:
    """Writes the trace events of this process.

    Parameters
    ----------
    profiler_config_parser
        Says where to write, and how large and old a file may become.
    suffix
        End of the files' names.
    """

    def __init__(self, profiler_config_parser: Any, suffix: str = PYTHONTIMELINE_SUFFIX) -> None:
        self._config = profiler_config_parser
        self._suffix = suffix
        config = profiler_config_parser.config
        self._worker = _File(config, suffix) if config is not None else None

    def write_trace_events(
        self,
        timestamp: float,
        training_phase: str = "",
        op_name: str = "",
        phase: str = "X",
        duration: float = 0.0,
        **kwargs: Any,
    ) -> None:
        """Adds an event.

        Parameters
        ----------
        timestamp, duration
            In seconds; the duration counts for events of phase ``"X"``.
        training_phase, op_name
            The row that shows the event, and the event's name.
        phase
            ``"X"``, or ``"B"`` and ``"E"``, or ``"i"``.
        **kwargs
            Further arguments of the event.
        """
        if not self._config.profiling_enabled or self._worker is None:
            return
        at = round(timestamp * CONVERT_TO_MICROSECS)
        lasting = round(duration * CONVERT_TO_MICROSECS) if phase == "X" else 0
        record: dict[str, Any] = {"name": op_name or training_phase, "ph": phase}
        if phase == "X":
            record["dur"] = lasting
        if phase == "i":
            record["s"] = kwargs.pop("s", "t")
        known = {key: v if isinstance(v, (int, float, str, bool)) else str(v) for key, v in kwargs.items()}
        record["args"] = {"pid": os.getpid(), **known}
        self._worker.add(training_phase, record, at, at + lasting)

    def flush(self) -> None:
        """Flushes what is written to the operating system."""
        if self._worker is not None:
            self._worker.flush()

    def close(self) -> None:
        """Moves the open file to its final path."""
        if self._worker is not None:
            self._worker.close()
