"""A run that Luff recorded, as events of the original's profiler.

Steps become ``Step:ModeKeys.<MODE>``, phases events of the phases that the original has or of their own name. What the
sampler measured becomes the original's system metrics, as far as it has them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from luff.compat.smdebug.profiler.algorithm_metrics_reader import LocalAlgorithmMetricsReader
from luff.compat.smdebug.profiler.profiler_constants import CONVERT_TO_MICROSECS, PYTHONTIMELINE_SUFFIX
from luff.compat.smdebug.profiler.system_metrics_reader import LocalSystemMetricsReader
from luff.compat.smdebug.profiler.system_profiler_file_parser import ProfilerSystemEvent
from luff.compat.smdebug.profiler.trace_event_file_parser import ProcessInfo, TraceEvent
from luff.compat.smdebug.profiler.utils import TimeUnits, convert_utc_timestamp_to_microseconds
from luff.profile import HostSamples, Profile
from luff.trial import Trial, open_trial

__all__ = ["RunAlgorithmMetricsReader", "RunSystemMetricsReader", "node_of", "system_events", "trace_events"]

# Phase and event of the original for Luff's phases. Others keep their name.
NAMES = {
    "data_wait": ("DataLoaderIter", "DataLoaderIter::GetNext"),
    "data_start": ("DataLoaderIterInitialize", "DataLoaderIter.__init__"),
    "forward": ("Forward", "Forward-node"),
    "backward": ("Backward(post-forward)", "Backward(post-forward)-node"),
}
STEP = "Step:ModeKeys."
FILE_TYPE = "PythontimelineMetrics"


def node_of(host: int) -> str:
    """Returns the original's name of a host."""
    return f"algo-{host + 1}"


def _hosts_of_workers(profile: Profile) -> dict[int, int]:
    """Returns on which host each worker is, as the names of their series say; 0 if they do not."""
    found = {}
    for place, host in enumerate(profile.hosts):
        for name in host.units:
            parts = name.split(".")
            if parts[0] == "rank" and len(parts) > 2 and parts[1].isdecimal():
                found[int(parts[1])] = place
    return found


def trace_events(trial: Trial) -> Iterator[TraceEvent]:
    """Yields steps, each followed by its phases, worker by worker; times in microseconds since 1970."""
    profile = trial.profile("GLOBAL")
    hosts = _hosts_of_workers(profile)
    processes: dict[str, ProcessInfo] = {}

    def event(
        phase: str, name: str, begin: float, took: float, args: dict[str, Any], worker: int
    ) -> TraceEvent:
        process = processes.setdefault(phase, ProcessInfo(len(processes) + 1, phase))
        process.add_thread(worker, f"rank {worker}")
        node = f"{node_of(hosts.get(worker, 0))}-{worker}"
        return TraceEvent(
            begin, name, took, process.id, worker, args, node, "X", FILE_TYPE, phase, worker, worker, process
        )

    steps = profile.steps
    for row in range(len(profile)):
        begin = float(steps["begin_unix_s"][row]) * CONVERT_TO_MICROSECS
        worker, mode = int(steps["worker"][row]), str(steps["mode"][row])
        args = {"step_num": str(int(steps["mode_step"][row]))}
        took = float(steps["wall"][row]) * CONVERT_TO_MICROSECS
        yield event(STEP + mode, STEP + mode, begin, took, args, worker)
        for name, seconds in profile.phases.items():
            offset = profile.offsets[name][row]
            if name == "other" or np.isnan(offset) or seconds[row] <= 0:
                continue
            phase, title = NAMES.get(name, (name, name))
            yield event(
                phase,
                title,
                begin + float(offset) * CONVERT_TO_MICROSECS,
                float(seconds[row]) * CONVERT_TO_MICROSECS,
                args,
                worker,
            )


def _percent_of_cores(host: HostSamples, suffix: str, dimension: str, kind: str) -> Iterator[tuple[Any, ...]]:
    for name in host.units:
        parts = name.split(".")
        if len(parts) == 3 and parts[0] == "cpu" and parts[2] == suffix and parts[1].isdecimal():
            rate = host.rates(name)
            yield kind, f"cpu{parts[1]}", dimension, rate["unix_s"], 100 * np.minimum(rate["value"], 1)


