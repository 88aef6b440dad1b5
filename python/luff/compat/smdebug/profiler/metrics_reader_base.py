"""What readers of events have in common."""

from __future__ import annotations

import bisect
import os
import time
from typing import Any, ClassVar

from luff.compat.smdebug.core.access_layer.s3 import no_s3
from luff.compat.smdebug.core.logger import get_logger
from luff.compat.smdebug.profiler._files import walk
from luff.compat.smdebug.profiler.profiler_constants import (
    CONVERT_TO_MICROSECS,
    ENV_TIME_BUFFER,
    PYTHONTIMELINE_SUFFIX,
    TIME_BUFFER_DEFAULT,
)
from luff.compat.smdebug.profiler.utils import TimeUnits, convert_utc_timestamp_to_microseconds

__all__ = ["LocalReader", "MetricsReaderBase", "is_run"]


class MetricsReaderBase:
    """Finds the files of a time, reads them, and gives their events.

    Parameters
    ----------
    use_in_memory_cache
        Keep what was read. Otherwise only the files of the last call are kept, and read again if they have grown.
    """

    #: Folder of the files below that of the profiler.
    prefix = ""

    def __init__(self, use_in_memory_cache: bool = False) -> None:
        self.logger = get_logger()
        self._cache_events_in_memory = use_in_memory_cache
        self._event_parsers: list[Any] = []
        self._timestamp_to_filename: dict[int, list[str]] = {}
        #: What could not be read: file, line and why. Filled instead of raising an error if `collect_problems`.
        self.problems: list[str] = []
        self.collect_problems = False
        self._events_of: dict[str, tuple[tuple[int, int], list[Any]]] = {}  # by file, with its size and time

    def get_all_event_parsers(self) -> list[Any]:
        """Returns the parsers, one of each kind of file."""
        return self._event_parsers

    def get_timestamp_of_first_available_file(self) -> int:
        """Returns the time in the name of the oldest file, in microseconds; 0 if there is none."""
        return min(self._timestamp_to_filename, default=0)

    def get_timestamp_of_latest_available_file(self) -> int:
        """Returns the time in the name of the newest file, in microseconds; 0 if there is none."""
        return max(self._timestamp_to_filename, default=0)

    def get_current_time_range_for_event_query(self) -> tuple[int, int]:
        """Returns both."""
        return (
            self.get_timestamp_of_first_available_file(),
            self.get_timestamp_of_latest_available_file(),
        )

    def refresh_event_file_list(self) -> None:
        """Looks for new files."""

    def parse_event_files(self, event_files: list[str]) -> None:
        """Reads files that were not read, or have grown since."""
        for path in event_files:
            parser = self._get_event_parser(path)
            try:
                info = os.stat(path)
            except OSError:
                continue
            stamp = (info.st_size, info.st_mtime_ns)
            if parser is None or self._events_of.get(path, (None,))[0] == stamp:
                continue
            parser.clear_events()
            try:
                parser.read_events_from_file(path)
            except (OSError, ValueError) as error:
                if not self.collect_problems:
                    raise
                if not parser.problems:
                    self.problems.append(str(error))
            self.problems += [one for one in parser.problems if one not in self.problems]
            self._events_of[path] = (stamp, parser.get_all_events())
            parser.clear_events()

    def _get_event_parser(self, filename: str) -> Any:
        raise NotImplementedError

    def _get_timestamp_from_filename(self, event_file: str) -> int | None:
        raise NotImplementedError

    def _first_file(self, times: list[int], start: float) -> int:
        raise NotImplementedError

    def _list_below(self, trace_root_folder: str) -> None:
        known = {path for paths in self._timestamp_to_filename.values() for path in paths}
        for path in walk(os.path.join(os.path.expanduser(trace_root_folder), self.prefix)):
            stamp = None if path in known else self._get_timestamp_from_filename(path)
            if stamp is not None:
                paths = self._timestamp_to_filename.setdefault(stamp, [])
                bisect.insort(paths, path)

    def _get_event_files_in_the_range(
        self, start_time_microseconds: float, end_time_microseconds: float, use_buffer: bool = True
    ) -> list[str]:
        if use_buffer:
            around = float(os.environ.get(ENV_TIME_BUFFER, TIME_BUFFER_DEFAULT))
            start_time_microseconds -= around
            end_time_microseconds += around
        if end_time_microseconds >= self.get_timestamp_of_latest_available_file():
            self.refresh_event_file_list()
        times = sorted(self._timestamp_to_filename)
        first = self._first_file(times, start_time_microseconds)
        last = bisect.bisect_left(times, end_time_microseconds)
        return [path for stamp in times[first : last + 1] for path in self._timestamp_to_filename[stamp]]

    def get_events(
        self,
        start_time: float,
        end_time: float,
        unit: TimeUnits = TimeUnits.MICROSECONDS,
        event_type: str | None = None,
        file_suffix_filter: list[str] | None = None,
    ) -> list[Any]:
        """Returns the events of a time.

        Parameters
        ----------
        start_time, end_time, unit
            Values from the one to the other, both included; of timelines, events that overlap this time.
        event_type
            Of system metrics: only those of a type.
        file_suffix_filter
            Only files whose names end with one of these.
        """
        first = convert_utc_timestamp_to_microseconds(start_time, unit)
        last = convert_utc_timestamp_to_microseconds(end_time, unit)
        files = self._get_event_files_in_the_range(first, last)
        if file_suffix_filter is not None:
            files = [path for path in files if path.endswith(tuple(file_suffix_filter))]
        if not self._cache_events_in_memory:
            kept = set(files)
            self._events_of = {path: known for path, known in self._events_of.items() if path in kept}
        self.parse_event_files(files)
        found: list[Any] = []
        for path in files:
            _, events = self._events_of.get(path, (None, []))
            found += [event for event in events if self._is_in(event, first, last, event_type)]
        return found

    def _is_in(self, event: Any, first: int, last: int, event_type: str | None) -> bool:
        raise NotImplementedError

    def _get_time_interval_for_step(self, start_step: int, end_step: int) -> tuple[float, float]:
        begins: dict[int, float] = {}
        now = time.time() * CONVERT_TO_MICROSECS
        for event in self.get_events(0, now, file_suffix_filter=[PYTHONTIMELINE_SUFFIX]):
            number = str((getattr(event, "event_args", None) or {}).get("step_num"))
            if number.isdecimal():
                step = int(number)
                begins[step] = min(begins.get(step, event.start_time), event.start_time)
        if start_step not in begins or end_step not in begins:
            self.logger.info("there are no steps %s and %s", start_step, end_step)
            return 0, 0
        return begins[start_step], begins[end_step] - 1

    def get_events_by_step(
        self,
        start_step: int,
        end_step: int,
        event_type: str | None = None,
        file_suffix_filter: list[str] | None = None,
    ) -> list[Any]:
        """Returns the events from the begin of one step to that of another."""
        first, last = self._get_time_interval_for_step(start_step, end_step)
        return self.get_events(first, last, TimeUnits.MICROSECONDS, event_type, file_suffix_filter)


class LocalReader(MetricsReaderBase):
    """Reads the files below a folder. Derive from it first, and from a reader of one kind of files."""

    #: Name of the class in `_run` that reads the same from a run that Luff recorded.
    of_run: ClassVar[str]

    def __new__(cls, trace_root_folder: str, use_in_memory_cache: bool = False) -> Any:  # noqa: ARG004, D102
        if "of_run" in cls.__dict__ and is_run(trace_root_folder):
            from luff.compat.smdebug.profiler import _run

            return super().__new__(getattr(_run, cls.of_run))
        return super().__new__(cls)

    def __init__(self, trace_root_folder: str, use_in_memory_cache: bool = False) -> None:
        self.trace_root_folder = os.fspath(trace_root_folder)
        if self.trace_root_folder.startswith("s3://"):
            no_s3(self.trace_root_folder)
        super().__init__(use_in_memory_cache)
        self.refresh_event_file_list()

    def refresh_event_file_list(self) -> None:
        """Looks for new files."""
        self._list_below(self.trace_root_folder)


def is_run(path: str) -> bool:
    """Returns whether a directory is a run that Luff recorded."""
    return os.path.exists(os.path.join(os.path.expanduser(os.fspath(path)), "run.json"))
