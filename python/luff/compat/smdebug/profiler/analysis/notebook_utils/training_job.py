"""A job whose profiler's data lie in a folder, or in a run that Luff recorded."""

from __future__ import annotations

import os
import time
from typing import Any

from luff.compat.smdebug.core.access_layer.s3 import no_s3
from luff.compat.smdebug.profiler.algorithm_metrics_reader import LocalAlgorithmMetricsReader
from luff.compat.smdebug.profiler.system_metrics_reader import LocalSystemMetricsReader
from luff.errors import DeadlineExceededError, NotFoundError

__all__ = ["TrainingJob"]

_LOOK_S = 0.25


class TrainingJob:
    """Gives the readers of a job.

    Parameters
    ----------
    training_job_name
        The folder of the profiler, or a run.
    region
        Accepted; no service is asked.

    Raises
    ------
    NotFoundError
        If there is no such directory.
    """

    def __init__(self, training_job_name: str, region: str | None = None) -> None:  # noqa: ARG002
        self.name = os.path.expanduser(os.fspath(training_job_name))
        if self.name.startswith("s3://"):
            no_s3(self.name)
        if not os.path.isdir(self.name):
            raise NotFoundError(
                f"found no directory, expected the folder of a profiler (with system and framework in it) or a run; "
                f"copy that of a job of the platform first (aws s3 sync): {self.name}"
            )
        self.profiler_s3_output_path = self.name
        self.system_metrics_reader: LocalSystemMetricsReader | None = None
        self.framework_metrics_reader: LocalAlgorithmMetricsReader | None = None

    def describe_training_job(self) -> dict[str, Any]:
        """Returns name and place."""
        return {"TrainingJobName": os.path.basename(self.name.rstrip("/")), "ProfilerOutputPath": self.name}

    def get_config_and_profiler_s3_output_path(self) -> str:
        """Returns the folder."""
        return self.name

    def get_systems_metrics_reader(self) -> LocalSystemMetricsReader:
        """Returns the reader of system metrics."""
        if self.system_metrics_reader is None:
            self.system_metrics_reader = LocalSystemMetricsReader(self.name)
        return self.system_metrics_reader

    def get_framework_metrics_reader(self) -> LocalAlgorithmMetricsReader:
        """Returns the reader of timelines."""
        if self.framework_metrics_reader is None:
            self.framework_metrics_reader = LocalAlgorithmMetricsReader(self.name)
        return self.framework_metrics_reader

    @staticmethod
    def _wait(reader: Any, what: str, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        while True:
            reader.refresh_event_file_list()
            if reader.get_timestamp_of_first_available_file():
                return
            if time.monotonic() >= until:
                raise DeadlineExceededError(
                    f"no {what} came within {timeout_s:g} s: {reader.trace_root_folder}"
                )
            time.sleep(_LOOK_S)

    def wait_for_sys_profiling_data_to_be_available(self, timeout_s: float = 600.0) -> None:
        """Waits for system metrics. Raises `DeadlineExceededError` if none come in time."""
        self._wait(self.get_systems_metrics_reader(), "system metrics", timeout_s)

    def wait_for_framework_profiling_data_to_be_available(self, timeout_s: float = 600.0) -> None:
        """Waits for timelines. Raises `DeadlineExceededError` if none come in time."""
        self._wait(self.get_framework_metrics_reader(), "timelines", timeout_s)