def _series(host: HostSamples) -> Iterator[tuple[Any, ...]]:
    """Yields type, name, dimension, times (seconds) and values."""
    yield from _percent_of_cores(host, "busy", "CPUUtilization", "cpu")
    if "cpu.iowait" in host.units:  # of all cores together: the kernel's figures of single cores mean little
        rate = host.rates("cpu.iowait")
        cores = max(
            sum(
                name.startswith("cpu.") and name.endswith(".busy") and name.count(".") == 2
                for name in host.units
            ),
            1,
        )
        yield "i/o", "cpu", "I/OWaitPercentage", rate["unix_s"], 100 * np.minimum(rate["value"] / cores, 1)
    if {"memory.total", "memory.available"} <= host.units.keys():
        total, free = host.columns("memory.total"), host.columns("memory.available")
        whole = np.interp(free["unix_s"], total["unix_s"], total["value"]) if len(total["value"]) else None
        if whole is not None and len(free["value"]):
            used = 100 * (1 - free["value"] / np.maximum(whole, 1))
            yield "memory", "MemoryUsedPercent", "Platform", free["unix_s"], used
    for name in host.units:
        parts = name.split(".")
        if parts[0] == "net" and parts[-1] in ("received", "sent") and len(parts) >= 3:
            rate = host.rates(name)
            title = "Receive" if parts[-1] == "received" else "Transmit"
            yield (
                "network",
                f"Algorithm{title}:{'.'.join(parts[1:-1])}",
                "Algorithm",
                rate["unix_s"],
                rate["value"],
            )
        if parts[0] == "gpu" and len(parts) >= 3 and parts[1].isdecimal():
            rest = ".".join(parts[2:])
            device = f"gpu{parts[1]}"
            if rest == "utilisation":
                found = host.columns(name)
                yield "gpu", device, "GPUUtilization", found["unix_s"], 100 * found["value"]
            elif rest == "memory.used" and f"gpu.{parts[1]}.memory.total" in host.units:
                found, total = host.columns(name), host.columns(f"gpu.{parts[1]}.memory.total")
                if len(total["value"]):
                    share = found["value"] / max(float(total["value"].max()), 1)
                    yield "gpu", device, "GPUMemoryUtilization", found["unix_s"], 100 * share


def system_events(profile: Profile) -> list[ProfilerSystemEvent]:
    """Returns what the samplers measured, by time."""
    found = []
    for place, host in enumerate(profile.hosts):
        for kind, name, dimension, times, values in _series(host):
            found += [
                ProfilerSystemEvent(
                    kind, name, dimension, round(float(value), 4), node_of(place), float(time)
                )
                for time, value in zip(times, values, strict=True)
                if np.isfinite(value)
            ]
    found.sort(key=lambda event: event.timestamp)
    return found


class RunAlgorithmMetricsReader(LocalAlgorithmMetricsReader):
    """Gives the steps and phases of a run as `TraceEvent`s."""

    def __init__(self, trace_root_folder: str, use_in_memory_cache: bool = False) -> None:
        self._events: list[TraceEvent] = []
        self._trial: Trial | None = None
        super().__init__(trace_root_folder, use_in_memory_cache)

    def refresh_event_file_list(self) -> None:
        """Reads what the run has got since."""
        if self._trial is None:
            self._trial = open_trial(os.path.expanduser(self.trace_root_folder))
        elif not self._trial.refresh():
            return
        self._events = list(trace_events(self._trial))
        self._timestamp_to_filename = (
            {
                int(min(event.start_time for event in self._events)): [],
                int(max(event.end_time for event in self._events)) + 1: [],
            }
            if self._events
            else {}
        )

    def get_events(
        self,
        start_time: float,
        end_time: float,
        unit: TimeUnits = TimeUnits.MICROSECONDS,
        event_type: str | None = None,  # noqa: ARG002
        file_suffix_filter: list[str] | None = None,
    ) -> list[Any]:
        """Returns events that overlap a time. All of them are of the kind of ``pythontimeline.json``."""
        if file_suffix_filter is not None and PYTHONTIMELINE_SUFFIX not in file_suffix_filter:
            return []
        first = convert_utc_timestamp_to_microseconds(start_time, unit)
        last = convert_utc_timestamp_to_microseconds(end_time, unit)
        if last >= self.get_timestamp_of_latest_available_file():
            self.refresh_event_file_list()
        return [one for one in self._events if one.end_time >= first and one.start_time <= last]


class RunSystemMetricsReader(LocalSystemMetricsReader):
    """Gives the samples of a run as `ProfilerSystemEvent`s."""

    def __init__(self, trace_root_folder: str, use_in_memory_cache: bool = False) -> None:
        self._events: list[ProfilerSystemEvent] = []
        self._trial: Trial | None = None
        super().__init__(trace_root_folder, use_in_memory_cache)

    def refresh_event_file_list(self) -> None:
        """Reads what the samplers have written since."""
        if self._trial is None:
            self._trial = open_trial(os.path.expanduser(self.trace_root_folder))
        elif self._trial.loaded_all_steps and self._events:
            return
        self._events = system_events(self._trial.profile())
        self._timestamp_to_filename = {
            int(event.timestamp * CONVERT_TO_MICROSECS): []
            for event in (self._events[:1] + self._events[-1:])
        }

    def get_events(
        self,
        start_time: float,
        end_time: float,
        unit: TimeUnits = TimeUnits.MICROSECONDS,
        event_type: str | None = None,
        file_suffix_filter: list[str] | None = None,  # noqa: ARG002
    ) -> list[Any]:
        """Returns values of a time, of one type or of all."""
        first = convert_utc_timestamp_to_microseconds(start_time, unit) / CONVERT_TO_MICROSECS
        last = convert_utc_timestamp_to_microseconds(end_time, unit) / CONVERT_TO_MICROSECS
        if last * CONVERT_TO_MICROSECS >= self.get_timestamp_of_latest_available_file():
            self.refresh_event_file_list()
        return [
            one
            for one in self._events
            if first <= one.timestamp <= last and (event_type is None or one.type == event_type)
        ]
