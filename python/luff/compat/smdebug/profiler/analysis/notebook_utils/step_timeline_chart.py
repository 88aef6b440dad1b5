"""How long each step took, over the time of the job."""

from __future__ import annotations

from typing import Any

import numpy as np

from luff.compat.smdebug.profiler.analysis.notebook_utils._chart import Chart, bokeh
from luff.compat.smdebug.profiler.analysis.notebook_utils.step_histogram import events_of

__all__ = ["StepTimelineChart"]

_OUTLIER = 3  # standard deviations


class StepTimelineChart(Chart):
    """Durations of steps in milliseconds; those beyond three standard deviations are marked.

    Parameters
    ----------
    metrics_reader
        Reader of timelines.
    width
        Of the picture, in pixels.
    """

    def __init__(self, metrics_reader: Any, width: int = 1000) -> None:
        super().__init__(metrics_reader)
        self.width = width
        self.show()

    def series(self) -> dict[str, tuple[list[float], list[float]]]:
        """Returns begins (seconds) and durations (milliseconds) of steps, by mode and node."""
        return events_of(self, ["Step:ModeKeys"])

    def draw(self) -> Any:
        """Returns the layout."""
        made = bokeh()
        figure = made.plotting.figure(
            height=350, width=self.width, title="Duration of steps", tools="hover,wheel_zoom,xpan,reset"
        )
        for number, (name, (begins, took)) in enumerate(self.series().items()):
            colour = made.palettes.Category10[10][number % 10]
            times = np.array(begins) - begins[0]
            numbers = np.array(took)
            thin = self.thinned(list(times), list(numbers))
            figure.line(*thin, line_color=colour, legend_label=name)
            slow = numbers > numbers.mean() + _OUTLIER * numbers.std()
            figure.scatter(times[slow], numbers[slow], color="red", size=6)
        figure.xaxis.axis_label, figure.yaxis.axis_label = "seconds", "ms"
        return figure
