"""All series as rows, time as columns, values as colours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from luff.compat.smdebug.profiler.analysis.notebook_utils._chart import Chart, bokeh

__all__ = ["Heatmap"]

_COLUMNS = 500


class Heatmap(Chart):
    """A heat map of system metrics; each column is the mean of a part of the time.

    Parameters
    ----------
    select_metrics
        Further expressions for dimensions.
    plot_height
        Of the picture, in pixels. The others are those of `Chart`.
    """

    def __init__(
        self,
        metrics_reader: Any,
        select_metrics: Sequence[str] = (),
        starttime: float = 0,
        endtime: float | None = None,
        select_dimensions: Sequence[str] = (".*CPU", ".*GPU"),
        select_events: Sequence[str] = (".*",),
        plot_height: int = 350,
        show_workers: bool | Sequence[str] = True,
    ) -> None:
        dimensions = [*select_dimensions, *select_metrics]
        super().__init__(metrics_reader, dimensions, select_events, starttime, endtime, show_workers)
        self.plot_height = plot_height
        self.show()

    def draw(self) -> Any:
        """Returns the layout."""
        made = bokeh()
        series = self.series()
        figure = made.plotting.figure(
            height=self.plot_height, width=1000, title="System metrics (percent)",
            tools="hover,wheel_zoom,reset,pan", tooltips=[("value", "@image")],
        )  # fmt: skip
        if not series:
            return figure
        first = min(times[0] for times, _ in series.values())
        last = max(times[-1] for times, _ in series.values())
        edges = np.linspace(first, max(last, first + 1), _COLUMNS + 1)
        image = np.full((len(series), _COLUMNS), np.nan)
        for row, (times, values) in enumerate(series.values()):
            counts, _ = np.histogram(times, bins=edges)
            sums, _ = np.histogram(times, bins=edges, weights=values)
            image[row] = np.divide(sums, counts, out=np.full(_COLUMNS, np.nan), where=counts > 0)
        mapper = made.models.LinearColorMapper(palette=made.palettes.Viridis256, low=0, high=100)
        figure.image([image], x=0, y=0, dw=edges[-1] - first, dh=len(series), color_mapper=mapper)
        figure.add_layout(made.models.ColorBar(color_mapper=mapper), "right")
        figure.yaxis.ticker = [row + 0.5 for row in range(len(series))]
        figure.yaxis.major_label_overrides = {row + 0.5: name for row, name in enumerate(series)}
        figure.xaxis.axis_label = "seconds"
        return figure
