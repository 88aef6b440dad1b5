"""GPUs that are used little, unevenly, or fill up."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from luff.compat.smdebug.profiler.rules.rule import (
    SCAN_INTERVAL_US,
    ProfilerRule,
    Values,
    box,
    devices,
)

__all__ = ["BatchSize", "GPUMemoryIncrease", "LoadBalancing", "LowGPUUtilization"]

_BIN_PERCENT = 2
_BINS = 49


def _utilisation(one: Any) -> bool:
    return bool(one.dimension == "GPUUtilization")


def _memory(one: Any) -> bool:
    return bool(one.dimension == "GPUMemoryUtilization")


class _Counting(ProfilerRule):
    """A rule that goes on firing once it fired."""

    def _violated(self) -> None:
        self.report["RuleTriggered"] += 1
        self.report["Violations"] += 1

    def _fired(self) -> bool:
        return bool(self.report["RuleTriggered"] > 0)


class LowGPUUtilization(_Counting):
    """Fires if the 95th percentile of a GPU's use in the last `window` values is below `threshold_p95` percent, or is
    above and the 5th percentile below `threshold_p5`: use that goes up and down. Looks once for each window of time.
    """

    description = "Checks whether a GPU is used little, or now and then only."
    recommendation = "Look for bottlenecks, make batches larger, or use a smaller GPU."

    def __init__(
        self, base_trial: Any, threshold_p95: float = 70, threshold_p5: float = 10, window: int = 500,
        patience: int = 1000, scan_interval_us: int = SCAN_INTERVAL_US,
    ) -> None:  # fmt: skip
        super().__init__(
            base_trial, scan_interval_us,
            threshold_p95=threshold_p95, threshold_p5=threshold_p5, window=window, patience=patience,
        )  # fmt: skip
        self.threshold_p95, self.threshold_p5 = threshold_p95, threshold_p5
        self.window, self.patience = window, patience
        self._gpus = devices()

    def look(self, begin: float, end: float, values: list[Any], events: list[Any]) -> bool:  # noqa: ARG002
        """Looks at a window; see the class."""
        self.by_device(self._gpus, values, _utilisation)
        details = self.report["Details"]
        for node, gpus in self._gpus.items():
            for gpu, found in gpus.items():
                self.report["Datapoints"] = max(self.report["Datapoints"], found.count)
                if found.count <= self.patience:
                    continue
                p5, p95 = np.quantile(found.last(self.window), [0.05, 0.95])
                if p95 < self.threshold_p95:
                    self._violated()
                if p95 > self.threshold_p95 and p5 < self.threshold_p5:
                    self._violated()
                details.setdefault(node, {})[gpu] = {
                    "gpu_max": float(found.all().max()),
                    "gpu_95": float(p95),
                    "gpu_5": float(p5),
                    **box(found.all()),
                }
        return self._fired()


class BatchSize(_Counting):
    """Fires if in the last `window` values the 95th percentiles of a node's CPU, and of a GPU's use and memory, are
    below their thresholds: the batch could be larger. Looks once for each window of time.
    """

    description = "Checks whether batches could be larger: CPU, GPU and its memory are all used little."
    recommendation = "Make the batch larger, or use a smaller machine."

    def __init__(
        self, base_trial: Any, cpu_threshold_p95: float = 70, gpu_threshold_p95: float = 70,
        gpu_memory_threshold_p95: float = 70, patience: int = 1000, window: int = 500,
        scan_interval_us: int = SCAN_INTERVAL_US,
    ) -> None:  # fmt: skip
        super().__init__(
            base_trial, scan_interval_us, cpu_threshold_p95=cpu_threshold_p95, gpu_threshold_p95=gpu_threshold_p95,
            gpu_memory_threshold_p95=gpu_memory_threshold_p95, patience=patience, window=window,
        )  # fmt: skip
        self.cpu_threshold_p95, self.gpu_threshold_p95 = cpu_threshold_p95, gpu_threshold_p95
        self.gpu_memory_threshold_p95 = gpu_memory_threshold_p95
        self.patience, self.window = patience, window
        self._cpu: dict[str, Values] = defaultdict(Values)
        self._cores: dict[str, set[str]] = defaultdict(set)
        self._gpus, self._memory = devices(), devices()

    def _add_cpu(self, values: list[Any]) -> None:
        ticks: dict[tuple[str, float], float] = defaultdict(float)
        for one in values:
            if one.dimension == "CPUUtilization":
                self._cores[one.node_id].add(one.name or "")
                ticks[(one.node_id, one.timestamp)] += float(one.value)
        for (node, _), total in ticks.items():
            self._cpu[node].add(total / len(self._cores[node]))

    def look(self, begin: float, end: float, values: list[Any], events: list[Any]) -> bool:  # noqa: ARG002
        """Looks at a window; see the class."""
        self._add_cpu(values)
        self.by_device(self._gpus, values, _utilisation)
        self.by_device(self._memory, values, _memory)
        for node, cpu in self._cpu.items():
            self.report["Datapoints"] = max(self.report["Datapoints"], cpu.count)
            if cpu.count <= max(self.window, self.patience):
                continue
            if np.quantile(cpu.last(self.window), 0.95) >= self.cpu_threshold_p95:
                continue
            for gpu, use in self._gpus[node].items():
                memory = self._memory[node][gpu]
                if use.count <= self.window or memory.count == 0:
                    continue
                if (
                    np.quantile(use.last(self.window), 0.95) < self.gpu_threshold_p95
                    and np.quantile(memory.last(self.window), 0.95) < self.gpu_memory_threshold_p95
                ):
                    self._violated()
                    details = self.report["Details"].setdefault(
                        node, {"cpu": {}, "gpu": {}, "gpu_memory": {}}
                    )
                    details["cpu"] = box(cpu.all())
                    details["gpu"][gpu] = box(use.all())
                    details["gpu_memory"][gpu] = box(memory.all())
        return self._fired()


class GPUMemoryIncrease(_Counting):
    """Fires if the mean of a GPU's memory over the last `window` values is more than `increase` percentage points above
    that over the values before the last one. Looks at each value.
    """

    description = "Checks whether the memory that a GPU uses grows by a large step."
    recommendation = "Look for tensors that are kept, or use a GPU with more memory."

    def __init__(
        self, base_trial: Any, increase: float = 5, patience: int = 1000, window: int = 10,
        scan_interval_us: int = SCAN_INTERVAL_US,
    ) -> None:  # fmt: skip
        super().__init__(base_trial, scan_interval_us, increase=increase, patience=patience, window=window)
        self.increase, self.patience, self.window = increase, patience, window
        self._memory = devices()

    def look(self, begin: float, end: float, values: list[Any], events: list[Any]) -> bool:  # noqa: ARG002
        """Looks at a window; see the class."""
        for one in values:
            if not _memory(one):
                continue
            gpu = one.name or one.type
            found = self._memory[one.node_id][gpu]
            found.add(float(one.value))
            self.report["Datapoints"] = max(self.report["Datapoints"], found.count)
            if found.count <= max(self.window + 1, self.patience):
                continue
            newest = found.last(self.window + 1)
            more = (
                float(newest[1:].mean() - newest[:-2].mean())
                if self.window > 1
                else float(newest[1] - newest[0])
            )
            if more > self.increase:
                self._violated()
                self.report["Details"].setdefault(one.node_id, {})[gpu] = {
                    "increase": more,
                    "gpu_max": float(found.all().max()),
                    "p05": float(np.quantile(found.all(), 0.05)),
                    **box(found.all()),
                }
        return self._fired()


class LoadBalancing(_Counting):
    """Fires if the use of two GPUs of a node is distributed differently: the root of the Jensen-Shannon divergence of
    their histograms (natural logarithm) is above `threshold`. Looks once for each window of time.
    """

    description = "Checks whether GPUs of a machine have different amounts of work."
    recommendation = "Give each GPU the same part of each batch; look for work that only one of them does."

    def __init__(
        self, base_trial: Any, threshold: float = 0.5, patience: int = 1000,
        scan_interval_us: int = SCAN_INTERVAL_US,
    ) -> None:  # fmt: skip
        super().__init__(base_trial, scan_interval_us, threshold=threshold, patience=patience)
        self.threshold, self.patience = threshold, patience
        self._counts: dict[str, dict[str, Any]] = defaultdict(lambda: defaultdict(lambda: np.zeros(_BINS)))

    @staticmethod
    def _distance(first: Any, second: Any) -> float:
        p, q = first / first.sum(), second / second.sum()
        middle = (p + q) / 2

        def divergence(of: Any) -> float:
            there = of > 0
            return float(np.sum(of[there] * np.log(of[there] / middle[there])))

        return float(np.sqrt(max(divergence(p) + divergence(q), 0) / 2))

    def look(self, begin: float, end: float, values: list[Any], events: list[Any]) -> bool:  # noqa: ARG002
        """Looks at a window; see the class."""
        for one in values:
            if _utilisation(one):
                place = min(max(int(float(one.value) // _BIN_PERCENT), 0), _BINS - 1)
                self._counts[one.node_id][one.name or one.type][place] += 1
        for node, gpus in self._counts.items():
            enough = sorted(gpu for gpu, counts in gpus.items() if counts.sum() > self.patience)
            self.report["Datapoints"] = max(
                self.report["Datapoints"], *(int(counts.sum()) for counts in gpus.values())
            )
            details = {
                "workloads": {gpu: gpus[gpu].astype(int).tolist() for gpu in enough},
                "distances": {},
            }
            found: dict[str, dict[str, float]] = details["distances"]
            for number, gpu in enumerate(enough):
                for other in enough[number + 1 :]:
                    distance = self._distance(gpus[gpu], gpus[other])
                    found.setdefault(gpu, {})[other] = distance
                    if distance > self.threshold:
                        self._violated()
            if enough:
                self.report["Details"][node] = details
        return self._fired()
