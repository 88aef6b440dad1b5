"""Finds, in a replay, which statement of the step made the value, which operation in it, and on which line.

Statements are the assignments before the call of `backward` in the user's own functions, and what that call is given.
Each is evaluated again with the current values of its names, beginning with the one that made the loss. Of gradients
that are not finite `_derivative` looks for the operation. Never used in the training process.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from luff.torch.capture._memory import array_of
from luff.torch.replay._derivative import derivative
from luff.torch.replay._domains import reason_of
from luff.torch.replay._draws import Draws
from luff.torch.replay._statements import (
    assign,
    block,
    calls_next,
    evaluate,
    given_to_backward,
    in_order,
    names_in,
    parsed,
    targets_of,
    value_of,
)
from luff.torch.replay._told import made_by, place, state_of, tensors_of

__all__ = ["search"]

_STATEMENTS = 24  # in one function
_GARBAGE = ("empty", "new_empty", "resize", "_reshape_alias")
_ON_PURPOSE = (
    "masked_fill",
    "full",
    "fill",
    "new_full",
    "full_like",
    "scalar_tensor",
    "where",
    "lift_fresh",
    "tril",
    "triu",
    "zeros",
)
_ARGUMENTS = {"self": 0, "other": 1, "exponent": 1}  # positions of named arguments


def _key(tensor: Any) -> Any:
    try:
        return tensor.untyped_storage()._cdata
    except (RuntimeError, NotImplementedError):
        return id(tensor)


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation; remembers the first one that makes NaN, and which one made the infinities."""

    def __init__(self, names: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = names
        self._infinite: dict[Any, dict[str, Any] | None] = {}
        self.modules: list[Any] = []
        self.found: dict[str, Any] | None = None  # the operation that made NaN
        self.infinite: dict[str, Any] | None = None  # the last operation that made infinities unintentionally
        self.outside: dict[str, Any] | None = None  # NaN that came from outside of the statement
        self.computed = False  # and has a graph: other statements of the step have made it

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self._inputs(args, kwargs)
        result = func(*args, **(kwargs or {}))
        if self.found is None and self.outside is None:
            self._look(func, args, result, before)
        return result

    def _inputs(self, args: Any, kwargs: Any) -> list[tuple[Any, int]]:
        if self.found is not None or self.outside is not None:
            return []
        tensors = [*tensors_of(args), *tensors_of(list((kwargs or {}).values()))]
        return [(tensor, state_of(tensor)) for tensor in tensors]

    def _look(self, func: Any, args: Any, result: Any, before: list[tuple[Any, int]]) -> None:
        op = func.overloadpacket.__name__
        outputs = tensors_of(result)
        states = [state_of(tensor) for tensor in outputs]
        worst = max(states, default=0)
        if not worst or op.rstrip("_").startswith(_GARBAGE):
            return
        if any(state == 2 for _, state in before) and not op.endswith("_"):
            self._came_in(op, next(tensor for tensor, state in before if state == 2), "holds NaN")
            return
        sources = [self._infinite[_key(t)] for t, state in before if state and _key(t) in self._infinite]
        known = next((source for source in sources if source is not None), None)
        strange = [t for t, state in before if state == 1 and _key(t) not in self._infinite]
        if worst == 2 and known is None and strange and "softmax" not in op:
            self._came_in(op, strange[0], "is infinite")
            return
        if worst == 2:
            here = self._here(op, args, outputs[states.index(2)], result)
            self.found = known if known is not None and op not in ("_softmax", "_log_softmax") else here
            return
        made: dict[str, Any] | None = known
        if known is None and not any(state for _, state in before):
            purposeful = op.rstrip("_").startswith(_ON_PURPOSE)
            made = None if purposeful else self._here(op, args, outputs[states.index(1)], result)
        for tensor, state in zip(outputs, states, strict=True):
            if state and len(self._infinite) < 65536:
                self._infinite[_key(tensor)] = made
        self.infinite = made or self.infinite

    def _here(self, op: str, args: Any, output: Any, result: Any) -> dict[str, Any]:
        def get(name: str) -> Any:
            if name == "result":
                return array_of(output)
            if name == "total_weight":
                tensors = tensors_of(result)
                return array_of(tensors[1]) if len(tensors) > 1 else None
            index = _ARGUMENTS.get(name)
            if name in ("dim", "correction"):
                return args[1] if name == "dim" and len(args) > 1 and not isinstance(args[1], bool) else None
            value = args[index] if index is not None and index < len(args) else None
            return array_of(value) if isinstance(value, torch.Tensor) else value

        reason, count = reason_of(op, get)
        if not reason:
            array = array_of(output)
            overflow = array is not None and not (array != array).any()
            reason = (
                "overflow"
                if overflow
                else f"the result of {op.strip('_')} is not finite though its arguments are"
            )
        phase = "forward" if self.modules else "loss"
        found = {**made_by(op.strip("_"), phase, reason, count, output), **place()}
        if self.modules:
            module = self.modules[-1]
            name = self._names.module(module)
            kind = type(module).__name__
            found["module"] = f"{name[0]} ({kind})" if name and name[0] else kind
            if not any(True for _ in self.modules[0].parameters()):
                found["phase"] = "loss"
        return found

    def _came_in(self, op: str, tensor: Any, held: str) -> None:
        """Notes a value that is not finite and was not made in the statement."""
        name = self._names.parameter(tensor)
        array = array_of(tensor)
        count = (
            0 if array is None else int((array != array).sum()) or int(array.size - np.isfinite(array).sum())
        )
        shape = "x".join(str(n) for n in tensor.shape) or "one number"
        told = (
            {"phase": "input", "reason": f"an input of {op.strip('_')} {held} (shape {shape})"}
            if name is None
            else {"phase": "weights", "tensor": name, "reason": f"{name} {held}"}
        )
        self.outside = {**told, "count": count, "elements": int(tensor.numel()), **place()}
        self.computed = bool(tensor.requires_grad) and name is None


# Statements --------------------------------------------------------------------------------------------------------


def search(frames: list[Any], root: Any, backward: bool, names: Any, draws: Draws) -> dict[str, Any] | None:
    """Returns what a replay finds, or None.

    Parameters
    ----------
    frames
        The user's frames, innermost first.
    root
        The non-finite loss, or None.
    backward
        Whether the loss is finite and its gradients are not.
    names
        Names of modules and parameters.
    draws
        States of the random numbers that the step has drawn from.
    """
    outside: dict[str, Any] | None = None
    for frame in frames:
        try:
            tree = parsed(frame)
        except (SyntaxError, ValueError):
            continue
        if tree is None:
            continue
        statements, current = block(tree, frame.f_lineno)
        if backward:
            with draws.again():
                found = derivative(frame, statements)
        else:
            with draws.again():
                found, seen = _forward(frame, statements, current, root, names)
            with draws.again():
                found = found or _in_order(frame, statements, names)
            outside = seen or outside
        if found:
            return found
    return outside


def _traced(
    value: Any, withs: list[Any], filename: str, scope: dict[str, Any], names: Any
) -> tuple[Any, Tracer]:
    tracer = Tracer(names)
    enter = torch.nn.modules.module.register_module_forward_pre_hook(
        lambda module, _: tracer.modules.append(module)
    )
    leave = torch.nn.modules.module.register_module_forward_hook(
        lambda *_: tracer.modules.pop() and None, always_call=True
    )
    result = None
    try:
        with tracer:
            result = evaluate(value, withs, filename, scope)
    finally:
        enter.remove()
        leave.remove()
    return result, tracer


def _forward(
    frame: Any, statements: list[Any], current: Any, root: Any, names: Any
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    local = dict(frame.f_locals)
    wanted = {name for name, value in local.items() if value is root}
    given: list[Any] = []
    if not wanted and current is not None:
        wanted, given = names_in(current), given_to_backward(current)
    filename = frame.f_code.co_filename
    outside = None
    done = 0
    for target, value, withs in [*((None, one, []) for one in given), *_assigned(statements)]:
        if target is not None and (not target & wanted or calls_next(value)):
            continue
        done += 1
        if done > _STATEMENTS:
            break
        wanted |= names_in(value)
        try:
            result, tracer = _traced(value, withs, filename, {**frame.f_globals, **local}, names)
        except Exception:
            continue  # a name has another value by now
        if tracer.found is not None:
            # The culprit is what made the data, not what used them; a model makes no data.
            if outside is not None and tracer.found["phase"] != "forward":
                tracer.found["phase"] = "input"
            return tracer.found, None
        if tracer.outside is not None:
            outside = None if tracer.computed else tracer.outside
        elif tracer.infinite is not None and any(state_of(tensor) for tensor in tensors_of(result)):
            return tracer.infinite, None
    return None, outside


def _in_order(frame: Any, statements: list[Any], names: Any) -> dict[str, Any] | None:
    """Evaluates the statements in the order in which they ran, for names that have been given other values since.

    Returns the first operation whose result is not finite; None if there is none.
    """
    scope = {**frame.f_globals, **frame.f_locals}
    filename = frame.f_code.co_filename
    made: set[str] = set()
    infinite: dict[str, Any] | None = None
    for node, withs in in_order(statements, _STATEMENTS):
        if not (targets := targets_of(node)):
            continue
        try:
            result, tracer = _traced(value_of(node, made), withs, filename, scope, names)
            assign(targets, result, filename, scope)
        except Exception:
            continue
        made.update(*map(names_in, targets))
        found = tracer.found
        if found is not None:
            if infinite is None and found["phase"] == "loss" and not _has_graph(result):
                found["phase"] = "input"
            return infinite or found
        if tracer.infinite is not None and any(state_of(tensor) for tensor in tensors_of(result)):
            infinite = infinite or tracer.infinite
    return infinite


def _has_graph(result: Any) -> bool:
    return any(tensor.requires_grad for tensor in tensors_of(result))


def _assigned(statements: list[Any]) -> list[tuple[set[str], Any, list[Any]]]:
    """Returns the names that each assignment writes, its value, and the `with` statements around it."""
    return [
        (set().union(*map(names_in, targets)), node.value, withs)
        for node, withs in statements
        if (targets := targets_of(node))
    ]
