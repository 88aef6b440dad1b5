"""How often each metric had which value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from luff.compat.smdebug.profiler.analysis.notebook_utils._chart import Chart, bokeh

__all__ = ["MetricsHistogram"]

_BINS = np.arange(0, 102, 2)


class MetricsHistogram(Chart):
    """Histograms of system metrics, in bins of 2 percent.

    Parameters
    ----------
    metrics_reader
        Reader of system metrics.
    """

    def plot(
        self,
        starttime: float = 0,
        endtime: float | None = None,
        select_dimensions: Sequence[str] = (".*",),
        select_events: Sequence[str] = (".*",),
        show_workers: bool | Sequence[str] = True,
    ) -> None:
        """Draws them; the parameters are those of `Chart`."""
        super().__init__(
            self.metrics_reader, select_dimensions, select_events, starttime, endtime, show_workers
        )
        self.show()

    def draw(self) -> Any:
        """Returns the layout."""
        made = bokeh()
        figures = []
        for name, (_, values) in self.series().items():
            counts, edges = np.histogram(values, bins=_BINS)
            figure = made.plotting.figure(height=200, width=350, title=name, tools="hover,wheel_zoom,reset")
            figure.quad(top=counts, bottom=0, left=edges[:-1], right=edges[1:])
            figure.xaxis.axis_label, figure.yaxis.axis_label = "percent", "ticks"
            figures.append(figure)
        return made.layouts.gridplot(figures, ncols=3)
