"""Draws pictures of a run; started by ``luff plot --out FILE``."""

from __future__ import annotations

import argparse
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import luff
from luff import _core
from luff._evaluations import means_of_evaluations

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAX_COLUMNS = 200  # of a histogram over time
_ROWS = 64
_LOG_FROM = 1000  # ratio of the greatest to the least value above which a curve has a logarithmic axis


def _ranges(steps: NDArray[Any], bad: NDArray[Any]) -> list[tuple[float, float]]:
    """Returns the first and last step of each bad stretch."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], bad.astype(np.int8), [0]))))
    return [(float(steps[a]), float(steps[b - 1])) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _line(axis: Any, steps: NDArray[Any], values: NDArray[Any], bad: NDArray[Any], **style: Any) -> None:
    """Draws one curve, with a red background where it is not finite, since an empty stretch would look healthy."""
    values = np.where(np.isfinite(values), values, np.nan)
    axis.plot(steps, values, linewidth=1, **style)
    width = max(1.0, float(steps[-1] - steps[0])) / 400
    for i, (first, last) in enumerate(_ranges(steps, bad)):
        label = "NaN or Inf" if i == 0 and "NaN or Inf" not in axis.get_legend_handles_labels()[1] else None
        axis.axvspan(first - width, last + width, color="tab:red", alpha=0.25, linewidth=0, label=label)
    seen = values[np.isfinite(values)]
    if seen.size and seen.min() > 0 and seen.max() / seen.min() > _LOG_FROM:
        axis.set_yscale("log")


class _Steps:
    """Numbers the steps of the horizontal axis.

    Parameters
    ----------
    mode
        The mode that counts them. None: those of all modes are placed among the TRAIN steps; any other step is where so
        many TRAIN steps came before it.
    """

    def __init__(self, trial: luff.Trial, mode: str | None) -> None:
        self.mode = "GLOBAL" if mode is None else mode
        self.title = "TRAIN step" if mode is None else "step" if mode == "GLOBAL" else f"{mode} step"
        self.modes = trial.modes() if self.mode == "GLOBAL" else [self.mode]
        self._trained = None
        if mode is None and (steps := trial.steps("TRAIN")):
            self._number = np.array(steps)
            self._trained = np.array([trial.global_step(step, "TRAIN") for step in steps])

    def of(self, columns: Any) -> Any:
        """Returns the numbers of rows."""
        if self._trained is None:
            return columns["step" if self.mode == "GLOBAL" else "mode_step"]
        last = np.searchsorted(self._trained, columns["step"], side="right") - 1
        known = np.maximum(last, 0)
        after = self._number[known] + (self._trained[known] != columns["step"])
        return np.where(last < 0, 0, after)


def _scalars(axis: Any, trial: luff.Trial, name: str, counted: _Steps, worker: int | None) -> bool:
    """Draws the values of a loss or another scalar, each mode separately; returns False if there are none."""
    drawn = False
    for one in counted.modes:
        scalars = trial.scalars(name, one, worker)
        if not scalars["step"].size:
            continue
        rare = one != "TRAIN" and counted.mode == "GLOBAL"
        means = one == "EVAL" and rare and trial.tensor(name).role == "loss"
        if means:
            scalars = means_of_evaluations(scalars)
        _line(
            axis, counted.of(scalars), scalars["value"], ~np.isfinite(scalars["value"]),
            label="EVAL, mean of each evaluation" if means else one,
            marker="o" if rare else None, markersize=3,
        )  # fmt: skip
        drawn = True
    return drawn


def _heat_map(axis: Any, tensor: luff.Tensor, mode: str, worker: int | None) -> bool:
    """Draws the share of the elements by value and step, and their median; False if there are no histograms."""
    found: list[tuple[int, Any]] = []
    candidates = tensor.steps(mode)
    for step in candidates[:: max(1, len(candidates) // _MAX_COLUMNS)]:
        try:
            found.append((step, tensor.histogram(step, mode, worker)))
        except luff.LuffError:
            continue
    curves = []  # step, edges, share of the elements below each edge
    for step, (low, high, count) in found:
        if count.size and count.sum():
            order = np.argsort(low)
            low, high, count = low[order], high[order], count[order]
            below = np.concatenate(([0], np.cumsum(count))) / count.sum()
            edges = np.empty(2 * count.size)
            edges[0::2], edges[1::2] = low, high
            curves.append((step, edges, np.repeat(below, 2)[1:-1]))
    if not curves:
        return False
    bounds = [np.interp((0.005, 0.995), below, edges) for _, edges, below in curves]
    bottom, top = min(b[0] for b in bounds), max(b[1] for b in bounds)
    if not bottom < top:
        bottom, top = bottom - 0.5, top + 0.5
    rows = np.linspace(bottom, top, _ROWS + 1)
    steps = np.array([step for step, _, _ in curves], dtype=np.float64)
    shares = np.array([np.diff(np.interp(rows, edges, below)) for _, edges, below in curves]).T
    borders = np.concatenate((steps[:1], (steps[1:] + steps[:-1]) / 2, steps[-1:] + 1))
    axis.pcolormesh(borders, rows, np.sqrt(shares), cmap="Blues", rasterized=True)
    medians = [float(np.interp(0.5, below, edges)) for _, edges, below in curves]
    axis.plot(steps, medians, color="tab:orange", linewidth=1, label="median")
    axis.set_ylabel("value (shade: share)")
    return True


def _norms(axis: Any, tensor: luff.Tensor, counted: _Steps, worker: int | None) -> None:
    columns = tensor.summaries(counted.mode, worker)
    if not columns["step"].size:
        axis.text(0.5, 0.5, "nothing recorded", transform=axis.transAxes, ha="center", va="center")
        return
    loss = tensor.role == "loss"
    bad = (columns["nan_count"] + columns["inf_count"]) > 0
    none = columns["nan_count"] + columns["inf_count"] == columns["count"]
    values = np.where(none & (columns["count"] > 0), np.nan, columns["mean" if loss else "l2"])
    _line(axis, counted.of(columns), values, bad)
    axis.set_ylabel("value" if loss else "l2 norm")


def draw(
    run: str,
    names: list[str],
    out: str,
    mode: str | None = None,
    worker: int | None = None,
    *,
    overview: bool = False,
    replace: bool = True,
) -> None:
    """Draws scalars, norms and, for named tensors, histograms over the steps into the file `out`.

    Parameters
    ----------
    mode
        The mode whose steps are counted; by default all modes are placed among the TRAIN steps.
    overview
        Whether the names were chosen by the caller, not by a person: norms are drawn, not histograms.
    replace
        Whether to replace an existing file.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    with luff.open_trial(run) as trial:
        counted = _Steps(trial, mode)
        figure, axes = plt.subplots(len(names), 1, figsize=(9, 2.2 * len(names)), squeeze=False, sharex=True)
        for axis, name in zip(axes[:, 0], names, strict=True):
            tensor = trial.tensor(name)
            own = mode or ("TRAIN" if tensor.steps("TRAIN") else "GLOBAL")
            if _scalars(axis, trial, name, counted, worker):
                axis.set_ylabel("value")
            elif overview or not _heat_map(axis, tensor, own, worker):
                _norms(axis, tensor, counted, worker)
            labels = axis.get_legend_handles_labels()[1]
            if labels and labels != ["TRAIN"]:
                axis.legend(fontsize="small")
            axis.set_title(_core.escaped(name), fontsize="small", loc="left", parse_math=False)
        axes[-1, 0].set_xlabel(counted.title)
        figure.tight_layout()
        picture = io.BytesIO()
        figure.savefig(picture, format=Path(out).suffix[1:] or None)
        plt.close(figure)
    _core.write_output(out, picture.getvalue(), replace)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="luff plot")
    parser.add_argument("run")
    parser.add_argument("names", nargs="+")
    parser.add_argument("--out", required=True)
    parser.add_argument("--mode")
    parser.add_argument("--worker", type=int)
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--overview", action="store_true")
    args = parser.parse_args(arguments)
    run, out = os.path.abspath(args.run), os.path.abspath(args.out)
    # Matplotlib reads settings from the working directory
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    try:
        draw(run, args.names, out, args.mode, args.worker, overview=args.overview, replace=args.force)
    except ImportError as error:
        print(f"luff: {error}; a picture needs matplotlib: pip install matplotlib", file=sys.stderr)
        return 2
    except (luff.LuffError, OSError, ValueError) as error:
        print(f"luff: {_core.escaped(str(error))}", file=sys.stderr)
        return 2
    print(_core.escaped(args.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
