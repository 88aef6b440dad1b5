"""Records weights of attention, if a collection asks for them, from what the graph of a step has saved.

A softmax has saved them. A fused kernel never had them in memory, but has saved query and key: the weights are worked
out from these in NumPy, beside the training, of as many samples as a bound allows. Nothing is computed with torch, no
function is replaced, and no random number is drawn: the weights are those before dropout.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from luff import _codes as codes
from luff._codes import DType, GapReason, Role
from luff._hook import Session
from luff.torch.capture._device import DeviceRows, is_on_device
from luff.torch.capture._graphs import nodes_behind, nodes_of
from luff.torch.capture._memory import address_of, is_readable
from luff.torch.evidence._fused import Fused
from luff.torch.evidence._graph_values import multiplies_values, users_of
from luff.torch.evidence._step import Step, StepContext

__all__ = ["Attention"]

_ATTENTION, _FLOAT32 = int(Role.ATTENTION), int(DType.FLOAT32)
_NOT_SEEN, _FUSED = int(GapReason.NOT_SEEN), int(GapReason.FUSED_ATTENTION)
_TOO_MANY, _UNSUPPORTED = int(GapReason.TOO_MANY), int(GapReason.UNSUPPORTED)
_MAX_NODES = 8192
_MAX_MAPS = 64  # of one step
_PRODUCTS = 1 << 26  # multiplications of one step, about 0.1 s
_VALUES = 1 << 24  # of one map that is worked out


class Attention:
    """Weights of attention in the steps of one hook, under its lock and guard."""

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self._known: set[int] = set()  # sequence numbers of the nodes of the step that were looked at
        self._counts: dict[str, int] = {}  # name of a module -> its maps in the step
        self._left = _PRODUCTS

    def backward_begins(self, roots: list[Any]) -> None:
        """Called when a backward pass begins; its graph still exists."""
        context = self._context
        session = context.session
        if session is None or not session.due_role(_ATTENTION):
            return
        step = context.step
        if context.modules is None or step is None or not step.begun or context.saved_hooks:
            return
        nodes = list(nodes_behind(nodes_of(roots), _MAX_NODES))
        users = users_of(nodes)
        found = []
        for node in nodes:
            name = node.name()
            fused = name.startswith("ScaledDotProduct")
            if fused or (name.startswith(("Softmax", "SafeSoftmax")) and multiplies_values(node, users)):
                found.append((node._sequence_nr(), fused, node))
        for place, fused, node in sorted(found, key=lambda one: one[0]):
            if place in self._known:
                continue
            if len(self._known) >= _MAX_MAPS:
                session.gap(codes.NO_ID, _TOO_MANY, session.due_role(_ATTENTION), 1)
                break
            self._known.add(place)
            number = self._number(place)
            try:
                recorded = self._fused(session, number, node) if fused else self._saved(session, number, node)
            except (RuntimeError, AttributeError):  # changed in place since, or saved under another name
                recorded = False
            if not recorded:
                session.gap(number, _FUSED if fused else _UNSUPPORTED, session.due_tensor(number), 1)

    def record(self, session: Session, step: Step) -> None:
        """Called at the end of a step: if the weights were due and none was seen, that is a gap."""
        forms = session.due_role(_ATTENTION)
        if not forms:
            return
        if not self._known and step.forwards:
            recorder = self._context.recorder
            number = codes.NO_ID if recorder is None else recorder.number("attention", _ATTENTION)
            session.gap(number, _NOT_SEEN, forms, 1)
        self._known.clear()
        self._counts.clear()
        self._left = _PRODUCTS

    # Inside ----------------------------------------------------------------------------------------------------

    def _number(self, place: int) -> int:
        """Returns the number of the tensor for the node with a sequence number."""
        context = self._context
        module, kind = ("", "") if context.modules is None else context.modules.module_at(place)
        index = self._counts.get(module, 0)
        self._counts[module] = index + 1
        name = f"attention/{module}_{index}" if module else f"attention/{index}"
        return -1 if context.recorder is None else context.recorder.number(name, _ATTENTION, module, kind)

    def _saved(self, session: Session, number: int, node: Any) -> bool:
        """Captures the result that a softmax has saved."""
        weights, recorder = node._saved_result, self._context.recorder
        if not session.due_tensor(number):
            return True
        there = is_on_device(weights)
        if recorder is None or not (there or is_readable(weights)):
            return False
        layout, address = recorder.layouts.find(weights), address_of(weights)
        if layout < 0 or not address:
            return False
        if there:
            DeviceRows(session).one(number, layout, weights)
        else:
            session.capture_one(number, layout, address)
        return True

    def _fused(self, session: Session, number: int, node: Any) -> bool:
        """Captures the weights of a fused kernel, of as many samples as the bounds allow."""
        if not session.due_tensor(number):
            return True
        fused = Fused.of(node)
        if fused is None:
            return False
        samples, heads, queries, keys = fused.shape
        rows = min(samples, self._left // fused.products, _VALUES // (heads * queries * keys))
        if not rows:
            return False
        self._left -= rows * fused.products
        weights = np.empty((rows, heads, queries, keys), np.float32)
        for sample in range(rows):
            for head in range(heads):
                weights[sample, head] = fused.weights(sample, head, range(queries))
        shape = list(weights.shape)
        if rows == samples:
            layout = session.define_layout(_FLOAT32, shape)
        else:
            strides = [heads * queries * keys, queries * keys, keys, 1]
            layout = session.define_shard_layout(_FLOAT32, shape, strides, list(fused.shape), [0, 0, 0, 0])
        session.capture_one(number, layout, int(weights.__array_interface__["data"][0]))
        return True
