"""Statistics of the tables that `PandasFrame` gives. Needs pandas."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np
import pandas as pd

from luff.compat.smdebug.core.logger import get_logger

__all__ = ["JobStats", "PandasFrameAnalysis", "Resource", "StatsBy"]

_STEP = "Step:ModeKeys"
_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


class StatsBy(Enum):
    """What statistics are grouped by."""

    TRAINING_PHASE = "training_phase"
    FRAMEWORK_METRICS = "framework_metric"
    PROCESS = "process"


class Resource(Enum):
    """Parts of the system."""

    CPU = "cpu"
    GPU = "gpu"
    IO = "i/o"
    NETWORK = "network"
    MEMORY = "memory"


class JobStats(dict[str, Any]):
    """Times of a job; shows itself as a table."""

    def __repr__(self) -> str:
        return repr(pd.DataFrame({name: [value] for name, value in self.items()}).T)


def _spread(values: Any, prefix: str, suffix: str) -> dict[str, float]:
    """Returns mean, bounds and quantiles of numbers."""
    found = {"mean": values.mean(), "min": values.min(), "max": values.max()}
    found |= {name: values.quantile(q) for name, q in _QUANTILES.items()}
    return {f"{prefix}_{name}{suffix}": float(value) for name, value in found.items()}


class PandasFrameAnalysis:
    """Statistics of a job.

    Parameters
    ----------
    system_df, framework_df
        Both tables of a `PandasFrame`. Events without a step get that of the step around them, if there is one.
    """

    def __init__(self, system_df: pd.DataFrame, framework_df: pd.DataFrame) -> None:
        self.sys_metrics_df = system_df.copy()
        self.framework_metrics_df = framework_df.copy()
        frame = self.framework_metrics_df
        frame["duration_us"] = frame["end_time_us"] - frame["start_time_us"]
        steps = frame[frame["framework_metric"].str.contains(_STEP, regex=False) & (frame["step"] != -1)]
        self.step_time_df = (
            steps.groupby("step").agg({"start_time_us": "min", "end_time_us": "max"}).reset_index()
        )
        self._number_events()

    def _number_events(self) -> None:
        frame, steps = self.framework_metrics_df, self.step_time_df.sort_values("start_time_us")
        if frame.empty or steps.empty:
            return
        place = np.searchsorted(steps["start_time_us"].to_numpy(), frame["start_time_us"].to_numpy()) - 1
        known = place >= 0
        place = np.maximum(place, 0)
        inside = known & (steps["end_time_us"].to_numpy()[place] > frame["end_time_us"].to_numpy())
        wanted = (frame["step"].to_numpy() == -1) & inside
        frame["step"] = np.where(wanted, steps["step"].to_numpy()[place], frame["step"].to_numpy())

    def get_job_statistics(self) -> JobStats:
        """Returns when the job, and its training loop, began and ended, and the share of each part in percent.

        The loop begins with the first step of mode TRAIN or GLOBAL.

        Raises
        ------
        ValueError
            If the tables have no system metrics, or no step.
        """
        system, frame = self.sys_metrics_df, self.framework_metrics_df
        modes = [f"{_STEP}.TRAIN", f"{_STEP}.GLOBAL"]
        steps = frame[frame["framework_metric"].isin(modes)]
        if system.empty or steps.empty:
            missing = "system metrics" if system.empty else f"events {' or '.join(modes)}"
            raise ValueError(f"the job's statistics need {missing}; the table has none")
        first = steps.loc[steps["start_time_us"].idxmin()]
        begin, end = system["timestamp_us"].min(), system["timestamp_us"].max()
        whole = max(end - begin, 1)
        loop_end = frame["end_time_us"].max()
        parts = {
            "initialization": first["start_time_us"] - begin,
            "training_loop": loop_end - first["start_time_us"],
            "finalization": max(end - loop_end, 0),
        }
        return JobStats(
            start_time=system["timestamp"].min(),
            end_time=system["timestamp"].max(),
            job_duration=whole,
            training_loop_start=first["start_time"],
            training_loop_end=frame["end_time"].max(),
            training_loop_duration=parts["training_loop"],
            initialization=parts["initialization"],
            finalization=parts["finalization"],
            **{f"{name}_%": 100 * took / whole for name, took in parts.items()},
        )

    def get_step_statistics(self, by: StatsBy = StatsBy.TRAINING_PHASE) -> pd.DataFrame | None:
        """Returns the spread of the time that a step takes for each training phase, framework metric or process.

        Columns: what it is grouped by, ``duration_{mean,min,max,p50,p95,p99}_us``. None if `by` is no `StatsBy`.
        """
        if not isinstance(by, StatsBy):
            get_logger().info("found %r, expected one of StatsBy", by)
            return None
        frame = self.framework_metrics_df
        column = by.value
        if by is StatsBy.TRAINING_PHASE:
            column = "framework_metric"
            frame = frame[frame["framework_metric"].str.contains(_STEP, regex=False)]
        spans = (
            frame.groupby(["step", column]).agg({"start_time_us": "min", "end_time_us": "max"}).reset_index()
        )
        spans["took"] = spans["end_time_us"] - spans["start_time_us"]
        return pd.DataFrame(
            [
                {by.value: name, **_spread(group["took"], "duration", "_us")}
                for name, group in spans.groupby(column)
            ]
        )

    def get_utilization_stats(
        self,
        resource: Resource | Sequence[Resource] | None = None,
        by: StatsBy | None = None,
        phase: str | list[str] | None = None,
    ) -> pd.DataFrame | None:
        """Returns the spread of the use of each resource and node; by training phase, in each of its intervals.

        Parameters
        ----------
        resource
            One, several, or all.
        by
            ``StatsBy.TRAINING_PHASE``, or None.
        phase
            Only these phases: `get_training_phase_intervals`.

        Returns
        -------
        DataFrame
            Columns ``Resource``, with phases ``Training_phase``, ``nodeID``,
            ``utilization_{mean,min,max,p50,p95,p99}``. None if an argument is of another type.
        """
        if by is not None and not isinstance(by, StatsBy):
            get_logger().info("found %r, expected one of StatsBy", by)
            return None
        if resource is not None and not isinstance(resource, (list, tuple, Resource)):
            get_logger().info("found %r, expected one of Resource or several", resource)
            return None
        wanted = (
            list(Resource) if resource is None else [resource] if isinstance(resource, Resource) else resource
        )
        system = self.sys_metrics_df
        keys = ["nodeID"]
        if by is StatsBy.TRAINING_PHASE:
            intervals = self.get_training_phase_intervals(phase)
            if intervals is None:
                return None
            system = system.assign(Training_phase=self._phase_of(intervals))
            keys = ["Training_phase", "nodeID"]
        rows = []
        for one in wanted:
            values = system[system["type"].astype(str).str.contains(one.value, regex=False)]
            for place, group in values.groupby(keys):
                named = dict(zip(keys, place if isinstance(place, tuple) else (place,), strict=True))
                rows.append({"Resource": one.value, **named, **_spread(group["value"], "utilization", "")})
        names = [f"utilization_{name}" for name in ("mean", "min", "max", *_QUANTILES)]
        return pd.DataFrame(rows, columns=["Resource", *keys, *names])

    def _phase_of(self, intervals: pd.DataFrame) -> Any:
        at = self.sys_metrics_df["timestamp_us"].to_numpy()
        found = np.full(len(at), None, dtype=object)
        for begin, end, name in intervals[["start_time_us", "end_time_us", "phase"]].itertuples(index=False):
            found[(at >= begin) & (at <= end)] = name
        return found

    def get_device_usage_stats(
        self,
        device: Resource | Sequence[Resource] | None = None,
        utilization_ranges: list[tuple[float, float]] | None = None,
    ) -> pd.DataFrame:
        """Returns how many values of each type and node lie in each range; in the first that holds them.

        Parameters
        ----------
        device
            One resource or several; by default CPU and GPU.
        utilization_ranges
            Bounds, both included; by default 90 to 100, 10 to 90, 0 to 10.

        Returns
        -------
        DataFrame
            Columns ``type``, ``nodeID``, and one for each range that has values. Empty if an argument is of another
            form.
        """
        if device is not None and not isinstance(device, (list, tuple, Resource)):
            get_logger().info("found %r, expected one of Resource or several", device)
            return pd.DataFrame()
        ranges = [(90, 100), (10, 90), (0, 10)] if utilization_ranges is None else utilization_ranges
        if not isinstance(ranges, list) or not ranges or any(len(one) != 2 for one in ranges):
            get_logger().info("found ranges %r, expected a list of pairs of bounds", utilization_ranges)
            return pd.DataFrame()
        wanted = (
            [Resource.CPU, Resource.GPU]
            if device is None
            else [device]
            if isinstance(device, Resource)
            else device
        )
        system = self.sys_metrics_df
        kinds = system["type"].astype(str)
        system = system[[any(one.value in kind for one in wanted) for kind in kinds]]
        counts: dict[tuple[str, str], dict[tuple[float, float], int]] = {}
        for kind, node, value in zip(system["type"], system["nodeID"], system["value"], strict=True):
            place = next((one for one in ranges if one[0] <= float(value) <= one[1]), None)
            if place is not None:
                row = counts.setdefault((kind, node), {})
                row[place] = row.get(place, 0) + 1
        used = sorted({place for row in counts.values() for place in row})
        return pd.DataFrame(
            [
                {"type": kind, "nodeID": node, **{place: row.get(place, 0) for place in used}}
                for (kind, node), row in counts.items()
            ]
        )

    def get_training_phase_intervals(self, phase: str | list[str] | None = None) -> pd.DataFrame | None:
        """Returns the intervals of training phases, and what is before, between and after them.

        Parameters
        ----------
        phase
            E.g. ``"Step:ModeKeys.TRAIN"``, or several; by default all.

        Returns
        -------
        DataFrame
            Columns ``start_time_us``, ``end_time_us``, ``phase``. With one phase each step is an interval; with
            several, steps of the same one in a row are one. None if there is none of these phases.
        """
        frame = self.framework_metrics_df
        processes = list(frame["process"].unique())
        if phase is None:
            phase = [one for one in processes if _STEP in one]
        wanted = [phase] if isinstance(phase, str) else phase
        if not isinstance(wanted, list):
            get_logger().info("found %r, expected a list of texts", phase)
            return None
        wanted = [one for one in wanted if one in processes]
        steps = frame[frame["framework_metric"].isin(wanted)].sort_values("start_time_us", kind="stable")
        if steps.empty:
            get_logger().info("there is none of these phases")
            return None
        spans: list[tuple[Any, Any, str]] = []
        columns = steps[["start_time_us", "end_time_us", "framework_metric"]]
        for begin, end, name in columns.itertuples(index=False):
            if len(wanted) > 1 and spans and spans[-1][2] == name:
                spans[-1] = (spans[-1][0], max(spans[-1][1], end), name)
            else:
                spans.append((begin, end, name))
        first, last = self.sys_metrics_df["timestamp_us"].min(), self.sys_metrics_df["timestamp_us"].max()
        rows = [(first, spans[0][0] - 1, f"Before {spans[0][2]}")]
        for number, span in enumerate(spans):
            rows.append(span)
            if number + 1 < len(spans):
                after = spans[number + 1]
                title = " and ".join(sorted([span[2], after[2]]))
                rows.append((span[1] + 1, after[0] - 1, f"Between {title}"))
        rows.append((spans[-1][1] + 1, last, f"After {spans[-1][2]}"))
        return pd.DataFrame(rows, columns=["start_time_us", "end_time_us", "phase"])
