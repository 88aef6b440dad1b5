"""Evidence that rules read in addition to values: samples, kept gradients, parameters
that a backward pass reached.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from luff._codes import EventKind, Form, GapReason, Role
from luff._rows import MAX_CALLS, MAX_TENSORS, rows_that_fit
from luff.mxnet._arrays import bytes_of
from luff.mxnet._model import torch_name

if TYPE_CHECKING:
    from luff.mxnet._hook import Hook
    from luff.mxnet._optimizer import Optimizer

__all__ = ["Evidence"]

_SAMPLE = int(Role.SAMPLE)
_KEPT = int(EventKind.GRADIENT_KEPT)
_WATCHED = 8  # gradients watched per trainer
_ALWAYS, _EVERY = 64, 16  # the first 64 updates are checked, and then every 16th
_MAX_NAMES = 64
_MAX_TOLD = 32  # most events `reach`


class _Kept:
    """Gradients of one trainer that a later backward pass may find unchanged since the last update."""

    def __init__(self) -> None:
        self.updates = 0
        self.before: list[tuple[Any, int]] = []  # gradients, and their hashes when the last update used them
        self.found = 0  # how many of them a backward pass has found unchanged
        self.asked = False


class Evidence:
    """Collects evidence under the lock and guard of its hook."""

    def __init__(self) -> None:
        self._models: dict[int, int] = {}  # id of a model -> number of its tensors sampled in this step
        self._losses: dict[str, int] = {}  # name of a loss -> number of its calls in this step
        self._kept: dict[int, _Kept] = {}
        self._told = 0
        self._next = 0
        self._parameters = -1
        self.samples = False  # whether samples are due in this step

    def begin(self, hook: Hook) -> None:
        """Called when a step begins."""
        session = hook.session
        self.samples = session is not None and bool(session.due_role(_SAMPLE))
        self._models.clear()
        self._losses.clear()

    # Samples ---------------------------------------------------------------------------------------------------

    def model(self, hook: Hook, block: Any, values: list[Any]) -> None:
        """Records samples of a model's inputs."""
        if not self.samples:
            return
        used = self._models.get(id(block), 0)
        for value in values[: MAX_TENSORS - used]:
            name = f"sample/{block.name}_input_{used}"
            self._take(
                hook, name, "", type(block).__name__, value, rows_that_fit(value.shape, bytes_of(value))
            )
            used += 1
        self._models[id(block)] = used

    def loss(self, hook: Hook, block: Any, values: list[Any]) -> None:
        """Records samples of a loss's inputs."""
        call = self._losses.get(block.name, 0)
        self._losses[block.name] = call + 1
        if not self.samples or call >= MAX_CALLS:
            return
        values = values[:2]
        rows = [rows_that_fit(value.shape, bytes_of(value)) for value in values]
        if len(values) == 2 and values[0].shape[:1] == values[1].shape[:1]:
            rows = [min(rows)] * 2
        for index, value in enumerate(values):
            name = f"sample/{block.name}_input_{2 * call + index}"
            self._take(hook, name, "", torch_name(block), value, rows[index])

    def _take(self, hook: Hook, name: str, path: str, kind: str, value: Any, rows: int) -> None:
        session, reader = hook.session, hook.reader
        number = hook.steps.number(name, _SAMPLE, path, kind)
        if session is None or reader is None or not session.due_tensor(number):
            return
        if rows == 0:
            session.gap(number, int(GapReason.TOO_MANY), int(Form.RAW), 1)
        else:
            reader.rows(number, value, rows)

    # Kept gradients --------------------------------------------------------------------------------------------

    def backward_begins(self, hook: Hook) -> None:
        """Checks, when a backward pass begins, whether it adds to gradients that an update has already used."""
        reader = hook.reader
        for kept in self._kept.values():
            before, kept.before = kept.before, []
            if reader is not None:
                kept.found += sum(reader.hash(gradient) == content for gradient, content in before)

    def update_begins(self, hook: Hook, optimizer: Optimizer, parameters: list[Any]) -> None:
        """Notes the gradients that an update is about to use."""
        session, reader = hook.session, hook.reader
        adding = [p for p in parameters if p.grad_req == "add" and p._grad is not None]
        if not adding or session is None or reader is None:
            return
        kept = self._kept.setdefault(optimizer.number, _Kept())
        if kept.asked:
            session.event(_KEPT, optimizer.number, kept.found)
        kept.updates += 1
        kept.found, kept.before = 0, []
        kept.asked = kept.updates < _ALWAYS or not (kept.updates + 1) % _EVERY
        if kept.asked:
            for parameter in sorted(adding, key=lambda p: p._grad[0].size)[:_WATCHED]:
                gradient = parameter._grad[0]
                content = reader.hash(gradient)
                if content is not None and reader.is_nonzero():
                    kept.before.append((gradient, content))

    # Reached parameters ----------------------------------------------------------------------------------------

    def reach(self, hook: Hook, step: int, parameters: list[Any]) -> None:
        """Before some updates, records which parameters no backward pass has reached since the last one."""
        session = hook.session
        if len(parameters) != self._parameters:
            self._parameters, self._next = len(parameters), step
        if session is None or step < self._next or self._told >= _MAX_TOLD:
            return
        self._next, self._told = max(2 * step, step + 1), self._told + 1
        learning = [p for p in parameters if p.grad_req != "null" and p._data is not None]
        without = [p.name for p in learning if not p._data[0]._fresh_grad]
        session.event_json(
            json.dumps(
                {
                    "kind": "reach",
                    "without_gradient": without[:_MAX_NAMES],
                    "without_gradient_count": len(without),
                    "foreign": [],
                    "reached_count": len(learning) - len(without),
                }
            )
        )
