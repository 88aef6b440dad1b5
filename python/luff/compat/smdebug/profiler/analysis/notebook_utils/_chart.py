"""What the charts have in common: which series they show, and where."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from luff.compat.smdebug.profiler.profiler_constants import CONVERT_TO_MICROSECS
from luff.errors import FailedPreconditionError

__all__ = ["Chart", "bokeh"]

_MOST_POINTS = 20_000  # of a line; more are thinned out


def bokeh() -> Any:
    """Returns the modules of bokeh that charts use.

    Raises
    ------
    FailedPreconditionError
        If it is not installed.
    """
    try:
        import bokeh.io
        import bokeh.layouts
        import bokeh.models
        import bokeh.palettes
        import bokeh.plotting
        import bokeh.transform
    except ImportError:
        raise FailedPreconditionError(
            "charts need bokeh, which is not installed: pip install 'luff[profiler]'"
        ) from None
    return bokeh


def _matches(name: str, expressions: Iterable[str]) -> bool:
    return any(re.search(one, name) for one in expressions)


class Chart:
    """A chart of system metrics. `layout` is what bokeh shows; a notebook shows it at once.

    Parameters
    ----------
    metrics_reader
        Reader of system metrics.
    select_dimensions, select_events
        Expressions: only values whose dimension, and whose name, match one of them.
    starttime, endtime
        Seconds since 1970.
    show_workers
        False: only the first machine; or a list of machines.
    """

    def __init__(
        self,
        metrics_reader: Any,
        select_dimensions: Sequence[str] = (".*",),
        select_events: Sequence[str] = (".*",),
        starttime: float = 0,
        endtime: float | None = None,
        show_workers: bool | Sequence[str] = True,
    ) -> None:
        self.metrics_reader = metrics_reader
        self.select_dimensions = list(select_dimensions)
        self.select_events = list(select_events)
        self.starttime = starttime
        self.endtime = endtime
        self.show_workers = show_workers
        self.layout: Any = None

    def series(self) -> dict[str, tuple[list[float], list[float]]]:
        """Returns times (seconds) and values of each series, by ``DIMENSION_NAME_node_NODE``."""
        self.metrics_reader.refresh_event_file_list()
        newest = self.metrics_reader.get_timestamp_of_latest_available_file() + 60 * CONVERT_TO_MICROSECS
        last = newest if self.endtime is None else self.endtime * CONVERT_TO_MICROSECS
        found: dict[str, tuple[list[float], list[float]]] = {}
        events = self.metrics_reader.get_events(self.starttime * CONVERT_TO_MICROSECS, last)
        for event in sorted(events, key=lambda one: one.timestamp):
            if not _matches(event.dimension, self.select_dimensions):
                continue
            name = event.name or event.type
            if not _matches(name, self.select_events) or not self._shows(event.node_id):
                continue
            times, values = found.setdefault(f"{event.dimension}_{name}_node_{event.node_id}", ([], []))
            times.append(event.timestamp)
            values.append(event.value)
        return dict(sorted(found.items()))

    def _shows(self, node: str) -> bool:
        if isinstance(self.show_workers, bool):
            return self.show_workers or node.startswith("algo-1")
        return node in self.show_workers

    @staticmethod
    def thinned(times: list[float], values: list[float]) -> tuple[list[float], list[float]]:
        """Returns at most so many points as a screen has room for."""
        step = max(len(times) // _MOST_POINTS, 1)
        return times[::step], values[::step]

    def draw(self) -> Any:
        """Returns the layout."""
        raise NotImplementedError

    def show(self) -> None:
        """Draws it, and shows it if this is a notebook."""
        self.layout = self.draw()
        ipython = sys.modules.get("IPython")
        shell = ipython.get_ipython() if ipython is not None else None
        if shell is not None and getattr(shell, "kernel", None) is not None:
            io = bokeh().io
            io.output_notebook(hide_banner=True)
            io.show(self.layout)

    def update_data(self, current_timestamp: float) -> None:
        """Draws it again with what came up to a time, in microseconds since 1970."""
        self.endtime = current_timestamp / CONVERT_TO_MICROSECS
        self.show()
