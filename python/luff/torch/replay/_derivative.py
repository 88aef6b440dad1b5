"""Finds, in a replay, the operation whose derivative is not finite, and its line.

The statements of the step are evaluated in their order under anomaly detection, which keeps the line of each operation;
each backward pass that they begin is gone through node by node. Never used in the training process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from luff.torch.capture._graphs import nodes_behind
from luff.torch.capture._memory import array_of
from luff.torch.replay._domains import operator_of, reason_of, saved_by
from luff.torch.replay._replay import of_user
from luff.torch.replay._statements import assign, evaluate, in_order, names_in, targets_of, value_of
from luff.torch.replay._told import line_of, made_by, state_of, tensors_of

__all__ = ["derivative"]

_STATEMENTS = 32  # in one function
_NODES = 8192


class _Begun:
    """What the backward passes that statements begin have shown. They are gone through, and not run."""

    def __init__(self) -> None:
        self.found: dict[str, Any] | None = None

    def backward(self, tensors: Any, *_: Any, **__: Any) -> None:
        for root in tensors_of([tensors]):
            if self.found is None and root.numel() == 1:
                self.found = of_root(root)

    @contextmanager
    def watched(self) -> Iterator[None]:
        before = torch.autograd.backward
        torch.autograd.backward = self.backward
        try:
            yield
        finally:
            torch.autograd.backward = before


def derivative(frame: Any, statements: list[tuple[Any, list[Any]]]) -> dict[str, Any] | None:
    """Returns what the statements of one function show, the last of which comes first; None for nothing.

    Where they begin no backward pass, their losses are gone through: numbers that have a graph.
    """
    scope = {**frame.f_globals, **frame.f_locals}
    filename = frame.f_code.co_filename
    begun = _Begun()
    made: set[str] = set()  # names that have a new value
    losses: list[Any] = []
    with begun.watched(), torch.autograd.set_detect_anomaly(True, check_nan=False):
        for node, withs in in_order(statements, _STATEMENTS):
            result = None
            try:
                result = evaluate(value_of(node, made), withs, filename, scope)
                if targets := targets_of(node):
                    assign(targets, result, filename, scope)
                    made.update(*map(names_in, targets))
            except Exception:  # a name has another value by now
                result = None
            if begun.found is not None:
                return begun.found
            losses += [one for one in tensors_of(result) if one.numel() == 1 and one.grad_fn is not None]
    for loss in reversed(losses):
        found = of_root(loss)
        if found is not None:
            return found
    return None


def of_root(loss: Any) -> dict[str, Any] | None:
    """Returns the first operation of a backward pass whose derivative is not finite; None if there is none."""
    if loss.grad_fn is None:
        return None
    nodes = list(nodes_behind([loss.grad_fn], _NODES))
    leaves = [node.variable for node in nodes if getattr(node, "variable", None) is not None]
    first: list[Any] = []

    def look(node: Any) -> Any:
        def hook(given: Any, received: Any) -> None:
            # given: gradients of the node's inputs; received: of its outputs
            if first or any(state_of(tensor) for tensor in tensors_of(list(received))):
                return
            for tensor in tensors_of(list(given)):
                if state_of(tensor):
                    first.append((node, tensor, tensors_of(list(received))))
                    return

        return hook

    saved = {node: saved_by(node) for node in nodes}
    hooks = [node.register_hook(look(node)) for node in nodes if getattr(node, "variable", None) is None]
    try:
        torch.autograd.grad(loss, leaves, allow_unused=True, retain_graph=True)
    except RuntimeError:  # a part of the graph is of before, and used up
        pass
    finally:
        for one in hooks:
            one.remove()
    if not first:
        return None
    node, gradient, received = first[0]
    op = operator_of(node)

    def get(name: str) -> Any:
        if name == "received":
            return array_of(received[0]) if len(received) == 1 else None
        value = saved[node].get(name)
        return array_of(value) if isinstance(value, torch.Tensor) else value

    reason, count = reason_of(op, get, backward=True)
    if not reason:
        array = array_of(gradient)
        overflows = array is not None and not bool((array != array).any())
        reason = f"the gradient overflows in {op}" if overflows else f"the derivative of {op} is not finite"
    return {
        **made_by(op, "backward", reason, count, gradient),
        **_line_from(node.metadata.get("traceback_", [])),
    }


def _line_from(trace: list[str]) -> dict[str, Any]:
    """Returns the user's line from a stack trace that anomaly detection has stored with a node."""
    for entry in reversed(trace):
        head = entry.strip().splitlines()[0] if entry.strip() else ""
        parts = head.split('"')
        if len(parts) >= 3 and of_user(parts[1]) and "line " in parts[2]:
            number = parts[2].partition("line ")[2].partition(",")[0]
            function = parts[2].rpartition(" in ")[2].strip()
            if number.strip().isdigit():
                return line_of(parts[1], int(number), function)
    return {}
