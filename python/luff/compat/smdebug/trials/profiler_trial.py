"""A trial of the profiler: what it recorded of a job, for rules."""

from __future__ import annotations

import os
import time
from typing import Any

from luff.compat.smdebug.core.access_layer.utils import (
    has_training_ended,
    is_rule_signalled_gracetime_passed,
)
from luff.compat.smdebug.core.logger import get_logger
from luff.compat.smdebug.exceptions import NoMoreProfilerData
from luff.compat.smdebug.profiler.algorithm_metrics_reader import LocalAlgorithmMetricsReader
from luff.compat.smdebug.profiler.metrics_reader_base import is_run
from luff.compat.smdebug.profiler.system_metrics_reader import LocalSystemMetricsReader

__all__ = ["ProfilerTrial"]

_LOOK_S = 0.25
_MINUTE_US = 60_000_000
#: Without an end marker, a folder in which nothing changed for so long is that of a job that is over.
_SILENT_S = 60.0


class ProfilerTrial:
    """What a profiler recorded of a job.

    Parameters
    ----------
    name
        Of the trial.
    trial_dir
        Folder of the profiler, with ``system`` and ``framework`` in it, or a run that Luff recorded.
    output_dir
        Where rules write; None: nowhere.
    follow
        False: look at what is there, as if the job were over.

    Attributes
    ----------
    first_timestamp
        Of the first data, in microseconds; 0 if there is none yet.
    """

    def __init__(self, name: str, trial_dir: str, output_dir: str | None = None, follow: bool = True) -> None:
        self.name = name
        self.path = os.fspath(trial_dir)
        self.output_dir = output_dir
        self.follow = follow
        self.logger = get_logger()
        self._run: Any = None
        if is_run(self.path):
            from luff.trial import open_trial

            self._run = open_trial(self.path)
        self.system_metrics_reader = LocalSystemMetricsReader(self.path)
        self.framework_metrics_reader = LocalAlgorithmMetricsReader(self.path)
        self.first_timestamp = 0
        self.get_first_timestamp()
        if output_dir:
            os.makedirs(output_dir, exist_ok=True)

    def get_first_timestamp(self) -> int:
        """Returns the time of the first data."""
        found = [
            reader.get_timestamp_of_first_available_file()
            for reader in (self.system_metrics_reader, self.framework_metrics_reader)
        ]
        if self._run is None and found[1]:
            # A timeline's name holds the time of its end.
            first = self.framework_metrics_reader.get_events(0, found[1])
            found[1] = int(min((event.start_time for event in first), default=found[1]))
        self.first_timestamp = min((one for one in found if one), default=0)
        return self.first_timestamp

    def get_latest_timestamp(self) -> int:
        """Returns the time up to which there is data."""
        self.system_metrics_reader.refresh_event_file_list()
        self.framework_metrics_reader.refresh_event_file_list()
        return max(
            self.system_metrics_reader.get_timestamp_of_latest_available_file(),
            self.framework_metrics_reader.get_timestamp_of_latest_available_file(),
        )

    def job_finished(self) -> bool:
        """Returns whether no more data comes."""
        if not self.follow:
            return True
        if self._run is not None:
            self._run.refresh()
            return bool(self._run.loaded_all_steps)
        folders = [os.path.join(self.path, name) for name in ("system", "framework")]
        if any(has_training_ended(folder) for folder in folders):
            return True
        if is_rule_signalled_gracetime_passed(self.path):
            return True
        from luff.compat.smdebug.profiler._files import walk

        newest = max((os.stat(path).st_mtime for path in walk(self.path)), default=0.0)
        return time.time() - newest > _SILENT_S

    def wait_for_data(self, end_time: float, start_time: float) -> None:
        """Waits until there is data up to `end_time`, or the job is over.

        Raises
        ------
        NoMoreProfilerData
            If the job is over, and has no data after `start_time`.
        """
        while True:
            over = self.job_finished()  # before looking: what comes between the two is looked at
            latest = self.get_latest_timestamp()
            if end_time < latest:
                return
            if over:
                if not self._has_data_after(start_time, latest):
                    raise NoMoreProfilerData(end_time)
                return
            time.sleep(_LOOK_S)

    def _has_data_after(self, start_time: float, latest: float) -> bool:
        # A file of system metrics is named after the minute that it begins with.
        end = max(latest, start_time) + _MINUTE_US
        events = self.framework_metrics_reader.get_events(start_time, end)
        return any(event.end_time >= start_time for event in events) or bool(
            self.system_metrics_reader.get_events(start_time, end)
        )

    def get_system_metrics(self, start_time: float, end_time: float) -> list[Any]:
        """Returns the system metrics of a time in microseconds."""
        return self.system_metrics_reader.get_events(start_time, end_time)

    def get_framework_metrics(self, start_time: float, end_time: float) -> list[Any]:
        """Returns the events of timelines that overlap a time in microseconds."""
        return self.framework_metrics_reader.get_events(start_time, end_time)
