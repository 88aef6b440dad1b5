"""The tensors and steps that a rule needs."""

from __future__ import annotations

from typing import Any

from luff.compat.smdebug.core.modes import ModeKeys

__all__ = ["RequiredTensors"]


class RequiredTensors:
    """Tensors and steps, of one trial or several."""

    def __init__(self, base_trial: Any, other_trials: Any = None) -> None:
        self.base_trial = base_trial
        self.other_trials = list(other_trials or ())
        self._wanted: dict[Any, dict[str, list[int]]] = {}
        self.clear()

    def clear(self) -> None:
        """Removes all requirements."""
        self._wanted = {trial: {} for trial in (self.base_trial, *self.other_trials)}

    def _trial(self, trial: Any) -> Any:
        return self.base_trial if trial is None else trial

    def add(self, name: str, steps: list[int], trial: Any = None, should_match_regex: bool = False) -> None:
        """Requires a tensor, or all tensors whose name matches, at some steps."""
        trial = self._trial(trial)
        # `tensor` raises TensorUnavailable.
        names = trial.tensor_names(regex=name) if should_match_regex else [trial.tensor(name).name]
        for each in names:
            known = self._wanted.setdefault(trial, {}).setdefault(each, [])
            known += [step for step in steps if step not in known]

    def get_names(self, trial: Any = None) -> list[str]:
        """Returns the names of the required tensors."""
        return list(self._wanted.get(self._trial(trial), {}))

    def get(self, trial: Any = None) -> list[Any]:
        """Returns the required tensors."""
        trial = self._trial(trial)
        return [trial.tensor(name) for name in self.get_names(trial)]

    def get_tensor_steps(self, name: str, trial: Any = None) -> list[int]:
        """Returns the steps at which a tensor is required."""
        return list(self._wanted.get(self._trial(trial), {}).get(name, ()))

    def fetch(self) -> None:
        """Waits for the steps and reads the values, so that a missing one shows at once."""
        for trial, names in self._wanted.items():
            trial.wait_for_steps(
                sorted({step for steps in names.values() for step in steps}), ModeKeys.GLOBAL
            )
            for name, steps in names.items():
                tensor = trial.tensor(name)
                for step in steps:
                    tensor.value(step)
