"""What PyTorch's data loaders did. Needs pandas."""
# ruff: noqa: T201  (printing is what it is for)

from __future__ import annotations

from typing import Any

import pandas as pd

from luff.compat.smdebug.profiler.analysis.utils.profiler_data_to_pandas import PandasFrame

__all__ = ["PT_dataloader_analysis"]

_OUTLIER = 2  # times the median
_FORMAT = "%Y-%m-%dT%H:%M:%S:%f"


class PT_dataloader_analysis:
    """Prints medians, and returns what took at least twice as long.

    Parameters
    ----------
    pandas_frame
        The tables of the job.
    """

    def __init__(self, pandas_frame: PandasFrame) -> None:
        self.pd_data_frame = pandas_frame
        self.dataIter_metric = pandas_frame.get_all_dataloader_metrics([".*DataLoaderIter::GetNext"])
        self.initialize_metric = pandas_frame.get_all_dataloader_metrics(["DataLoaderIterInitialize"])
        self.dataWorker_metric = pandas_frame.get_all_dataloader_metrics(["DataLoaderWorker"])

    def _outliers(
        self, frame: pd.DataFrame, column: str, columns: list[str], what: str
    ) -> pd.DataFrame | None:
        median = frame[column].median()
        print(f"{what}: median {median}, longest {frame[column].max()}")
        found = frame.loc[frame[column] >= _OUTLIER * median, columns]
        if found.empty:
            print(f"{what}: none took {_OUTLIER} times the median")
            return None
        print(f"{what}: {len(found)} took at least {_OUTLIER} times the median")
        return found.sort_values(by=[column], ascending=False).reset_index(drop=True)

    def analyze_dataloaderIter_initialization(self) -> None:
        """Prints with which settings iterators of loaders were made, how often, and how long that took."""
        frame = self.initialize_metric
        if frame.empty:
            print("the timelines have no event of a loader's begin (DataLoaderIterInitialize)")
        for kind, group in frame.groupby("framework_metric"):
            print(
                f"{kind}: {len(group)} times, pin_memory {group['pin_memory'].unique()[0]}, "
                f"num_workers {group['num_workers'].unique()[0]}"
            )
            self._outliers(group, "duration_us", ["start_time", "end_time", "duration_us"], f"{kind} (us)")

    def analyze_dataloaderWorkers(self) -> pd.DataFrame | None:
        """Prints how many workers were started; returns those that lived long."""
        if self.dataWorker_metric.empty:
            print("the timelines have no event of a worker (DataLoaderWorker)")
            return None
        print(f"{len(self.dataWorker_metric)} workers were started")
        return self._outliers(
            self.dataWorker_metric,
            "duration_us",
            ["start_time", "end_time", "duration_us", "worker_id"],
            "workers (us)",
        )

    def analyze_dataloader_getnext(self) -> pd.DataFrame | None:
        """Prints how often a batch was fetched; returns the slow ones."""
        if self.dataIter_metric.empty:
            print("the timelines have no event of a batch (DataLoaderIter::GetNext)")
            return None
        print(f"{len(self.dataIter_metric)} batches were fetched")
        return self._outliers(
            self.dataIter_metric,
            "duration_us",
            ["start_time", "end_time", "duration_us", "worker_id"],
            "batches (us)",
        )

    def analyze_batchtime(self) -> pd.DataFrame | None:
        """Prints the time from one batch to the next; returns the long ones."""
        if self.dataIter_metric.empty:
            print("the timelines have no event of a batch (DataLoaderIter::GetNext)")
            return None
        frame = self.dataIter_metric.assign(
            start_time=pd.to_datetime(self.dataIter_metric["start_time"], format=_FORMAT),
            end_time=pd.to_datetime(self.dataIter_metric["end_time"], format=_FORMAT),
        ).sort_values(by=["node_id", "pid", "end_time"])
        begins = frame.groupby(["node_id", "pid"])["start_time"]
        frame["previous_batch_start"] = begins.shift()
        frame["BatchTime_in_seconds"] = begins.diff().dt.total_seconds()
        return self._outliers(
            frame,
            "BatchTime_in_seconds",
            ["previous_batch_start", "start_time", "BatchTime_in_seconds", "worker_id"],
            "from batch to batch (s)",
        )

    def plot_the_window(
        self,
        start_timestamp: float,
        end_timestamp: float,
        select_events: list[str] | None = None,
        select_dimensions: list[str] | None = None,
    ) -> Any:
        """Returns a chart of a time. Needs bokeh."""
        from luff.compat.smdebug.profiler.analysis.notebook_utils.timeline_charts import TimelineCharts

        return TimelineCharts(
            self.pd_data_frame.system_metrics_reader,
            self.pd_data_frame.framework_metrics_reader,
            starttime=start_timestamp,
            endtime=end_timestamp,
            select_events=select_events or [".*"],
            select_dimensions=select_dimensions or [".*"],
        )
