"""GPUs that wait while something else is busy: CPU cores, or storage."""

from __future__ import annotations

from typing import Any

from luff.compat.smdebug.profiler.profiler_constants import CONVERT_TO_MICROSECS
from luff.compat.smdebug.profiler.rules.rule import SCAN_INTERVAL_US, ProfilerRule, framework_shares

__all__ = ["CPUBottleneck", "IOBottleneck"]

_TOGETHER_S = 0.02  # values of one tick
_MOST_DETAILS = 10_000


class _Bottleneck(ProfilerRule):
    """Counts ticks at which a GPU has little to do and another device much."""

    busy_dimension = ""
    busy_key = ""

    def __init__(
        self, base_trial: Any, threshold: float, gpu_threshold: float, busy_threshold: float, patience: int,
        scan_interval_us: int, parameters: dict[str, Any],
    ) -> None:  # fmt: skip
        super().__init__(base_trial, scan_interval_us, **parameters)
        self.threshold = threshold
        self.gpu_threshold = gpu_threshold
        self.busy_threshold = busy_threshold
        self.patience = patience
        self.report["Details"] = {"low_gpu_utilization": 0, "bottlenecks": {}}

    def _take(self, at: float, gpus: int, busy: int) -> bool:
        self.report["Datapoints"] += 1
        details = self.report["Details"]
        details["low_gpu_utilization"] += gpus > 0
        if not (gpus and busy):
            return False
        self.report["Violations"] += 1
        if len(details["bottlenecks"]) < _MOST_DETAILS:
            details["bottlenecks"][at] = {"GPUs": gpus, self.busy_key: busy}
        return True

    def look(self, begin: float, end: float, values: list[Any], events: list[Any]) -> bool:  # noqa: ARG002
        """Looks at a window; see the class."""
        at, gpus, busy, times = None, 0, 0, []
        for one in values:
            if one.dimension not in ("GPUUtilization", self.busy_dimension):
                continue
            if at is None or one.timestamp - at > _TOGETHER_S:
                if at is not None and self._take(at, gpus, busy):
                    times.append(at * CONVERT_TO_MICROSECS)
                at, gpus, busy = one.timestamp, 0, 0
            if one.dimension == "GPUUtilization":
                gpus += one.value < self.gpu_threshold
            else:
                busy += one.value > self.busy_threshold
        if at is not None and self._take(at, gpus, busy):
            times.append(at * CONVERT_TO_MICROSECS)
        if times:
            self.report["Details"]["framework"] = framework_shares(events, times)
        count = self.report["Datapoints"]
        met = count > self.patience and 100 * self.report["Violations"] / count > self.threshold
        self.report["RuleTriggered"] += met
        return bool(met)


class CPUBottleneck(_Bottleneck):
    """Fires if at more than `threshold` percent of the ticks a GPU is below `gpu_threshold` percent and a CPU core
    above `cpu_threshold`, once there are more than `patience` ticks.
    """

    busy_dimension = "CPUUtilization"
    busy_key = "CPUs"
    description = "Checks whether GPUs wait for busy CPU cores: a GPU has little to do while a core is full."
    recommendation = (
        "Use more data loader processes, prefetch batches, or prepare data before the training; "
        "`luff profile` says how many loader processes would help."
    )

    def __init__(
        self, base_trial: Any, threshold: float = 50, gpu_threshold: float = 10, cpu_threshold: float = 90,
        patience: int = 1000, scan_interval_us: int = SCAN_INTERVAL_US,
    ) -> None:  # fmt: skip
        super().__init__(
            base_trial, threshold, gpu_threshold, cpu_threshold, patience, scan_interval_us,
            {
                "threshold": threshold, "cpu_threshold": cpu_threshold, "gpu_threshold": gpu_threshold,
                "patience": patience,
            },
        )  # fmt: skip
        self.cpu_threshold = cpu_threshold


class IOBottleneck(_Bottleneck):
    """The same for time in which cores wait for storage, above `io_threshold` percent."""

    busy_dimension = "I/OWaitPercentage"
    busy_key = "IOs"
    description = (
        "Checks whether GPUs wait for storage: a GPU has little to do while cores wait for reads or writes."
    )
    recommendation = "Keep data on faster storage, in larger files, or in memory; prefetch batches."

    def __init__(
        self, base_trial: Any, threshold: float = 50, gpu_threshold: float = 10, io_threshold: float = 50,
        patience: int = 1000, scan_interval_us: int = SCAN_INTERVAL_US,
    ) -> None:  # fmt: skip
        super().__init__(
            base_trial, threshold, gpu_threshold, io_threshold, patience, scan_interval_us,
            {
                "threshold": threshold, "io_threshold": io_threshold, "gpu_threshold": gpu_threshold,
                "patience": patience,
            },
        )  # fmt: skip
        self.io_threshold = io_threshold
