"""Where the time of a run went, as columns: what `Trial.profile` returns.

>>> profile = luff.open_trial("runs/x").profile()  # doctest: +SKIP
>>> profile.phases["data_wait"]  # seconds, one number for each step  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from luff import _core
from luff._bounded import parse_json
from luff._codes import Mode, Phase
from luff.errors import FailedPreconditionError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

__all__ = ["HostSamples", "PhaseShare", "Profile"]

_NO_ID = 0xFFFFFFFF
_TRACED, _TIMED = 1, 2
_NS = 1e-9


class PhaseShare(TypedDict):
    """One phase over the steps of a profile."""

    phase: str
    steps: int  # that have it; a merged one counts as all that it stands for
    seconds: float  # in all of them
    share: float  # of the time of all steps, 0 to 1
    median: float  # seconds of a step that has it
    p95: float


class HostSamples:
    """What the sampler of one host measured; made by `Profile.hosts`.

    Attributes
    ----------
    number
        Of its folder ``hNNNN``.
    units
        The series by name, and the unit of each: ``s``, ``bytes``, ``1`` for shares, ...; empty for plain numbers.
    counters
        Names of those that grow, whose growth counts.
    """

    def __init__(self, core: _core.Samples, place: int, number: int) -> None:
        self.number = number
        self._core = core
        self._place = place
        series = core.series(place)
        self.units: dict[str, str] = {name: unit for name, unit, _ in series}
        self.counters = frozenset(name for name, _, counter in series if counter)

    def __repr__(self) -> str:
        return f"<luff.HostSamples of host {self.number}, {len(self.units)} series>"

    def document(self, name: str) -> Any:
        """Returns a document: ``"host"`` (its name, cores, limits) or ``"sources"`` (what was read, and what not);
        None if there is none.
        """
        text = self._core.document(self._place, name)
        return parse_json(text) if text else None

    def columns(self, name: str) -> dict[str, NDArray[Any]]:
        """Returns a series as columns, ascending by time.

        Returns
        -------
        dict
            ``unix_s``: when it was measured; ``value``; ``most``: of values that retention has merged, the largest
            (float64); ``merged``: how many samples a row stands for at most (int64).

        Raises
        ------
        NotFoundError
            If there is no such series.
        """
        unix_ns, value, most, merged = self._core.read(self._place, name)
        return {
            "unix_s": unix_ns * _NS,
            "value": value,
            "most": most,
            "merged": merged.astype(np.int64),
        }

    def rates(self, name: str) -> dict[str, NDArray[np.float64]]:
        """Returns how fast a counter grows: ``unix_s``, the end of each interval, ``seconds``, its length, and
        ``value``, the growth in a second. Intervals in which the counter began again are left out. Growth of a time
        in a second is a share, e.g. of a core.
        """
        if name in self.units and name not in self.counters:
            raise InvalidArgumentError(
                f"{name} is no counter: its values count, not their growth; use columns()"
            )
        found = self.columns(name)
        took, grown = np.diff(found["unix_s"]), np.diff(found["value"])
        good = (took > 0) & (grown >= 0)
        return {
            "unix_s": found["unix_s"][1:][good],
            "seconds": took[good],
            "value": grown[good] / took[good],
        }

    def to_pandas(self, names: Sequence[str] | None = None) -> Any:
        """Returns a ``pandas.DataFrame`` with a row for each value: ``host``, ``series``, ``unit``, ``unix_s``,
        ``value``; counters by their rates.

        Parameters
        ----------
        names
            Only these series.

        Raises
        ------
        FailedPreconditionError
            If pandas is not installed.
        """
        pd = _pandas()
        frames = []
        for name in self.units if names is None else names:
            found = self.rates(name) if name in self.counters else self.columns(name)
            frames.append(
                pd.DataFrame(
                    {
                        "host": self.number,
                        "series": name,
                        "unit": self.units.get(name, ""),
                        "unix_s": found["unix_s"],
                        "value": found["value"],
                    }
                )
            )
        columns = ["host", "series", "unit", "unix_s", "value"]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)


def _pandas() -> Any:
    try:
        import pandas as pd
    except ImportError:
        raise FailedPreconditionError(
            "to_pandas needs pandas, which is not installed: pip install pandas; the same columns are NumPy's here"
        ) from None
    return pd


def _seconds(ns: NDArray[Any]) -> NDArray[np.float64]:
    """Converts nanoseconds; what is negative is not known."""
    return np.where(ns < 0, np.nan, ns * _NS)


class Profile:
    """Where the time went, step by step.

    All columns have the same length, the number of `steps`, which lie worker by worker, ascending. Numbers that are not
    known are NaN: a phase that a step does not have is absent, which is not the same as 0.
    """

    #: ``step`` (global), ``mode_step``, ``update`` (those before it), ``worker``: int64; ``mode``: its name;
    #: ``merged``: how many steps a row stands for, 1 unless retention has merged some (int64); ``begin_unix_s``: when
    #: it began, ``wall``: how long it took, ``cpu``: the CPU time of the training thread, ``run_queue``: the time for
    #: which that could have run and had no core, ``device``: the time of the device, from where the step began there
    #: to where it ended (float64, seconds); ``device_idle``: whether it had done all of the step before when the step
    #: began, of merged steps the share of those (float64);
    #: ``major_faults`` (float64); ``traced``, ``timed``: whether operators were traced, or modules timed, in it (bool).
    steps: dict[str, NDArray[Any]]
    #: Seconds of each phase that occurs, by its name (float64). Over the phases that a step has they add up to its
    #: ``wall``.
    phases: dict[str, NDArray[np.float64]]
    #: How often each of these phases began in a step (int64).
    begins: dict[str, NDArray[np.int64]]
    #: Where the interval of each of these phases begins, in seconds since ``begin_unix_s`` (float64). A phase that
    #: began several times has one interval, with the length of all of them.
    offsets: dict[str, NDArray[np.float64]]
    #: Seconds of a device in these phases, from where each began there to where the next one did: it worked, or had
    #: nothing to do (float64). Only phases of which some are known; they add up to ``device`` (but for phases that the
    #: host did not see).
    device_phases: dict[str, NDArray[np.float64]]

    def __init__(
        self, columns: dict[str, Any], mode: int, path: str, modules: Callable[[], tuple[int, list[Any]]]
    ) -> None:
        self._path = path
        self._read_modules = modules
        self._modules: dict[str, NDArray[Any]] | None = None
        self._hosts: list[HostSamples] | None = None
        wanted = slice(None) if mode == Mode.GLOBAL else np.flatnonzero(np.asarray(columns["mode"]) == mode)
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
            "device_idle": np.where(
                columns["idle_steps"] < 0, np.nan, columns["idle_steps"] / np.maximum(columns["merged"], 1)
            ),
            "major_faults": np.where(faults == _NO_ID, np.nan, faults),
            "traced": (columns["flags"] & _TRACED) != 0,
            "timed": (columns["flags"] & _TIMED) != 0,
        }
        self.phases, self.begins, self.offsets, self.device_phases = {}, {}, {}, {}
        for phase in Phase:
            if phase not in by_number:
                continue
            ns, begins, begin_ns, device_ns = (column[wanted] for column in by_number[phase])
            if not (ns >= 0).any():
                continue
            name = phase.name.lower()
            self.phases[name] = _seconds(ns)
            self.begins[name] = begins.astype(np.int64)
            if (device_ns >= 0).any():
                self.device_phases[name] = _seconds(device_ns)
            self.offsets[name] = np.where(begin_ns < 0, np.nan, (begin_ns - columns["begin_ns"]) * _NS)

    def __len__(self) -> int:
        return len(self.steps["step"])

    def __repr__(self) -> str:
        return f"<luff.Profile of {self._path!r}, {len(self)} steps, {len(self.phases)} phases>"

    def table(self) -> list[PhaseShare]:
        """Returns each phase over all steps of the profile, the longest first. Traced steps are left out."""
        kept = ~self.steps["traced"]
        merged = self.steps["merged"]
        whole = float(np.sum(self.steps["wall"][kept]))
        rows: list[PhaseShare] = []
        for name, seconds in self.phases.items():
            there = ~np.isnan(seconds) & kept
            if not there.any():
                continue
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
        return _pandas().DataFrame({**self.steps, **self.phases})

    @property
    def modules(self) -> dict[str, NDArray[Any]]:
        """How long the modules of the model take in the TRAIN steps in which they were timed, as columns: one row for
        each module, the dearest by its own time first. Empty columns unless the run was recorded with
        ``profile="full"``.

        ``module``, ``type``: names (``""``: all others together); ``calls`` in a step; ``forward``, ``backward``:
        seconds in a step, with the modules that a module calls; ``forward_own``, ``backward_own``: without; NaN where
        it was not seen (float64). Of the profile's worker, or of the first that timed some.
        """
        if self._modules is None:
            steps, lines = self._read_modules()
            names = ("module", "type", "calls", "forward", "forward_own", "backward", "backward_own")
            self._modules = {}
            for place, name in enumerate(names):
                values = [line[place] for line in lines]
                if place < 2:
                    self._modules[name] = np.array(values, dtype=np.str_)
                else:
                    column = np.array(
                        [np.nan if value is None else value for value in values], dtype=np.float64
                    )
                    self._modules[name] = column / max(steps, 1)
        return self._modules

    @property
    def hosts(self) -> list[HostSamples]:
        """What was sampled of the machines: one entry for each host, whatever the steps of the profile. Empty if
        nothing was.
        """
        if self._hosts is None:
            core = _core.open_samples(self._path)
            self._hosts = [HostSamples(core, place, number) for place, number in enumerate(core.hosts())]
        return self._hosts


def read(core: _core.Trial, mode: int, worker: int | None) -> Profile:
    """Reads the phases of a trial."""
    return Profile(core.phases(worker), mode, core.path, lambda: core.modules(worker))
