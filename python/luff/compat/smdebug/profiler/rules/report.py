"""All rules of the profiler together, and a report of what they say."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Iterable
from typing import Any

from luff._nearest import hint
from luff.compat.smdebug.exceptions import NoMoreProfilerData, RuleEvaluationConditionMet
from luff.compat.smdebug.profiler.profiler_constants import CONVERT_TO_MICROSECS
from luff.compat.smdebug.profiler.rules.bottleneck import CPUBottleneck, IOBottleneck
from luff.compat.smdebug.profiler.rules.gpu import (
    BatchSize,
    GPUMemoryIncrease,
    LoadBalancing,
    LowGPUUtilization,
)
from luff.compat.smdebug.profiler.rules.page import page
from luff.compat.smdebug.profiler.rules.rule import SCAN_INTERVAL_US, ProfilerRule
from luff.compat.smdebug.profiler.rules.steps import Dataloader, MaxInitializationTime, StepOutlier
from luff.compat.smdebug.profiler.rules.usage import OverallFrameworkMetrics, OverallSystemUsage

__all__ = ["ProfilerReport"]

SUB_RULES = (
    BatchSize, CPUBottleneck, Dataloader, GPUMemoryIncrease, IOBottleneck, LoadBalancing, LowGPUUtilization,
    MaxInitializationTime, OverallFrameworkMetrics, OverallSystemUsage, StepOutlier,
)  # fmt: skip
FOLDER = "profiler-reports"
PAGE = "profiler-report.html"


def parameters_of(rule: type[ProfilerRule]) -> list[str]:
    """Returns the names of a rule's parameters."""
    names = list(inspect.signature(rule.__init__).parameters)
    return [name for name in names if name not in ("self", "base_trial", "parameters")]


def sorted_out(given: dict[str, Any]) -> dict[type[ProfilerRule], dict[str, Any]]:
    """Returns the parameters of each rule, from names such as ``CPUBottleneck_cpu_threshold`` in any case.

    Raises
    ------
    TypeError
        For a name without a rule or without a parameter of it.
    """
    by_name = {rule.__name__.lower(): rule for rule in SUB_RULES}
    found: dict[type[ProfilerRule], dict[str, Any]] = {rule: {} for rule in SUB_RULES}
    for key, value in given.items():
        name, _, parameter = key.partition("_")
        rule = by_name.get(name.lower())
        if rule is None:
            near = hint(name, [one.__name__ for one in SUB_RULES])
            raise TypeError(f"ProfilerReport: found {key!r}, expected RULE_PARAMETER{near}")
        known = parameters_of(rule)
        if parameter.lower() not in known:
            raise TypeError(
                f"ProfilerReport: {rule.__name__} has no parameter {parameter!r}{hint(parameter, known)}"
            )
        found[rule][parameter.lower()] = value
    return found


class ProfilerReport(ProfilerRule):
    """Evaluates all other rules, and writes a report after each window: ``profiler-reports/<Rule>.json`` and
    ``profiler-report.html`` in the trial's output folder.

    Parameters
    ----------
    opt_out_telemetry
        Accepted; nothing is sent anywhere.
    **rule_parameters
        E.g. ``CPUBottleneck_cpu_threshold=90``.
    """

    description = "Evaluates all rules, and writes a report."

    def __init__(
        self, base_trial: Any, opt_out_telemetry: bool = False, scan_interval_us: int = SCAN_INTERVAL_US,
        **rule_parameters: Any,
    ) -> None:  # fmt: skip
        super().__init__(base_trial, scan_interval_us, **rule_parameters)
        self.opt_out_telemetry = opt_out_telemetry
        self.rules = [
            rule(base_trial, **{"scan_interval_us": scan_interval_us, **found})
            for rule, found in sorted_out(rule_parameters).items()
        ]
        self._failed: dict[str, str] = {}

    def look(self, begin: float, end: float, values: list[Any], events: list[Any]) -> bool:
        """Gives a window to all rules; returns whether one fires."""
        any_met = False
        for rule in self.rules:
            try:
                any_met |= rule.look(begin, end, values, events)
            except Exception as error:  # one rule's mistake hides nothing of the others
                if rule.rule_name not in self._failed:
                    self._failed[rule.rule_name] = f"{type(error).__name__}: {error}"
                    self.logger.exception("%s failed", rule.rule_name)
        self.report["Datapoints"] += len(values) + len(events)
        self.report["RuleTriggered"] += any_met
        self.report["Violations"] += any_met
        self.report["Details"] = {
            rule.rule_name: {key: rule.report[key] for key in ("RuleTriggered", "Violations", "Datapoints")}
            for rule in self.rules
        }
        if self._failed:
            self.report["Details"]["failed"] = dict(self._failed)
        self.write()
        return any_met

    def invoke(self, step: int) -> None:
        """Evaluates the next window.

        Raises
        ------
        RuleEvaluationConditionMet
            At the end of the data, if a rule fired at any time; with `end_of_rule`.
        NoMoreProfilerData
            At the end of the data, if none did.
        """
        try:
            begin, end = self.next_window()
        except NoMoreProfilerData:
            if self.report["RuleTriggered"] > 0:
                raise RuleEvaluationConditionMet(self.rule_name, step, end_of_rule=True) from None
            raise
        self.invoke_for_timerange(begin, end)

    def summary(self) -> dict[str, Any]:
        """Returns begin, end and duration of the data so far, in seconds."""
        first = self.base_trial.first_timestamp / CONVERT_TO_MICROSECS
        last = min(self.last_timestamp, self.base_trial.get_latest_timestamp()) / CONVERT_TO_MICROSECS
        return {"start": first, "end": last, "duration": max(last - first, 0.0)}

    def write(self) -> None:
        """Writes the report, if the trial has an output folder."""
        if not self.base_trial.output_dir:
            return
        write_reports(self.base_trial.output_dir, self.rules)
        _replace(
            os.path.join(self.base_trial.output_dir, PAGE), page(self.summary(), self.rules, self._failed)
        )


def write_reports(output_dir: str, rules: Iterable[ProfilerRule]) -> None:
    """Writes ``profiler-reports/<Rule>.json`` of each rule."""
    folder = os.path.join(output_dir, FOLDER)
    os.makedirs(folder, exist_ok=True)
    for rule in rules:
        text = json.dumps(rule.report, indent=1, default=float)
        _replace(os.path.join(folder, f"{rule.rule_name}.json"), text)


def _replace(path: str, text: str) -> None:
    with open(f"{path}.tmp", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(f"{path}.tmp", path)
