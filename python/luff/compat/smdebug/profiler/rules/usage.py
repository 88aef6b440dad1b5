"""Tables of the whole job. They never fire."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from luff.compat.smdebug.profiler.rules.rule import SCAN_INTERVAL_US, ProfilerRule, Shares, Values

__all__ = ["OverallFrameworkMetrics", "OverallSystemUsage"]

# Title of a row, and the dimension or name of its values.
_ROWS: dict[str, Callable[[Any], bool]] = {
    "Network": lambda one: one.dimension == "Algorithm",
    "GPU": lambda one: one.dimension == "GPUUtilization",
    "CPU": lambda one: one.dimension == "CPUUtilization",
    "CPU memory": lambda one: one.name == "MemoryUsedPercent",
    "GPU memory": lambda one: one.dimension == "GPUMemoryUtilization",
    "I/O": lambda one: one.dimension == "I/OWaitPercentage",
}
_BY_DEVICE = {"GPU", "GPU memory", "CPU", "I/O"}  # means over the devices of a tick


class OverallSystemUsage(ProfilerRule):
    """Use of CPU, GPU, memory, network and storage of each node."""

    description = "Shows how much of CPU, GPU, memory, network and storage each machine used."

    def __init__(self, base_trial: Any, scan_interval_us: int = SCAN_INTERVAL_US) -> None:
        super().__init__(base_trial, scan_interval_us)
        self._values: dict[str, dict[str, Values]] = defaultdict(lambda: defaultdict(Values))
        self._devices: dict[tuple[str, str], set[str]] = defaultdict(set)

    def look(self, begin: float, end: float, values: list[Any], events: list[Any]) -> bool:  # noqa: ARG002
        """Looks at a window; see the class."""
        ticks: dict[tuple[str, str, float], float] = defaultdict(float)
        for one in values:
            row = next((title for title, is_of in _ROWS.items() if is_of(one)), None)
            if row is None:
                continue
            self.report["Datapoints"] += 1
            self._devices[(one.node_id, row)].add(one.name or "")
            ticks[(one.node_id, row, one.timestamp)] += float(one.value)
        for (node, row, _), total in ticks.items():
            count = len(self._devices[(node, row)]) if row in _BY_DEVICE else 1
            self._values[node][row].add(total / count)
        for node, rows in self._values.items():
            self.report["Details"][node] = {
                row: {
                    name: max(round(float(value), 2), 0.0)
                    for name, value in zip(
                        ("max", "p99", "p95", "p50", "min"),
                        np.quantile(found.all(), [1, 0.99, 0.95, 0.5, 0]),
                        strict=True,
                    )
                }
                for row, found in rows.items()
            }
        return False


class OverallFrameworkMetrics(ProfilerRule):
    """Time of training and evaluation, of phases and operators."""

    description = "Shows where the time of the training loop went."

    def __init__(self, base_trial: Any, scan_interval_us: int = SCAN_INTERVAL_US) -> None:
        super().__init__(base_trial, scan_interval_us)
        self._shares = Shares()

    def look(self, begin: float, end: float, values: list[Any], events: list[Any]) -> bool:  # noqa: ARG002
        """Looks at a window; see the class."""
        for event in events:
            self._shares.add(event)
        self.report["Datapoints"] += len(events)
        seconds = self._shares.seconds
        found = self._shares.percent()
        by_device = {kind: sum(seconds[kind].values()) for kind in ("CPU", "GPU") if kind in seconds}
        whole = sum(by_device.values())
        steps = found.get("phase", {})
        phase = {
            mode: round(sum(share for name, share in steps.items() if name.endswith(mode)), 2)
            for mode in ("TRAIN", "EVAL")
        }
        if steps:
            phase["others"] = round(max(100 - sum(phase.values()), 0), 2)
        self.report["Details"] = {
            "ratio": {
                f"{kind} operators": round(100 * took / whole, 2) for kind, took in by_device.items() if whole
            },
            "CPU": found.get("CPU", {}),
            "CPU_total": round(by_device.get("CPU", 0.0), 6),
            "GPU": found.get("GPU", {}),
            "GPU_total": round(by_device.get("GPU", 0.0), 6),
            "phase": phase if steps else {},
            "general": found.get("general", {}),
            "forward_backward": found.get("forward_backward", {}),
            "horovod": found.get("horovod", {}),
        }
        return False
