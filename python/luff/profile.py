"""Where the time of a run went, as columns: what `Trial.profile` returns.

>>> profile = luff.open_trial("runs/x").profile()  # doctest: +SKIP
>>> profile.phases["data_wait"]  # seconds, one number for each step  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from luff._codes import Mode, Phase
from luff.errors import FailedPreconditionError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from luff import _core

__all__ = ["PhaseShare", "Profile"]

_NO_ID = 0xFFFFFFFF
_NS = 1e-9


class PhaseShare(TypedDict):
    """One phase over the steps of a profile."""

    phase: str
    steps: int  # that have it; a merged one counts as all that it stands for
    seconds: float  # in all of them
    share: float  # of the time of all steps, 0 to 1
    median: float  # seconds of a step that has it
    p95: float


def _seconds(ns: NDArray[Any]) -> NDArray[np.float64]:
    """Converts nanoseconds; what is negative is not known."""
    return np.where(ns < 0, np.nan, ns * _NS)


class Profile:
    """Where the time went, step by step.

    All columns have the same length, the number of `steps`, which lie worker by worker, ascending. Numbers that are not
    known are NaN: a phase that a step does not have is absent, which is not the same as 0.
    """

    #: ``step`` (global), ``mode_step``, ``update`` (those before it), ``worker``: int64; ``mode``: its name;
    #: ``merged``: how many steps a row stands for, 1 unless retention has merged some (int64); ``begin_unix_s``: when it
    #: began, ``wall``: how long it took, ``cpu``: the CPU time of the training thread, ``run_queue``: the time for which
    #: that could have run and had no core, ``device``: the time of the device (float64, seconds); ``major_faults``
    #: (float64).
    steps: dict[str, NDArray[Any]]
    #: Seconds of each phase that occurs, by its name (float64). Over the phases that a step has they add up to ``wall``.
    phases: dict[str, NDArray[np.float64]]
    #: How often each of these phases began in a step (int64).
    begins: dict[str, NDArray[np.int64]]
    #: Where the interval of each of these phases begins, in seconds since ``begin_unix_s`` (float64). A phase that began
    #: several times has one interval, with the length of all of them.
    offsets: dict[str, NDArray[np.float64]]

    def __init__(self, columns: dict[str, Any], mode: int, path: str) -> None:
        self._path = path
        wanted = (
            slice(None) if mode == Mode.GLOBAL else np.flatnonzero(np.asarray(columns["mode"]) == mode)
        )
        columns, by_number = {k: v[wanted] for k, v in columns.items() if k != "phases"}, columns["phases"]
        modes = np.array(["", *(m.name for m in sorted(Mode, key=int))])
        faults = columns["major_faults"]
        self.steps = {
            "step": columns["step"],
            "mode_step": columns["mode_step"],
            "update": columns["update"],
            "mode": modes[np.minimum(columns["mode"], len(modes) - 1)],
            "worker": columns["worker"].astype(np.int64),
            "merged": columns["merged"].astype(np.int64),
            "begin_unix_s": columns["begin_ns"] * _NS,
            "wall": columns["wall_ns"] * _NS,
            "cpu": _seconds(columns["cpu_ns"]),
            "run_queue": _seconds(columns["run_queue_ns"]),
            "device": _seconds(columns["device_ns"]),
            "major_faults": np.where(faults == _NO_ID, np.nan, faults),
        }
        self.phases, self.begins, self.offsets = {}, {}, {}
        for phase in Phase:
            if phase not in by_number:
                continue
            ns, begins, begin_ns = (column[wanted] for column in by_number[phase])
            if not (ns >= 0).any():
                continue
            name = phase.name.lower()
            self.phases[name] = _seconds(ns)
            self.begins[name] = begins.astype(np.int64)
            self.offsets[name] = np.where(begin_ns < 0, np.nan, (begin_ns - columns["begin_ns"]) * _NS)

    def __len__(self) -> int:
        return len(self.steps["step"])

    def __repr__(self) -> str:
        return f"<luff.Profile of {self._path!r}, {len(self)} steps, {len(self.phases)} phases>"

    def table(self) -> list[PhaseShare]:
        """Returns each phase over all steps of the profile, the longest first."""
        merged = self.steps["merged"]
        whole = float(np.sum(self.steps["wall"]))
        rows: list[PhaseShare] = []
        for name, seconds in self.phases.items():
            there = ~np.isnan(seconds)
            one = np.repeat(seconds[there] / merged[there], np.minimum(merged[there], 10_000))
            total = float(np.sum(seconds[there]))
            rows.append(
                {
                    "phase": name,
                    "steps": int(np.sum(merged[there])),
                    "seconds": total,
                    "share": total / whole if whole > 0 else 0.0,
                    "median": float(np.quantile(one, 0.5)),
                    "p95": float(np.quantile(one, 0.95)),
                }
            )
        return sorted(rows, key=lambda row: -row["seconds"])

    def to_pandas(self) -> Any:
        """Returns a ``pandas.DataFrame`` with a row for each step: the columns of `steps`, then those of `phases`.

        Raises
        ------
        FailedPreconditionError
            If pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError:
            raise FailedPreconditionError(
                "to_pandas needs pandas, which is not installed: pip install pandas; the same columns are in "
                "Profile.steps and Profile.phases"
            ) from None
        return pd.DataFrame({**self.steps, **self.phases})


def read(core: _core.Trial, mode: int, worker: int | None) -> Profile:
    """Reads the phases of a trial."""
    return Profile(core.phases(worker), mode, core.path)
