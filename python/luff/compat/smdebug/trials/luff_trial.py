"""A run that Luff recorded, read with smdebug's API."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

from luff import trial as luff_trial
from luff.compat.smdebug.core.collection import Collection
from luff.compat.smdebug.core.modes import ModeKeys
from luff.compat.smdebug.exceptions import InvalidWorker, SMDebugRuntimeError, TensorUnavailableForStep
from luff.compat.smdebug.trials.trial import Trial
from luff.errors import LuffError, OutOfRangeError

__all__ = ["LuffTrial"]

# Reductions that a summary contains; the others are computed from the value.
_OF_A_SUMMARY = (
    ("min", False), ("max", False), ("mean", False), ("std", False), ("variance", False), ("sum", False),
    ("l1", False), ("l2", False), ("max", True), ("mean", True), ("std", True), ("variance", True), ("sum", True),
    ("l1", True), ("l2", True),
)  # fmt: skip

# Collections that smdebug has in every trial, and the roles of their tensors in Luff's runs.
_BUILT_IN = {
    "weights": ("weight",),
    "biases": ("bias",),
    "gradients": ("gradient",),
    "losses": ("loss",),
    "inputs": ("input",),
    "outputs": ("output",),
    "labels": ("label",),
    "metrics": ("scalar",),
    "optimizer_variables": ("optimizer_state",),
    "predictions": ("output",),
}
_MODES = [mode.name for mode in ModeKeys if mode is not ModeKeys.GLOBAL]


def _number(worker: str) -> int:
    return int(worker.rpartition("_")[2])


def _is_numpys(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biufcSU"  # bfloat16 and the float8 types have another one


class LuffTrial(Trial):
    """A run directory. Steps, modes and names are Luff's (docs/pytorch.md); summaries serve as reductions."""

    def __init__(
        self,
        name: str,
        dirname: str,
        range_steps: tuple[int | None, int | None] | None = None,
        cache: bool = False,
        opened: luff_trial.Trial | None = None,
        **_: Any,
    ) -> None:
        super().__init__(name, os.path.expanduser(os.fspath(dirname)), range_steps, cache)
        self._luff = opened if opened is not None else luff_trial.open_trial(self.path)
        self.num_workers = self._luff.world_size
        self._seen = 0
        self._kept: dict[Any, tuple[int, Any]] = {}  # what was looked up, and how many steps there were then
        self._own: set[str] = set()  # collections that the run itself has
        self._known_names = -1  # how many names the collections were made from
        environment = self._luff.document("environment")
        self._is_torchs = isinstance(environment, dict) and environment.get("framework") == "torch"
        self.maybe_refresh()
        self._load_collections()

    def collections(self) -> dict[str, Collection]:
        """Returns all collections by name: the run's, and those that smdebug always has."""
        self._load_collections()
        return super().collections()

    def collection(self, coll_name: str) -> Collection:
        """Returns a collection; an unknown name makes an empty one."""
        self._load_collections()
        return super().collection(coll_name)

    def _ended(self) -> bool:
        return self._luff.loaded_all_steps

    def _load(self) -> None:
        self._luff.refresh()
        steps = self._luff.steps()
        low, high = self.range_steps or (None, None)
        workers = [f"worker_{w['worker']}" for w in self._luff.workers()]
        self.worker_set = set(workers)
        for step in steps[self._seen :]:
            if (low is not None and step < low) or (high is not None and step >= high):
                continue
            mode, mode_step = self._luff.mode_step(step)
            for worker in workers:  # steps that Luff shows are complete
                self._see(step, worker, ModeKeys[mode], mode_step)
            self.last_complete_step = max(self.last_complete_step, step)
        self._seen = len(steps)

    def _load_collections(self) -> None:
        """Adds the run's collections, with the tensors that they have by now, and those that smdebug always has."""
        names = self._luff.tensors()
        if self._known_names == len(names):
            return
        self._known_names = len(names)
        collections = self.collection_manager
        for name in self._luff.collections():
            self._own.add(name)
            collections.add(name)
            collections.get(name).tensor_names |= set(self._luff.tensors(collection=name))
        by_role: dict[str, list[str]] = {}
        for name in names:
            by_role.setdefault(self._luff.tensor(name).role, []).append(name)
        for name, roles in _BUILT_IN.items():
            if name not in self._own:
                collections.add(name)
                for role in roles:
                    collections.get(name).tensor_names |= set(by_role.get(role, ()))

    def _look_up(self, key: Any, find: Any) -> Any:
        """Returns what `find` returned since the last new step."""
        seen, found = self._kept.get(key, (-1, None))
        if seen != self._seen:
            found = find()
            self._kept[key] = (self._seen, found)
        return found

    def _names(self) -> list[str]:
        names: list[str] = self._look_up("names", self._find_names)
        return names

    def _find_names(self) -> list[str]:
        # Luff also lists tensors that it knows and of which it recorded nothing.
        names = sorted({name for mode in _MODES for name in self._luff.tensors(mode=mode)})
        return names if self.range_steps is None else [name for name in names if self._in_range(name)]

    def _in_range(self, name: str) -> bool:
        return not self._steps_of(name, ModeKeys.GLOBAL).isdisjoint(self.workers_for_global_step)

    def _known(self, name: str) -> bool:
        names: set[str] = self._look_up("set", lambda: set(self._names()))
        return name in names

    def _steps_of(self, name: str, mode: ModeKeys) -> set[int]:
        """Returns the steps that have anything of a tensor."""
        found: set[int] = self._look_up(
            ("all", name, mode), lambda: set(self._luff.tensor(name).steps(mode.name))
        )
        return found

    def _value_steps(self, name: str, mode: ModeKeys, worker: str | None = None) -> set[int]:
        """Returns the steps that have a tensor's value, as an array or as a number."""

        def find() -> set[int]:
            number = None if worker is None else _number(worker)
            steps = set(self._luff.tensor(name).value_steps(mode.name, number))
            found = self._luff.scalars(name, mode.name, number)
            steps.update(found["step" if mode is ModeKeys.GLOBAL else "mode_step"].tolist())
            return steps

        found: set[int] = self._look_up(("values", name, mode, worker), find)
        return found

    def _summary_steps(self, name: str, mode: ModeKeys) -> set[int]:
        def find() -> set[int]:
            columns = self._luff.tensor(name).summaries(mode.name)
            return set(columns["step" if mode is ModeKeys.GLOBAL else "mode_step"].tolist())

        found: set[int] = self._look_up(("summaries", name, mode), find)
        return found

    def _has(self, name: str, step: int) -> bool:
        return step in self.workers_for_global_step and step in self._steps_of(name, ModeKeys.GLOBAL)

    def _in_mode(self, name: str, mode: ModeKeys) -> bool:
        return not self._steps_of(name, mode).isdisjoint(self._all_steps(mode))

    def _tensor_steps(self, name: str, mode: ModeKeys) -> list[int]:
        """Returns the steps that hold the tensor.

        Those of its values; if the run has none of them, those of its summaries; if it has none of these either, those
        of anything else.
        """
        for steps in (self._value_steps, self._summary_steps, self._steps_of):
            if steps(name, ModeKeys.GLOBAL):
                return sorted(steps(name, mode).intersection(self._all_steps(mode)))
        return []

    def _tensor_workers(self, name: str, step: int) -> list[str]:
        if not self._has(name, step):
            return []
        return sorted(f"worker_{n}" for n in self._luff.tensor(name).workers(step))

    def _saved_shape(self, name: str, step: int, worker: str) -> tuple[int, ...] | None:
        try:
            return self._luff.tensor(name).shape(step, worker=_number(worker))
        except OutOfRangeError:
            return None

    def _saved_reductions(self, name: str, step: int, worker: str) -> list[tuple[str, bool]]:
        try:
            self._luff.tensor(name).summary(step, worker=_number(worker))
        except OutOfRangeError:
            return []
        return list(_OF_A_SUMMARY)

    def _read_reduction(self, name: str, step: int, worker: str, key: tuple[str, bool]) -> Any:
        return self._luff.tensor(name).reduction(step, key[0], abs=key[1], worker=_number(worker))

    def _one_worker(self, name: str, step: int, worker: str | None) -> str:
        workers = self._tensor_workers(name, step)
        if worker is not None:
            if worker not in workers:
                raise InvalidWorker(worker, workers)
            return worker
        if not workers:
            raise TensorUnavailableForStep(name, step)
        if len(workers) > 1:
            for one in workers:
                if step in self._value_steps(name, ModeKeys.GLOBAL, one):
                    return one
        return workers[0]

    def _read(self, name: str, step: int, worker: str) -> Any:
        """Returns the value, as an array of its own in a type of NumPy.

        All values of a tensor have the same dtype, and those of the same tensor of the program the same shape: numbers
        look like the values that were kept as arrays, and values that were kept as bfloat16 like the others.
        """
        try:
            value = self._luff.tensor(name).value(step, worker=_number(worker))
        except OutOfRangeError:
            number = self._numbers(name, worker).get(step)
            if number is None:
                return None
            shape, dtype = self._look_up(("like", name), lambda: self._like(name))
            return np.full(shape, number, dtype)
        except LuffError as error:
            raise SMDebugRuntimeError(str(error)) from error
        if isinstance(value, str):
            return np.array([value])
        if _is_numpys(value.dtype):
            return np.array(value)
        return value.astype(np.float32).astype(self._look_up(("dtype", name), lambda: self._dtype(name)))

    def _numbers(self, name: str, worker: str) -> dict[int, float]:
        def find() -> dict[int, float]:
            found = self._luff.scalars(name, worker=_number(worker))
            return dict(zip(found["step"].tolist(), found["value"].tolist(), strict=True))

        numbers: dict[int, float] = self._look_up(("numbers", name, worker), find)
        return numbers

    def _like(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Returns shape and dtype of a tensor's numbers."""
        tensor = self._luff.tensor(name)
        for step in tensor.value_steps()[:1]:
            shape = tensor.shape(step)
            if math.prod(shape) == 1:
                return shape, self._dtype(name)
        return (() if tensor.role == "loss" and self._is_torchs else (1,)), np.dtype(np.float64)

    def _dtype(self, name: str) -> np.dtype[Any]:
        """Returns the dtype of the first value that is kept in a type of NumPy; float32 if there is none."""
        tensor = self._luff.tensor(name)
        for step in tensor.value_steps():
            try:
                found = np.dtype(tensor.dtype(step))
            except TypeError:
                continue
            if _is_numpys(found):
                return found
        return np.dtype(np.float32)
