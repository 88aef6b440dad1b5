"""Tensors of a trial."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import numpy as np

from luff.compat.smdebug.core.modes import ModeKeys
from luff.compat.smdebug.core.reductions import reduce_value
from luff.compat.smdebug.exceptions import (
    ShapeUnavailableForStep,
    SMDebugNotImplementedError,
    StepNotYetAvailable,
    StepUnavailable,
    TensorUnavailableForStep,
)

if TYPE_CHECKING:
    from luff.compat.smdebug.trials.trial import Trial

__all__ = ["StepState", "Tensor"]


class StepState(enum.Enum):
    """Whether a step can be read."""

    UNAVAILABLE = 0
    AVAILABLE = 1
    NOT_YET_AVAILABLE = 2


class Tensor:
    """One named tensor of a trial; made by `Trial.tensor`."""

    def __init__(self, name: str, trial: Trial, cache: bool = False) -> None:
        self.name = name
        self.trial = trial
        self.cache = cache
        self._kept: dict[tuple[int, str], Any] = {}

    def __repr__(self) -> str:
        return f"<Tensor {self.name!r} of {self.trial.path!r}>"

    @property
    def original_name(self) -> str | None:
        """Name in the graph, if one was saved with a shape."""
        return self.trial._original_name(self.name)

    def steps(self, mode: ModeKeys = ModeKeys.GLOBAL, show_incomplete_steps: bool = False) -> list[int]:
        """Returns the steps at which anything of it was saved, ascending."""
        self.trial.maybe_refresh(self.name)
        found = self.trial._tensor_steps(self.name, mode)
        if show_incomplete_steps:
            return found
        return [step for step in found if self.trial._is_complete(self.trial._global(mode, step))]

    def _need(self, step_num: int, mode: ModeKeys) -> int:
        """Returns the global step at which it was saved; raises an error that says why there is none."""
        found = self.trial._global(mode, step_num)
        if found is None or not self.trial._has(self.name, found):
            self.trial.maybe_refresh(self.name)
            found = self.trial._global(mode, step_num)
            if found is None or not self.trial._has(self.name, found):
                state = self.trial.has_passed_step(step_num, mode)
                if state is StepState.AVAILABLE:
                    raise TensorUnavailableForStep(self.name, step_num, mode)
                if state is StepState.UNAVAILABLE:
                    raise StepUnavailable(step_num, mode)
                raise StepNotYetAvailable(step_num, mode)
        return found

    def workers(self, step_num: int, mode: ModeKeys = ModeKeys.GLOBAL) -> list[str]:
        """Returns the workers that saved it at a step."""
        found = self.trial._global(mode, step_num)
        workers = self.trial._tensor_workers(self.name, found) if found is not None else []
        if not workers:
            raise TensorUnavailableForStep(self.name, step_num, mode)
        return workers

    def _at(self, step_num: int, mode: ModeKeys, worker: str | None) -> tuple[int, str]:
        found = self._need(step_num, mode)
        return found, self.trial._one_worker(self.name, found, worker)

    def _value(self, step: int, worker: str) -> Any:
        key = (step, worker)
        if key in self._kept:
            return self._kept[key]
        value = self.trial._read(self.name, step, worker)
        if self.cache and value is not None:
            self._kept[key] = value
        return value

    def value(self, step_num: int, mode: ModeKeys = ModeKeys.GLOBAL, worker: str | None = None) -> Any:
        """Returns the value at a step, of the first worker unless one is named."""
        step, which = self._at(step_num, mode, worker)
        value = self._value(step, which)
        if value is None:
            reductions = bool(self.trial._saved_reductions(self.name, step, which))
            raise TensorUnavailableForStep(self.name, step_num, mode, has_reductions=reductions)
        return value

    def values(self, mode: ModeKeys = ModeKeys.GLOBAL, worker: str | None = None) -> dict[int, Any]:
        """Returns the values by step."""
        return {step: self.value(step, mode, worker) for step in self.steps(mode)}

    def shape(
        self, step_num: int, mode: ModeKeys = ModeKeys.GLOBAL, worker: str | None = None
    ) -> tuple[int, ...]:
        """Returns the shape at a step."""
        step, which = self._at(step_num, mode, worker)
        shape = self.trial._saved_shape(self.name, step, which)
        if shape is not None:
            return shape
        value = self._value(step, which)
        if value is None:
            raise ShapeUnavailableForStep(self.name, step_num, mode)
        return tuple(np.shape(value))

    def reduction_values(
        self, step_num: int, mode: ModeKeys = ModeKeys.GLOBAL, worker: str | None = None
    ) -> dict[tuple[str, bool], Any]:
        """Returns the saved reductions: (name, whether it is of the magnitudes) -> value."""
        step, which = self._at(step_num, mode, worker)
        return {
            key: self.trial._read_reduction(self.name, step, which, key)
            for key in self.trial._saved_reductions(self.name, step, which)
        }

    def reduction_value(
        self,
        step_num: int,
        reduction_name: str,
        mode: ModeKeys = ModeKeys.GLOBAL,
        worker: str | None = None,
        abs: bool = False,  # noqa: A002  (the original's word)
    ) -> Any:
        """Returns one reduction: the saved one, or else one computed from the value."""
        step, which = self._at(step_num, mode, worker)
        key = (reduction_name, abs)
        if key in self.trial._saved_reductions(self.name, step, which):
            return self.trial._read_reduction(self.name, step, which, key)
        value = self._value(step, which)
        if value is None:
            reductions = bool(self.trial._saved_reductions(self.name, step, which))
            raise TensorUnavailableForStep(self.name, step_num, mode, has_reductions=reductions)
        return reduce_value(value, reduction_name, abs)

    def prev_steps(self, step: int, n: int | None = None, mode: ModeKeys = ModeKeys.GLOBAL) -> list[int]:
        """Returns the last `n` steps up to and including this one; None means all."""
        found = [s for s in self.steps(mode) if s <= step]
        return found[-n:] if n else found

    def step(self, *_: Any, **__: Any) -> Any:
        """Removed in smdebug 0.5; use `value`."""
        raise SMDebugNotImplementedError("tensor.step() is gone; use tensor.value(step, mode=...)")
