"""Steps that begin late or take long, and data loaders with too few or too many processes."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from luff.compat.smdebug.profiler.profiler_constants import (
    CONVERT_TO_MICROSECS,
    PT_DATALOADER_INITIALIZE,
    PT_DATALOADER_ITER,
    PT_DATALOADER_WORKER,
)
from luff.compat.smdebug.profiler.rules.rule import SCAN_INTERVAL_US, ProfilerRule, framework_shares

__all__ = ["Dataloader", "MaxInitializationTime", "StepOutlier"]

_STEP = "Step:ModeKeys"
_LEAST_STEPS = 100
_MOST_STEPS = 1_000_000


class MaxInitializationTime(ProfilerRule):
    """Fires, in each window, if no step has ended `threshold` minutes after the first data."""

    description = "Checks whether the time before the first step is too long."
    recommendation = "Prepare or download data before the job, or in parallel with it."

    def __init__(
        self, base_trial: Any, threshold: float = 20, scan_interval_us: int = SCAN_INTERVAL_US
    ) -> None:
        super().__init__(base_trial, scan_interval_us, threshold=threshold)
        self.threshold = threshold
        self._seen = False

    def look(self, begin: float, end: float, values: list[Any], events: list[Any]) -> bool:  # noqa: ARG002
        """Looks at a window; see the class."""
        details, first = self.report["Details"], self.base_trial.first_timestamp
        self.report["Datapoints"] += len(values) + len(events)
        for event in events:
            if _STEP in event.event_name:
                numbers = details.setdefault(
                    "step_num", {"first": event.start_time, "last": event.start_time}
                )
                numbers["first"] = min(numbers["first"], event.start_time)
                numbers["last"] = max(numbers["last"], event.start_time)
                self._seen = True
        details["job_start"] = first / CONVERT_TO_MICROSECS
        latest = [one.timestamp for one in values] + [one.end_time / CONVERT_TO_MICROSECS for one in events]
        if latest:
            details["job_end"] = max(latest)
        since = details.get("job_end", details["job_start"]) - details["job_start"]
        met = not self._seen and since > self.threshold * 60
        self.report["RuleTriggered"] += met
        self.report["Violations"] += met
        return met


class StepOutlier(ProfilerRule):
    """Fires if of more than 100 steps of a node and mode more than `n_outliers` take longer than the mean and `stddev`
    standard deviations. Looks once for each window of time, and goes on firing.

    Parameters
    ----------
    mode
        Name of the events that count; by default those whose name has ``Step:ModeKeys`` in it.
    """

    description = "Checks whether some steps take much longer than the others."
    recommendation = "Look at what goes on in these steps: checkpoints, evaluations, waiting for data."

    def __init__(
        self, base_trial: Any, stddev: float = 3, mode: str | None = None, n_outliers: int = 10,
        scan_interval_us: int = SCAN_INTERVAL_US,
    ) -> None:  # fmt: skip
        super().__init__(base_trial, scan_interval_us, threshold=stddev, mode=mode, n_outliers=n_outliers)
        self.stddev, self.mode, self.n_outliers = stddev, mode, n_outliers
        self._steps: dict[str, dict[str, list[tuple[float, Any, float]]]] = defaultdict(
            lambda: defaultdict(list)
        )

    def look(self, begin: float, end: float, values: list[Any], events: list[Any]) -> bool:  # noqa: ARG002
        """Looks at a window; see the class."""
        for event in events:
            wanted = event.event_name == self.mode if self.mode else _STEP in event.event_name
            if wanted:
                number = (event.event_args or {}).get("step_num")
                steps = self._steps[event.node_id][event.event_name]
                steps.append((event.duration / CONVERT_TO_MICROSECS, number, event.start_time))
                del steps[: len(steps) - _MOST_STEPS]
        self.report["Datapoints"] = sum(len(s) for names in self._steps.values() for s in names.values())
        for node, names in self._steps.items():
            for name, steps in names.items():
                self._judge(node, name, steps, events)
        return bool(self.report["RuleTriggered"] > 0)

    def _judge(self, node: str, name: str, steps: list[tuple[float, Any, float]], events: list[Any]) -> None:
        if len(steps) <= _LEAST_STEPS:
            return
        took = np.array([one[0] for one in steps])
        limit = took.mean() + self.stddev * took.std()
        slow = took > limit
        count = int(slow.sum())
        normal = took[~slow]
        counts, edges = np.histogram(normal, bins=100)
        spans = [(b, b + t * CONVERT_TO_MICROSECS) for (t, _, b), s in zip(steps, slow, strict=True) if s]
        details = self.report["Details"].setdefault("step_details", {}).setdefault(node, {})
        details[name] = {
            "step_stats": {
                "mean": float(took.mean()),
                "max": float(took.max()),
                "p99": float(np.quantile(took, 0.99)),
                "p95": float(np.quantile(took, 0.95)),
                "p50": float(np.quantile(took, 0.5)),
                "min": float(took.min()),
            },
            "number_of_outliers": count,
            "phase": name,
            "stddev": self.stddev,
            "probs": counts.tolist(),
            "binedges": edges.tolist(),
            "step_numbers": [n for (_, n, _), s in zip(steps, slow, strict=True) if s][:1000],
        }
        if count > self.n_outliers:
            self.report["RuleTriggered"] += 1
            self.report["Violations"] += count
            details[name]["framework"] = framework_shares(
                [event for event in events if _STEP not in event.event_name], [], spans[-1000:]
            )


class Dataloader(ProfilerRule):
    """Fires if the median number of processes that load data in a second is below `min_threshold` percent of the cores
    or above `max_threshold`, over more than `patience` seconds in which data was loaded.
    """

    description = (
        "Checks whether data loaders have too few processes, or more than the machine has cores for."
    )
    recommendation = "Change the number of data loader processes; `luff profile` says how many would help."

    def __init__(
        self, base_trial: Any, min_threshold: float = 70, max_threshold: float = 200, patience: int = 10,
        scan_interval_us: int = SCAN_INTERVAL_US,
    ) -> None:  # fmt: skip
        super().__init__(
            base_trial,
            scan_interval_us,
            min_threshold=min_threshold,
            max_threshold=max_threshold,
            patience=patience,
        )
        self.min_threshold, self.max_threshold, self.patience = min_threshold, max_threshold, patience
        self._processes: dict[int, set[Any]] = defaultdict(set)  # by second
        self._cores: set[tuple[str, str | None]] = set()
        self._times: list[float] = []
        self._args: dict[str, Any] = {}

    def look(self, begin: float, end: float, values: list[Any], events: list[Any]) -> bool:  # noqa: ARG002
        """Looks at a window; see the class."""
        self._cores.update((one.node_id, one.name) for one in values if one.dimension == "CPUUtilization")
        for event in events:
            name = f"{event.event_phase} {event.event_name}"
            if PT_DATALOADER_INITIALIZE in name:
                self._args.update(event.event_args or {})
            elif PT_DATALOADER_WORKER in name or PT_DATALOADER_ITER in name:
                first = int(event.start_time // CONVERT_TO_MICROSECS)
                last = int(event.end_time // CONVERT_TO_MICROSECS)
                for second in range(max(first, last - 3600), last + 1):
                    self._processes[second].add((event.node_id, event.pid))
                if PT_DATALOADER_ITER in name:
                    self._times.append(event.duration / CONVERT_TO_MICROSECS)
        del self._times[: max(len(self._times) - _MOST_STEPS, 0)]
        seconds = len(self._processes)
        self.report["Datapoints"] = seconds
        nodes = len({node for node, _ in self._cores}) or 1
        cores = len(self._cores) / nodes
        if seconds <= self.patience or not cores:
            return False
        median = int(np.median([len(pids) for pids in self._processes.values()]))
        low, high = median < cores * self.min_threshold / 100, median > cores * self.max_threshold / 100
        details: dict[str, Any] = {
            "pin_memory": self._args.get("pin_memory"),
            "num_workers": self._args.get("num_workers"),
            "prefetch": self._args.get("prefetch_factor"),
            "cores": int(cores),
            "dataloaders": median,
        }
        if self._times:
            times = np.array(self._times)
            counts, edges = np.histogram(times, bins=100)
            p25, p50, p95 = (float(q) for q in np.quantile(times, [0.25, 0.5, 0.95]))
            details["dataloading_time"] = {
                "p25": p25, "p50": p50, "p95": p95, "probs": counts.tolist(), "binedges": edges.tolist(),
            }  # fmt: skip
        self.report["Details"] = details
        met = low or high
        self.report["RuleTriggered"] += met
        self.report["Violations"] += met
        return bool(met)
