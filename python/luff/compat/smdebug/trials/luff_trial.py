"""A run that Luff recorded, read with smdebug's API."""

from __future__ import annotations

import os
from typing import Any

from luff import trial as luff_trial
from luff.compat.smdebug.core.collection import Collection
from luff.compat.smdebug.core.modes import ModeKeys
from luff.compat.smdebug.exceptions import SMDebugRuntimeError
from luff.compat.smdebug.trials.trial import Trial
from luff.errors import LuffError, OutOfRangeError

__all__ = ["LuffTrial"]

# Reductions that a summary contains; the others are computed from the value.
_OF_A_SUMMARY = (
    ("min", False), ("max", False), ("mean", False), ("std", False), ("variance", False), ("sum", False),
    ("l1", False), ("l2", False), ("max", True), ("mean", True), ("std", True), ("variance", True), ("sum", True),
    ("l1", True), ("l2", True),
)  # fmt: skip


def _number(worker: str) -> int:
    return int(worker.rpartition("_")[2])


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
        self._by_tensor: dict[tuple[str, ModeKeys], tuple[int, set[int]]] = {}
        self.maybe_refresh()

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
        for coll in self._luff.collections():
            if coll not in self.collection_manager.collections:
                names = self._luff.tensors(collection=coll)
                self.collection_manager.add(Collection(coll, tensor_names=names))

    def _names(self) -> list[str]:
        names = self._luff.tensors()
        return names if self.range_steps is None else [name for name in names if self._in_range(name)]

    def _in_range(self, name: str) -> bool:
        return not self._steps_of(name, ModeKeys.GLOBAL).isdisjoint(self.workers_for_global_step)

    def _known(self, name: str) -> bool:
        return self._luff.has_tensor(name) and (self.range_steps is None or self._in_range(name))

    def _steps_of(self, name: str, mode: ModeKeys) -> set[int]:
        seen, found = self._by_tensor.get((name, mode), (-1, set()))
        if seen != self._seen:
            found = set(self._luff.tensor(name).steps(mode.name))
            self._by_tensor[name, mode] = (self._seen, found)
        return found

    def _has(self, name: str, step: int) -> bool:
        return step in self.workers_for_global_step and step in self._steps_of(name, ModeKeys.GLOBAL)

    def _tensor_steps(self, name: str, mode: ModeKeys) -> list[int]:
        shown = set(self._all_steps(mode))
        return sorted(self._steps_of(name, mode) & shown)

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

    def _read(self, name: str, step: int, worker: str) -> Any:
        tensor = self._luff.tensor(name)
        try:
            return tensor.value(step, worker=_number(worker))
        except OutOfRangeError:
            pass
        except LuffError as error:
            raise SMDebugRuntimeError(str(error)) from error
        found = self._luff.scalars(name, worker=_number(worker))
        at = found["value"][found["step"] == step]
        return at[-1:] if at.size else None
