"""What the profiler's rules have in common: windows of time, numbers that are kept, shares of phases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import numpy as np

from luff.compat.smdebug.exceptions import RuleEvaluationConditionMet
from luff.compat.smdebug.profiler.profiler_constants import CONVERT_TO_MICROSECS
from luff.compat.smdebug.rules.rule import Rule

__all__ = ["SCAN_INTERVAL_US", "ProfilerRule", "Values", "box", "framework_shares"]

SCAN_INTERVAL_US = 60 * CONVERT_TO_MICROSECS
#: A rule forgets the older half of what it keeps of one device beyond so many values.
MAX_VALUES = 1_000_000
_LEAST_OPERATOR_PERCENT = 2.0


class Values:
    """Numbers in the order in which they came."""

    def __init__(self) -> None:
        self._numbers = np.zeros(64)
        self.count = 0  # of all that came
        self._kept = 0

    def add(self, number: float) -> None:
        """Adds one."""
        if self._kept == len(self._numbers):
            if self._kept >= MAX_VALUES:
                self._numbers = self._numbers[self._kept // 2 :].copy()
                self._kept = len(self._numbers)
            self._numbers = np.concatenate([self._numbers, np.zeros(max(self._kept, 64))])
        self._numbers[self._kept] = number
        self._kept += 1
        self.count += 1

    def all(self) -> Any:
        """Returns those that are kept."""
        return self._numbers[: self._kept]

    def last(self, window: int) -> Any:
        """Returns the newest."""
        return self.all()[-window:]


def box(numbers: Any) -> dict[str, float]:
    """Returns quartiles, the 95th percentile, and the whiskers: the bounds, or 1.5 times the distance of the quartiles
    from them.
    """
    p25, p50, p75, p95 = (float(q) for q in np.quantile(numbers, [0.25, 0.5, 0.75, 0.95]))
    reach = 1.5 * (p75 - p25)
    return {
        "p25": p25,
        "p50": p50,
        "p75": p75,
        "p95": p95,
        "upper": min(p75 + reach, float(np.max(numbers))),
        "lower": max(p25 - reach, float(np.min(numbers))),
    }


def category(event: Any) -> str:
    """Returns the part of the report that an event belongs to."""
    phase = event.event_phase
    if event.file_type == "":
        return "horovod"
    if "gpu" in phase.lower():
        return "GPU"
    if "cpu" in phase.lower():
        return "CPU"
    if "Step" in phase:
        return "phase"
    if "SubModuleInternal" in phase or phase.startswith(("Forward", "Backward")):
        return "forward_backward"
    return "general"


class Shares:
    """Times of events, by category and name."""

    def __init__(self) -> None:
        self.seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))

    def add(self, event: Any, times: int = 1) -> None:
        """Adds an event, so many times."""
        kind = category(event)
        name = event.event_name if kind in ("CPU", "GPU") else event.event_phase or event.event_name
        self.seconds[kind][name] += times * event.duration / CONVERT_TO_MICROSECS

    def percent(self) -> dict[str, dict[str, float]]:
        """Returns the share of each name in its category in percent; of operators those above 2 %, scaled to 100."""
        found = {}
        for kind, names in self.seconds.items():
            shares = _scaled(names)
            if kind in ("CPU", "GPU"):
                shares = _scaled({n: s for n, s in shares.items() if s > _LEAST_OPERATOR_PERCENT})
            found[kind] = {name: round(share, 2) for name, share in shares.items()}
        return found


def _scaled(names: dict[str, float]) -> dict[str, float]:
    whole = sum(names.values())
    return {name: 100 * took / whole for name, took in names.items()} if whole > 0 else {}


def framework_shares(events: Iterable[Any], times_us: list[float] = [], spans_us: Any = ()) -> dict[str, Any]:  # noqa: B006
    """Returns what went on at some times, or in some intervals: the share of each phase in percent."""
    shares = Shares()
    at = np.sort(np.asarray(times_us, dtype=float))
    for event in events:
        times = int(np.searchsorted(at, event.end_time) - np.searchsorted(at, event.start_time, "right"))
        times = max(times, 0) + sum(event.end_time >= b and event.start_time <= e for b, e in spans_us)
        if times:
            shares.add(event, times)
    return shares.percent()


class ProfilerRule(Rule):
    """A rule over what the profiler recorded, window after window.

    Parameters
    ----------
    base_trial
        A `ProfilerTrial`: ``create_trial(path, profiler=True)``.
    scan_interval_us
        Length of a window in microseconds.

    Attributes
    ----------
    report
        ``RuleTriggered``, ``Violations``, ``Datapoints`` (int), ``RuleParameters`` (text), ``Details`` (dict).
    """

    #: What the rule says, for reports: description, recommendation.
    description: ClassVar[str] = ""
    recommendation: ClassVar[str] = ""

    def __init__(self, base_trial: Any, scan_interval_us: int = SCAN_INTERVAL_US, **parameters: Any) -> None:
        super().__init__(base_trial)
        self.scan_interval_us = int(scan_interval_us)
        if self.scan_interval_us <= 0:
            raise ValueError(f"found scan_interval_us {scan_interval_us}, expected microseconds above 0")
        self.parameters = parameters
        self.last_timestamp: float = base_trial.first_timestamp
        self.report["RuleParameters"] = "\n".join(f"{name}:{value}" for name, value in parameters.items())

    def invoke_at_step(self, step: int) -> bool:  # noqa: ARG002
        """Does nothing: the rule looks at times, not at steps."""
        return False

    def next_window(self) -> tuple[float, float]:
        """Waits for the data of the next window; returns its begin and end, in microseconds.

        Raises
        ------
        NoMoreProfilerData
            If the job is over, and all of it was seen.
        """
        if self.last_timestamp == 0:
            self.last_timestamp = self.base_trial.get_first_timestamp()
        begin = self.last_timestamp
        end = begin + self.scan_interval_us
        self.base_trial.wait_for_data(end, begin)
        if begin == 0:  # it came while we waited
            begin = self.last_timestamp = self.base_trial.get_first_timestamp()
            end = begin + self.scan_interval_us
        self.last_timestamp = end
        return begin, end

    def data_of(self, begin: float, end: float) -> tuple[list[Any], list[Any]]:
        """Returns the system metrics of a window, by time, and the events that end in it; `end` itself is not in it."""
        first, last = begin / CONVERT_TO_MICROSECS, end / CONVERT_TO_MICROSECS
        values = [
            one for one in self.base_trial.get_system_metrics(begin, end) if first <= one.timestamp < last
        ]
        values.sort(key=lambda one: one.timestamp)
        events = [
            one for one in self.base_trial.get_framework_metrics(begin, end) if begin <= one.end_time < end
        ]
        events.sort(key=lambda one: one.end_time)
        return values, events

    def invoke(self, step: int) -> None:
        """Evaluates the next window.

        Raises
        ------
        RuleEvaluationConditionMet
            If the condition is met.
        NoMoreProfilerData
            If the job is over.
        """
        begin, end = self.next_window()
        if self.invoke_for_timerange(begin, end):
            self.actions.invoke()
            raise RuleEvaluationConditionMet(self.rule_name, step)

    def invoke_for_timerange(
        self,
        timestamp_start: float,
        timestamp_end: float,
        sys_events: list[Any] | None = None,
        framework_events: list[Any] | None = None,
    ) -> bool:
        """Evaluates a window, of whose data the caller may have some; returns whether the condition is met."""
        if sys_events is None or framework_events is None:
            values, events = self.data_of(timestamp_start, timestamp_end)
            sys_events = values if sys_events is None else sys_events
            framework_events = events if framework_events is None else framework_events
        return self.look(timestamp_start, timestamp_end, sys_events, framework_events)

    def look(self, begin: float, end: float, values: list[Any], events: list[Any]) -> bool:
        """Looks at a window's values, by time, and events, by end; returns whether the condition is met."""
        raise NotImplementedError

    def by_device(self, found: dict[str, dict[str, Values]], of: Any, keep: Callable[[Any], bool]) -> None:
        """Adds the values that `keep` wants to those of their node and device."""
        for one in of:
            if keep(one):
                found[one.node_id][one.name or one.type].add(float(one.value))


def devices() -> dict[str, dict[str, Values]]:
    """Returns room for the values of devices, by node and name."""
    return defaultdict(lambda: defaultdict(Values))
