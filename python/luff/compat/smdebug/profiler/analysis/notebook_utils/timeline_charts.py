"""System metrics over time, and what the framework did meanwhile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from luff.compat.smdebug.profiler.analysis.notebook_utils._chart import Chart, bokeh
from luff.compat.smdebug.profiler.profiler_constants import CONVERT_TO_MICROSECS

__all__ = ["TimelineCharts"]

_MOST_EVENTS = 5_000


class TimelineCharts(Chart):
    """A line chart for each series.

    Parameters
    ----------
    system_metrics_reader, framework_metrics_reader
        Readers; the second may be None.
    x
        Width of a picture, in pixels. The others are those of `Chart`.
    """

    def __init__(
        self,
        system_metrics_reader: Any,
        framework_metrics_reader: Any = None,
        starttime: float = 0,
        endtime: float | None = None,
        select_dimensions: Sequence[str] = (".*",),
        select_events: Sequence[str] = (".*",),
        x: int = 1000,
        show_workers: bool | Sequence[str] = True,
    ) -> None:
        super().__init__(
            system_metrics_reader, select_dimensions, select_events, starttime, endtime, show_workers
        )
        self.framework_metrics_reader = framework_metrics_reader
        self.width = x
        self._times: list[float] = []
        self.show()

    def draw(self) -> Any:
        """Returns the layout."""
        made = bokeh()
        figures = []
        series = self.series()
        first = min((times[0] for times, _ in series.values()), default=0.0)
        self._times = sorted({time for times, _ in series.values() for time in times})
        shared = None
        for name, (times, values) in series.items():
            more: dict[str, Any] = {"x_range": shared} if shared is not None else {}
            figure = made.plotting.figure(
                height=150,
                width=self.width,
                title=name,
                tools="hover,wheel_zoom,xpan,reset,xbox_select",
                **more,
            )
            shared = figure.x_range
            thin_times, thin_values = self.thinned(times, values)
            figure.line([time - first for time in thin_times], thin_values)
            figure.yaxis.axis_label = "percent" if "Algorithm" not in name else "bytes/s"
            figures.append(figure)
        if figures:
            figures[-1].xaxis.axis_label = "seconds"
        return made.layouts.column(figures)

    def _at(self, indexes: Sequence[int]) -> list[float]:
        chosen = [self._times[one] for one in indexes if 0 <= one < len(self._times)]
        return [time * CONVERT_TO_MICROSECS for time in chosen]

    def _events_at(self, indexes: Sequence[int]) -> list[Any]:
        at = self._at(indexes)
        if not at or self.framework_metrics_reader is None:
            return []
        return list(self.framework_metrics_reader.get_events(min(at), max(at)))

    def find_time_annotations(self, indexes: Sequence[int]) -> dict[str, float]:
        """Returns the seconds of each phase whose events were going on at some ticks: places in the sorted times of all
        series. They are printed, too.
        """
        at = self._at(indexes)
        took: dict[str, float] = defaultdict(float)
        for event in self._events_at(indexes):
            if any(event.start_time <= time <= event.end_time for time in at):
                took[event.event_phase] += event.duration / CONVERT_TO_MICROSECS
        found = dict(sorted(took.items(), key=lambda one: -one[1]))
        for name, seconds in found.items():
            print(f"{name}: {seconds:.6f} s")  # noqa: T201
        return found

    def plot_detailed_profiler_data(self, indexes: Sequence[int]) -> Any:
        """Returns a chart of the events between some ticks: a row for each phase."""
        made = bokeh()
        events = self._events_at(indexes)[:_MOST_EVENTS]
        rows = sorted({event.event_phase for event in events})
        figure = made.plotting.figure(
            height=100 + 25 * len(rows), width=self.width, y_range=rows or ["no events"],
            tools="hover,wheel_zoom,xpan,reset", tooltips=[("", "@name"), ("ms", "@took")],
        )  # fmt: skip
        first = min((event.start_time for event in events), default=0)
        source = made.models.ColumnDataSource(
            {
                "y": [event.event_phase for event in events],
                "left": [(event.start_time - first) / 1e3 for event in events],
                "right": [(event.end_time - first) / 1e3 for event in events],
                "name": [event.event_name for event in events],
                "took": [event.duration / 1e3 for event in events],
            }
        )
        figure.hbar(y="y", left="left", right="right", height=0.8, source=source, line_color="white")
        figure.xaxis.axis_label = "ms"
        return figure
