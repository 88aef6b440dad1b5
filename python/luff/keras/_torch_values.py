"""Records values of trainings on PyTorch: everything is computed eagerly, and read where it is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import torch

from luff._codes import Role
from luff.keras._optimizers import Known, state_of
from luff.keras._table import Spec, Table
from luff.keras._values import Values

if TYPE_CHECKING:
    from luff.keras._hook import Callback

__all__ = ["TorchValues"]

_WEIGHTS = (int(Role.WEIGHT), int(Role.BIAS), int(Role.BUFFER))


def _array(value: Any) -> Any:
    value = getattr(value, "value", value)
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    value = value.detach().cpu()
    if value.dtype is torch.bfloat16:
        return value.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return value.numpy()


def _updates(optimizer: Any) -> int:
    count = int(optimizer._iterations.value)
    return count // int(optimizer.gradient_accumulation_steps or 1)


class TorchValues(Values):
    """Records the values of one hook."""

    def __init__(self, hook: Callback) -> None:
        super().__init__(hook)
        self._rows: dict[tuple[int, int], Table] = {}
        self._seen: tuple[Any, int] | None = (
            None  # optimizer that a compiled step updates by, and its updates before the step
        )

    def put(self, spec: Spec, value: Any, owner: Any = None, scalar: bool = False) -> None:  # noqa: ARG002
        """Captures the value."""
        if scalar:
            self.scalar(spec, _array(value))
        elif self.session.due_tensor(self.arrays.number(spec.name, spec.role, spec.path, spec.kind)):
            self.capture(spec, _array(value))

    def array(self, value: Any) -> Any:
        """Converts a tensor to an array."""
        return _array(value)

    def before(self, model: Any, mode: int) -> None:
        """Captures the weights that the step uses."""
        super().before(model, mode)
        optimizer = getattr(model, "optimizer", None) if model.jit_compile else None
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        self._seen = None if optimizer is None else (optimizer, _updates(optimizer))
        if any(self.session.due_role(role) for role in _WEIGHTS) and model.built:
            self.hook.learn(model)
            owners = []
            for variable in model.variables:
                name = self.hook.names.of(variable)
                owners.append((variable, Spec(name.name, name.role, name.path, name.kind)))
            self._together(model, owners)

    def left(self) -> Iterable[tuple[Any, int, int]]:
        """Returns the updates of a compiled step, of which nothing else is seen."""
        if self._seen is not None and self.compiled:
            optimizer, before = self._seen
            done = _updates(optimizer) - before
            yield optimizer, done, done

    def state(self, known: Known, optimizer: Any) -> None:
        """Captures the state that an optimizer keeps for its variables."""
        self._together(optimizer, state_of(known, optimizer))

    def _together(self, owner: Any, pairs: list[tuple[Any, Spec]]) -> None:
        key = (id(owner), len(pairs))
        table = self._rows.get(key)
        if table is None:
            table = self._rows[key] = Table(self.arrays, [spec for _, spec in pairs])
        table.capture([_array(variable.value) for variable, _ in pairs])
