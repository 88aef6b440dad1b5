"""How long steps and their parts take."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from luff.compat.smdebug.profiler.analysis.notebook_utils._chart import Chart, bokeh
from luff.compat.smdebug.profiler.profiler_constants import CONVERT_TO_MICROSECS

__all__ = ["StepHistogram"]

_EVENTS = ("Step:ModeKeys", r"Forward-node", r"Backward\(post-forward\)-node")


class StepHistogram(Chart):
    """Histograms of durations in milliseconds.

    Parameters
    ----------
    metrics_reader
        Reader of timelines.
    width
        Of a picture, in pixels.
    """

    def __init__(self, metrics_reader: Any, width: int = 500) -> None:
        super().__init__(metrics_reader)
        self.width = width
        self.select_metrics: list[str] = list(_EVENTS)

    def plot(
        self,
        starttime: float = 0,
        endtime: float | None = None,
        select_metrics: Sequence[str] = _EVENTS,
        show_workers: bool | Sequence[str] = True,
    ) -> None:
        """Draws events whose names match one of the expressions, between two times in seconds."""
        self.starttime, self.endtime, self.show_workers = starttime, endtime, show_workers
        self.select_metrics = list(select_metrics)
        self.show()

    def series(self) -> dict[str, tuple[list[float], list[float]]]:
        """Returns begins (seconds) and durations (milliseconds) of each kind of event, by its name and node."""
        return events_of(self, self.select_metrics)

    def draw(self) -> Any:
        """Returns the layout."""
        made = bokeh()
        figures = []
        for name, (_, took) in self.series().items():
            counts, edges = np.histogram(took, bins=100)
            figure = made.plotting.figure(
                height=250, width=self.width, title=name, tools="hover,wheel_zoom,reset"
            )
            figure.quad(top=counts, bottom=0, left=edges[:-1], right=edges[1:])
            figure.xaxis.axis_label, figure.yaxis.axis_label = "ms", "events"
            figures.append(figure)
        return made.layouts.gridplot(figures, ncols=2)


def events_of(chart: Chart, expressions: Sequence[str]) -> dict[str, tuple[list[float], list[float]]]:
    """Returns begins (seconds) and durations (milliseconds) of the events that a chart shows."""
    reader = chart.metrics_reader
    reader.refresh_event_file_list()
    newest = reader.get_timestamp_of_latest_available_file() + 60 * CONVERT_TO_MICROSECS
    last = newest if chart.endtime is None else chart.endtime * CONVERT_TO_MICROSECS
    found: dict[str, tuple[list[float], list[float]]] = {}
    events = reader.get_events(chart.starttime * CONVERT_TO_MICROSECS, last)
    for event in sorted(events, key=lambda one: one.start_time):
        if chart._shows(event.node_id) and any(re.search(one, event.event_name) for one in expressions):
            begins, took = found.setdefault(f"{event.event_name}_node_{event.node_id}", ([], []))
            begins.append(event.start_time / CONVERT_TO_MICROSECS)
            took.append(event.duration / 1e3)
    return dict(sorted(found.items()))
