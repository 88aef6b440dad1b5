"""Reads a run: its tensors, summaries, scalars and events, while the job writes or afterwards.

>>> trial = luff.open_trial("runs/x")  # doctest: +SKIP
>>> trial.tensor("gradient/conv1.weight").value(10, mode="TRAIN")  # doctest: +SKIP

Functions that take a step take `mode` too: with ``"GLOBAL"`` (the default) the step is a global step, with
``"TRAIN"``, ``"EVAL"`` or ``"PREDICT"`` it is a step of that mode.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from luff import _core
from luff._bounded import parse_json
from luff._codes import EventKind, Form, Mode, Role
from luff.errors import InvalidArgumentError, OutOfRangeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from luff._records import Event, Finding, Gap, StepInfo, Worker
    from luff.profile import Profile

__all__ = ["REDUCTIONS", "Tensor", "Trial", "open_trial"]

#: Names that `Tensor.reduction` accepts.
REDUCTIONS = ("min", "max", "mean", "std", "variance", "sum", "prod", "l1", "l2")

_MODES = {m.name: int(m) for m in Mode}
_DEFAULT_STACK_BYTES = 8 << 30


def _mode(mode: str | int) -> int:
    if isinstance(mode, str):
        code = _MODES.get(mode.upper())
        if code is not None:
            return code
    elif mode in _MODES.values():
        return int(mode)
    raise InvalidArgumentError(f"found mode {mode!r}, expected TRAIN, EVAL, PREDICT or GLOBAL")


def _numpy_dtype(name: str) -> np.dtype[Any]:
    """Returns the type for a name of `luff::DTypeName` that the binding does not convert itself."""
    simple = {"float16": "f2", "complex64": "c8", "complex128": "c16"}
    if name in simple:
        return np.dtype(simple[name])
    if name == "complex32":
        return np.dtype([("real", "f2"), ("imag", "f2")])
    import ml_dtypes

    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, "float8_e4m3fn" if name == "float8_e4m3" else name))
    return found


def _array(made: Any) -> Any:
    if type(made) is not tuple:
        return made
    name, shape, raw = made
    if name == "string":
        return raw.tobytes().decode("utf-8", "backslashreplace")
    return raw.view(_numpy_dtype(name)).reshape(shape)


def open_trial(
    path: str | os.PathLike[str],
    *,
    wait_s: float = 0.0,
    use_live_page: bool = True,
    lost_after_s: float = 60.0,
) -> Trial:
    """Opens a run directory, or a directory that smdebug writes or wrote, for reading.

    Parameters
    ----------
    path
        The run directory, or the URL of a run in a bucket (``s3://``, ``gs://``, ``az://``, ``file://``): a local copy
        is made and follows the bucket while the trial lives; values are fetched when they are read (docs/buckets.md).
    wait_s
        How long to wait for the first complete step. 0 opens an empty run at once.
    use_live_page
        Follow the job through its live page where possible. False follows only the files, as on a network file
        system.
    lost_after_s
        A worker without a sign of life for this long is lost: it becomes a gap, and is not waited for.

    Raises
    ------
    NotFoundError, FailedPreconditionError, UnsupportedVersionError, CorruptionError
        If there is no such directory; if it is not a run; if a newer version wrote it; if its run.json is damaged.
    UnavailableError, InvalidArgumentError
        If a bucket does not answer; if a URL is none of a run.
    """
    if isinstance(path, str) and "://" in path:
        from luff.remote._client import is_url, spool_of

        if is_url(path):
            path = spool_of(path)
    return Trial(_core.open_trial(os.fspath(path), float(wait_s), use_live_page, float(lost_after_s)))


class Trial:
    """A run opened for reading; made by `open_trial`.

    It shows complete steps: those that every living worker has passed. `refresh` and the waiting functions load new
    ones.

    Threads may share a trial: one call uses it at a time, and a waiting call only while it checks. A forked process
    must open its own.
    """

    def __init__(self, core: _core.Trial) -> None:
        self._core = core
        self._ids: dict[
            str, int
        ] = {}  # of tensors requested so far; not the tensors themselves, which would hold the trial

    def __enter__(self) -> Trial:  # noqa: PYI034  (Python 3.10 has no Self)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Forgets the names requested so far. Files are released with the trial and its
        tensors; arrays stay valid.
        """
        self._ids.clear()

    def __repr__(self) -> str:
        return f"<luff.Trial {self.path!r}, {self._core.step_count} steps, {self.outcome}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: outcome, steps, losses, findings that stand."""
        from luff._notebook import trial_html

        return trial_html(self)

    def __iter__(self) -> Iterator[Tensor]:
        return (self.tensor(name) for name in self.tensors())

    @property
    def path(self) -> str:
        """The run directory."""
        return self._core.path

    @property
    def world_size(self) -> int:
        """Number of workers that the run was made for."""
        return self._core.world_size

    @property
    def loaded_all_steps(self) -> bool:
        """Whether every worker has ended or is lost, and everything is read."""
        return self._core.loaded_all_steps

    @property
    def outcome(self) -> str:
        """``"running"``, ``"completed"``, ``"stopped"`` or ``"failed"``."""
        return str(self._core.outcome()[0])

    @property
    def outcome_reason(self) -> str:
        """The reason in words; empty if there is none."""
        return str(self._core.outcome()[1])

    def refresh(self) -> bool:
        """Reads what was published since the last refresh. Returns True if anything is new."""
        return self._core.refresh()

    def wait_for_news(self, timeout_s: float) -> bool:
        """Waits for a new complete step or the end of the run, at most `timeout_s` seconds. Returns True if there is
        either.
        """
        return self._core.wait_for_news(float(timeout_s))

    def wait_for_step(self, step: int, mode: str | int = "GLOBAL", timeout_s: float = 60.0) -> None:
        """Waits until a step is complete.

        Raises
        ------
        DeadlineExceededError
            If it is not complete in time.
        OutOfRangeError
            If it can never come: later steps are complete, or the run is over.
        """
        self._core.wait_for_step(step, _mode(mode), float(timeout_s))

    def step_state(self, step: int, mode: str | int = "GLOBAL") -> str:
        """Returns ``"available"``, ``"not yet available"`` or ``"unavailable"``."""
        return ("available", "not yet available", "unavailable")[self._core.step_state(step, _mode(mode))]

    def tensors(
        self,
        regex: str | None = None,
        *,
        collection: str | None = None,
        mode: str | int = "GLOBAL",
        step: int | None = None,
    ) -> list[str]:
        """Returns the sorted names of tensors.

        Parameters
        ----------
        regex
            Expression to search anywhere in the name (the dialect of `re`, bounded).
        collection
            Only tensors of this collection.
        mode, step
            Only tensors that have anything at this step; without a step, at any step of the mode.
        """
        return self._core.tensors(regex or "", collection or "", _mode(mode), step)

    def tensor(self, name: str) -> Tensor:
        """Returns the tensor of this name. Raises `NotFoundError`, which names the three nearest."""
        found = self._ids.get(name)
        if found is None:
            found = self._ids[name] = self._core.find(name)
        return Tensor(self, name, found)

    def has_tensor(self, name: str) -> bool:
        """Returns whether the run has a tensor of this name."""
        return name in self._ids or name in set(self.tensors())

    def steps(self, mode: str | int = "GLOBAL") -> list[int]:
        """Returns the complete steps, ascending."""
        return self._core.steps(_mode(mode))

    def modes(self) -> list[str]:
        """Returns the names of the modes that have steps."""
        return [m.name for m in Mode if m is not Mode.GLOBAL and self._core.steps(int(m))]

    def global_step(self, step: int, mode: str | int) -> int:
        """Returns the global step of a step of a mode."""
        return int(self._core.step_info(step, _mode(mode))[0])

    def mode_step(self, global_step: int) -> tuple[str, int]:
        """Returns the mode, and the step of the mode, of a global step."""
        info = self._core.step_info(global_step, int(Mode.GLOBAL))
        return Mode(info[3]).name, info[1]

    def step_info(self, step: int, mode: str | int = "GLOBAL") -> StepInfo:
        """Returns the numbers of a step: global and mode step, update, mode, wall time and duration (nanoseconds)."""
        global_step, mode_step, update, code, wall_unix_ns, duration_ns = self._core.step_info(
            step, _mode(mode)
        )
        return {
            "global_step": global_step,
            "mode_step": mode_step,
            "update": update,
            "mode": Mode(code).name,
            "wall_unix_ns": wall_unix_ns,
            "duration_ns": duration_ns,
        }

    def workers(self) -> list[Worker]:
        """Returns the state of each worker."""
        return self._core.workers()

    def collections(self) -> dict[str, Any]:
        """Returns the settings of each collection, by name."""
        text = self._core.document("collections")
        settings = {c.get("name"): c for c in parse_json(text)} if text else {}
        return {name: settings.get(name, {}) for name in self._core.collections()}

    def scalars(
        self, name: str, mode: str | int = "GLOBAL", worker: int | None = None
    ) -> dict[str, NDArray[Any]]:
        """Returns the scalars of one name: arrays ``step`` (global), ``mode_step``, ``update`` (those before the step)
        and ``value``.
        """
        step, mode_step, update, value = self._core.scalars(self._core.find(name), _mode(mode), worker)
        return {"step": step, "mode_step": mode_step, "update": update, "value": value}

    def events(self, mode: str | int = "GLOBAL") -> list[Event]:
        """Returns the events of the training loop, each with at least ``step``, ``worker`` and ``kind``."""
        known = {int(k): k.name.lower() for k in EventKind}
        found: list[Event] = [
            {
                "step": e[0],
                "worker": e[1],
                "kind": known.get(e[2], str(e[2])),
                "subject": e[3],
                "argument": e[4],
                "since_step_ns": e[5],
            }
            for e in self._core.events(_mode(mode))
        ]
        if _mode(mode) == Mode.GLOBAL:
            for step, worker, text in self._core.json_events():
                try:
                    item = parse_json(text)
                except ValueError:
                    continue
                if isinstance(item, dict):
                    found.append(cast("Event", {"kind": "", **item, "step": step, "worker": worker}))
        return found

    def profile(self, mode: str | int = "TRAIN", worker: int | None = None) -> Profile:
        """Returns where the time went, step by step, as columns.

        Parameters
        ----------
        mode
            Only steps of this mode; ``"GLOBAL"``: of all.
        worker
            Only steps of this worker; by default of all.

        Returns
        -------
        Profile
            Empty if the run recorded no phases; ``luff profile RUN`` says why.
        """
        from luff.profile import read

        return read(self._core, _mode(mode), worker)

    def findings(self, *, healed: bool = True) -> list[Finding]:
        """Returns what rules found, in the order in which it appeared.

        Parameters
        ----------
        healed
            False leaves out what is over.

        Returns
        -------
        list of Finding
            A dictionary each, with the members of docs/spec/findings.md but `event`: ``rule``, ``severity``, ``what``,
            ``why``, ``remedy``, ``tensor``, ``mode``, ``step``, ``since_step``, ... Empty if no rule looked at the run.
        """
        texts, _ = self._core.findings()
        found = [parse_json(text) for text in texts]
        kept = [{key: value for key, value in finding.items() if key != "event"} for finding in found]
        return [cast("Finding", finding) for finding in kept if healed or not finding["healed"]]

    def gaps(self) -> list[Gap]:
        """Returns what was not recorded, and why."""
        return self._core.gaps()

    def problems(self) -> list[str]:
        """Returns the damage found so far, also in the files of findings: file, place, what is lost."""
        return [*self._core.problems(), *self._core.findings()[1]]

    def document(self, name: str) -> Any:
        """Returns a document of the run, e.g. ``"model"``, ``"collections"``, ``"environment"``; None if there is
        none.
        """
        text = self._core.document(name)
        return parse_json(text) if text else None


class Tensor:
    """One named tensor of a trial; made by `Trial.tensor`."""

    __slots__ = ("_core", "_id", "name", "trial")

    def __init__(self, trial: Trial, name: str, number: int) -> None:
        self.trial = trial
        self.name = name
        self._core = trial._core
        self._id = number

    def __repr__(self) -> str:
        return f"<luff.Tensor {self.name!r} of {self.trial.path!r}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: role, module, steps, the latest statistics or scalars."""
        from luff._notebook import tensor_html

        return tensor_html(self)

    @property
    def role(self) -> str:
        """What the tensor is to the model, e.g. ``"weight"``."""
        return Role(self._core.info(self._id)[1]).name.lower()

    @property
    def module(self) -> tuple[str, str]:
        """Path and type of the module that it belongs to; empty if it belongs to none."""
        info = self._core.info(self._id)
        return info[2], info[3]

    @property
    def collections(self) -> list[str]:
        """Names of the collections that contain it."""
        return list(self._core.info(self._id)[4])

    def steps(self, mode: str | int = "GLOBAL") -> list[int]:
        """Returns the steps at which anything of it was recorded, ascending."""
        return self._core.tensor_steps(self._id, _mode(mode))

    def value_steps(self, mode: str | int = "GLOBAL", worker: int | None = None) -> list[int]:
        """Returns the steps at which its value was recorded and still exists, ascending."""
        return self._core.value_steps(self._id, _mode(mode), worker)

    def workers(self, step: int, mode: str | int = "GLOBAL") -> list[int]:
        """Returns the workers that recorded it at a step."""
        return self._core.tensor_workers(self._id, step, _mode(mode))

    def value(self, step: int, mode: str | int = "GLOBAL", worker: int | None = None) -> Any:
        """Returns the value at a step: a read-only array, or a str.

        Without `worker`, it is that of the first worker that has it; of a sharded tensor, each worker has its part.

        Raises
        ------
        OutOfRangeError
            If the step, or this value at it, was not saved (nearest steps are named) or was deleted by retention.
        UnavailableError
            If the step is not available yet.
        CorruptionError
            If the stored bytes are damaged, or their file was truncated.
        """
        made = self._core.value(self._id, step, 4 if mode == "GLOBAL" else _mode(mode), worker)
        return made if type(made) is np.ndarray else _array(made)

    def stacked(
        self, mode: str | int = "GLOBAL", worker: int | None = None, max_bytes: int = _DEFAULT_STACK_BYTES
    ) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Returns the steps, and all values as one array with the steps as its first axis.

        Raises
        ------
        FailedPreconditionError
            If dtype or shape differs between steps; use `values`.
        ResourceExhaustedError
            If the array would be larger than `max_bytes`.
        """
        steps, values = self._core.stack(self._id, _mode(mode), worker, max_bytes)
        return steps, _array(values)

    def values(self, mode: str | int = "GLOBAL", worker: int | None = None) -> dict[int, Any]:
        """Returns all values by step."""
        from luff.errors import FailedPreconditionError, ResourceExhaustedError

        try:
            steps, stack = self.stacked(mode, worker)
        except (FailedPreconditionError, ResourceExhaustedError):
            code = _mode(mode)
            return {
                s: _array(self._core.value(self._id, s, code, worker)) for s in self.value_steps(mode, worker)
            }
        return dict(zip(steps.tolist(), stack, strict=True))

    def shape(self, step: int, mode: str | int = "GLOBAL", worker: int | None = None) -> tuple[int, ...]:
        """Returns the shape of the value at a step."""
        return tuple(self._core.shape(self._id, step, _mode(mode), worker)[0])

    def dtype(self, step: int, mode: str | int = "GLOBAL", worker: int | None = None) -> str:
        """Returns the name of its type at a step, e.g. ``"bfloat16"``."""
        return str(self._core.shape(self._id, step, _mode(mode), worker)[1])

    def shard(
        self, step: int, mode: str | int = "GLOBAL", worker: int | None = None
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the shape of the whole tensor and the offset of this worker's part; both are empty if it is not
        sharded.
        """
        _, _, whole, offset = self._core.shape(self._id, step, _mode(mode), worker)
        return tuple(whole), tuple(offset)

    def summary(self, step: int, mode: str | int = "GLOBAL", worker: int | None = None) -> dict[str, Any]:
        """Returns statistics at a step over finite elements: count, min, max, mean, std,
        sum, l1, l2, nan_count, ...
        """
        return self._core.summary(self._id, step, _mode(mode), worker)

    def summaries(self, mode: str | int = "GLOBAL", worker: int | None = None) -> dict[str, NDArray[Any]]:
        """Returns statistics of all steps as columns: read-only arrays of equal length.

        Columns: step, mode_step, update, mode (code), count, zero_count, nan_count, inf_count, min, max, mean,
        std, sum, abs_mean, l2.
        """
        return self._core.summaries(self._id, _mode(mode), worker)

    def histogram(
        self, step: int, mode: str | int = "GLOBAL", worker: int | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.uint64]]:
        """Returns lower edges, upper edges and counts of the occupied bins."""
        low, high, count = self._core.histogram(self._id, step, _mode(mode), worker)
        return low, high, count

    def saved_reductions(
        self, step: int, mode: str | int = "GLOBAL", worker: int | None = None
    ) -> dict[tuple[str, bool], float]:
        """Returns statistics that the job itself saved, as it wrote them: (name, of magnitudes) -> value.

        Only smdebug's directories have them; Luff's runs have summaries.
        """
        return {(n, a): v for n, a, v in self._core.saved_reductions(self._id, step, _mode(mode), worker)}

    def quantile(self, step: int, q: float, mode: str | int = "GLOBAL", worker: int | None = None) -> float:
        """Returns a quantile (0 to 1) from the histogram, within 6.25 %; from the value if there is no histogram."""
        if not 0 <= q <= 1:
            raise InvalidArgumentError(f"found quantile {q}, expected 0 to 1")
        try:
            return self._core.quantile(self._id, step, float(q), _mode(mode), worker)
        except OutOfRangeError as error:
            try:
                value = np.asarray(self.value(step, mode, worker), dtype=np.float64)
            except OutOfRangeError:
                raise error from None
            finite = value[np.isfinite(value)]
            return float(np.quantile(finite, q)) if finite.size else math.nan

    def reduction(
        self,
        step: int,
        name: str,
        *,
        abs: bool = False,  # noqa: A002  (the trial API's word)
        mode: str | int = "GLOBAL",
        worker: int | None = None,
    ) -> float:
        """Returns one of `REDUCTIONS` at a step, of the elements or (`abs`) of their magnitudes.

        The definition does not depend on what was stored: over finite elements, in float64, ``ddof=0``, norms of the
        flattened tensor. It is taken from the summary if that has the number, else computed from the value.
        """
        if name not in REDUCTIONS:
            raise InvalidArgumentError(f"found reduction {name!r}, expected one of {', '.join(REDUCTIONS)}")
        try:
            s = self.summary(step, mode, worker)
        except OutOfRangeError:
            s = None
        if s is not None:
            found = self._from_summary(s, name, abs)
            if found is not None:
                return found
            if s["merged_steps"] == 1 and (name == "prod" or (name == "min" and abs)):
                try:
                    form = self._core.form(self._id, int(Form.EXTRA), step, _mode(mode), worker)
                    return form[0] if name == "min" else form[2 if abs else 1]
                except OutOfRangeError:
                    pass
        x = np.asarray(self.value(step, mode, worker))
        x = np.abs(x) if np.iscomplexobj(x) else x.astype(np.float64)
        x = x[np.isfinite(x)].astype(np.float64)
        if abs:
            x = np.abs(x)
        if x.size == 0:
            return {"sum": 0.0, "prod": 1.0, "l1": 0.0, "l2": 0.0}.get(name, math.nan)
        if name == "l1":
            return float(np.abs(x).sum())
        if name == "l2":
            return float(np.sqrt(np.square(x).sum()))
        return float({"variance": np.var}.get(name, getattr(np, name, np.var))(x))

    @staticmethod
    def _from_summary(s: dict[str, Any], name: str, magnitudes: bool) -> float | None:
        if name in ("l1", "l2"):
            return float(s[name])
        if not magnitudes:
            return None if name == "prod" else float(s[name])
        if name in ("sum", "mean", "max"):
            return float({"sum": s["l1"], "mean": s["abs_mean"], "max": s["abs_max"]}[name])
        if name in ("variance", "std"):
            finite = s["count"] - s["nan_count"] - s["inf_count"]
            if finite == 0:
                return math.nan
            variance = max(0.0, s["sum_sq"] / finite - s["abs_mean"] ** 2)
            return variance if name == "variance" else math.sqrt(variance)
        return None
