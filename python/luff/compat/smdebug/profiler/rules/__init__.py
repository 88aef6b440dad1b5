"""The rules of SageMaker's profiler, with their published defaults, over a `ProfilerTrial`.

>>> rule = CPUBottleneck(create_trial("profiler-output", profiler=True), cpu_threshold=80)  # doctest: +SKIP
>>> invoke_rule(rule, raise_eval_cond=True)  # doctest: +SKIP
>>> rule.report["Details"]  # doctest: +SKIP
"""

from __future__ import annotations

from luff.compat.smdebug.profiler.rules.bottleneck import CPUBottleneck, IOBottleneck
from luff.compat.smdebug.profiler.rules.gpu import (
    BatchSize,
    GPUMemoryIncrease,
    LoadBalancing,
    LowGPUUtilization,
)
from luff.compat.smdebug.profiler.rules.report import ProfilerReport
from luff.compat.smdebug.profiler.rules.rule import ProfilerRule
from luff.compat.smdebug.profiler.rules.steps import Dataloader, MaxInitializationTime, StepOutlier
from luff.compat.smdebug.profiler.rules.usage import OverallFrameworkMetrics, OverallSystemUsage

__all__ = [
    "RULES",
    "BatchSize",
    "CPUBottleneck",
    "Dataloader",
    "GPUMemoryIncrease",
    "IOBottleneck",
    "LoadBalancing",
    "LowGPUUtilization",
    "MaxInitializationTime",
    "OverallFrameworkMetrics",
    "OverallSystemUsage",
    "ProfilerReport",
    "ProfilerRule",
    "StepOutlier",
]

#: By name.
RULES: dict[str, type[ProfilerRule]] = {
    rule.__name__: rule
    for rule in (
        BatchSize, CPUBottleneck, Dataloader, GPUMemoryIncrease, IOBottleneck, LoadBalancing, LowGPUUtilization,
        MaxInitializationTime, OverallFrameworkMetrics, OverallSystemUsage, ProfilerReport, StepOutlier,
    )
}  # fmt: skip
