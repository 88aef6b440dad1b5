"""Trains with and without Luff, in turns, in one process."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _gates import gate, measured, say

__all__ = ["alternate", "compare", "keep_memory"]


def keep_memory() -> None:
    """Makes glibc keep freed memory. Otherwise it returns a step's buffers at random, and they are faulted in again.

    Trainings of PyTorch without Luff had between 19,000 and 631,000 page faults, which took up to 1.5 s of 4.5 s.
    """
    trim_threshold, mmap_threshold = -1, -3
    with contextlib.suppress(OSError, AttributeError):  # another C library
        library = ctypes.CDLL(None)
        library.mallopt(mmap_threshold, 32 << 20)
        library.mallopt(trim_threshold, (1 << 31) - 1)


def compare(
    title: str,
    bare: Callable[[], object],
    watched: Callable[[Path], object],
    limit: float,
    pairs: int = 12,
    clock: Callable[[], float] = time.process_time,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Compares two ways of the same training. Prints a line; returns the result and its gate.

    Each watched training runs between two bare ones and is compared with their mean. The median of the ratios
    decides.

    Parameters
    ----------
    bare, watched
        One training each, with everything that a user would wait for; `watched` gets the path of its run.
    clock
        Returns seconds; by default CPU time of the whole process, including Luff's threads.
    """

    def with_luff() -> float:
        folder = Path(tempfile.mkdtemp(prefix="luff-bench-"))
        try:
            return _timed(lambda: watched(folder / "run"), clock)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    _timed(bare, clock)
    with_luff()  # imports, compilations
    return _told(title, *_ratios(lambda: _timed(bare, clock), with_luff, pairs), limit)


def alternate(
    title: str,
    make: Callable[[bool], Callable[[], object]],
    limit: float,
    trainings: int = 6,
    pairs: int = 16,
    clock: Callable[[], float] = time.process_time,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Like `compare`, for two trainings that alternate piece by piece.

    Work that is done once per run is not measured, since the first pieces only warm up, and so it cannot drown in the
    noise of whole trainings.

    Parameters
    ----------
    make
        Makes a new training, watched or not. Each call of the result continues it for some tenths of a second.
    trainings
        Number of each kind: the place of a model in memory changes its speed by 1 or 2 %.
    """
    ratios: list[float] = []
    took = 0.0
    for index in range(trainings):
        gc.collect()  # an earlier model that still exists would be watched, too
        first = bool(index % 2)
        ways = {kind: make(kind) for kind in (first, not first)}
        for _ in range(3):
            ways[False]()
            ways[True]()
        found, took = _ratios(
            lambda w=ways: _timed(w[False], clock), lambda w=ways: _timed(w[True], clock), pairs
        )  # type: ignore[misc]
        ratios += found
    return _told(title, ratios, took, limit)


def _timed(train: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    train()
    return clock() - start


def _ratios(bare: Callable[[], float], watched: Callable[[], float], pairs: int) -> tuple[list[float], float]:
    ratios = []
    before = bare()
    for _ in range(pairs):
        cost = watched()
        after = bare()
        ratios.append(cost / ((before + after) / 2))
        before = after
    return ratios, before


def _told(
    title: str, ratios: list[float], bare: float, limit: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    value = measured(ratios)
    held = gate(f"frameworks {title}", value, limit)
    print(
        f"  {title:40s} {value.median:7.3f}  [{value.low:.3f}, {value.high:.3f}]  <= {limit:.2f} {say(held['ok'])}"
        f"   (bare: {bare:.2f} s)"
    )
    return {"row": title, "ratio": value.median, "interval": [value.low, value.high]}, held
