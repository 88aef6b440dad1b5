"""Forward passes of a model whose graph is gone before any backward pass has used it: all but the last of each step.

A mark that is hooked to the nodes that made a model's results lives as long as they do, and is called when a backward
pass goes through them. Looked at in the first steps, until one of them uses all of its passes.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from luff.torch.capture._graphs import nodes_behind, nodes_of
from luff.torch.evidence._events import WaitingEvents
from luff.torch.evidence._step import Step

__all__ = ["UnusedPasses"]

_LEAST = 4  # passes of a model in a step of which it is looked at whether they are used
_MOST_STEPS = 16  # that are looked at
_MOST_PASSES = 1 << 14  # of a model in a step
_MOST_MODELS = 8  # in a step
_BEHIND = 1 << 14  # nodes behind a root that are looked at
_LEAF = "torch::autograd::AccumulateGrad"


class _Mark:
    """Hooked to a node, which holds it."""

    __slots__ = ("__weakref__", "_pass")

    def __init__(self, of: _Pass) -> None:
        self._pass = of

    def __call__(self, _gradients: Any) -> None:
        self._pass.used = True


class _Pass:
    """A forward pass."""

    def __init__(self, tensors: Iterable[Any]) -> None:
        self.used = False
        self.rows = [tensor.shape[0] if tensor.dim() else 1 for tensor in tensors]
        self.marks: list[weakref.ref[_Mark]] = []
        self.newest = -1  # sequence number of the node that was made last
        for node in nodes_of(tensors):
            mark = _Mark(self)
            node.register_prehook(mark)
            self.marks.append(weakref.ref(mark))
            self.newest = max(self.newest, node._sequence_nr())

    def is_gone(self) -> bool:
        """Returns whether its graph is gone, and no backward pass has used it."""
        return not self.used and all(mark() is None for mark in self.marks)


class UnusedPasses(WaitingEvents):
    """Under the hook's lock and guard, but for the marks, which autograd calls.

    Attributes
    ----------
    on
        Whether all steps so far, but the first, have used the last pass only.
    """

    def __init__(self) -> None:
        super().__init__()
        self.on = True
        self._step: weakref.ref[Step] | None = None  # that the following belong to
        self._models: dict[int, tuple[Any, list[_Pass]]] = {}
        self._found: tuple[Any, list[_Pass]] | None = None  # a model of which only the last pass may be used
        self._looked = 0  # steps

    def model_returned(self, step: Step, module: Any, tensors: list[Any]) -> None:
        """Called with the tensors that the outermost call of a model has returned in training."""
        if self._step is None or self._step() is not step:
            self._step, self._models, self._found = weakref.ref(step), {}, None
        if step.decided:
            return  # a pass after the backward pass, as of a step that the user counts
        if id(module) not in self._models and len(self._models) >= _MOST_MODELS:
            return
        made = [tensor for tensor in tensors if tensor.grad_fn is not None]
        if not made:
            return
        reference, passes = self._models.setdefault(id(module), (weakref.ref(module), []))
        if reference() is not module or len(passes) >= _MOST_PASSES:
            self._close()
            return
        try:
            passes.append(_Pass(made))
        except (RuntimeError, AttributeError):  # PyTorch before 2.1, or a node that cannot be hooked to
            self._close()

    def backward_begins(self, step: Step | None, roots: list[Any]) -> None:
        """Called when a backward pass begins; its graph still exists."""
        if step is None or self._step is None or self._step() is not step or not self._models:
            return
        models, self._models = self._models, {}
        several = [(model, passes) for model, passes in models.values() if len(passes) >= _LEAST]
        if len(several) == 1 and _only_the_last_is_left(several[0][1], roots):
            self._found = several[0]

    def step_ended(self, step: Step, names: Any) -> None:
        """Called at the end of a TRAIN step with samples."""
        if self._step is None:
            return  # the first, whose passes came before the session
        found, self._found = self._found, None
        self._models = {}
        model = found[0]() if found is not None else None
        self._looked += 1
        if found is None or model is None or self._step() is not step:
            self._close()
            return
        passes, named = found[1], names.find(model)
        if not passes[-1].used or any(one.used for one in passes[:-1]):
            self._close()
            return
        name = "" if named is None else named[0]
        self.waiting.append({"kind": "unused_passes", "model": name, "made": len(passes), "used": 1})
        if self._looked >= _MOST_STEPS:
            self._close()

    def _close(self) -> None:
        self.on, self._models, self._found, self._step = False, {}, None, None


def _only_the_last_is_left(passes: list[_Pass], roots: list[Any]) -> bool:
    """Returns whether the graphs of all passes but the last are gone, of batches of the same size, and nothing that
    was made before the last pass goes into the roots: a state that a model keeps, say.
    """
    *earlier, last = passes
    if not all(one.is_gone() for one in earlier) or last.is_gone():
        return False
    if any(one.rows != earlier[0].rows for one in earlier) or len(last.rows) != len(earlier[0].rows):
        return False
    if any(now > before for now, before in zip(last.rows, earlier[0].rows, strict=True)):
        return False
    before, count = earlier[-1].newest, 0
    for node in nodes_behind(nodes_of(roots), _BEHIND):
        count += 1
        if node.name() != _LEAF and node._sequence_nr() <= before:
            return False
    return count < _BEHIND
