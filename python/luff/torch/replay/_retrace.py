"""Finds, in a replay, which statement of the step made the value, which operation in it, and on which line.

Statements are the assignments before the call of `backward` in the user's own functions. Each is evaluated again with
the current values of its names, beginning with the one that made the loss. Never used in the training process.
"""

from __future__ import annotations

import ast
import linecache
import os
import sys
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from luff.torch.capture._graphs import nodes_behind
from luff.torch.capture._memory import array_of
from luff.torch.replay._domains import is_bad, operator_of, reason_of, saved_by
from luff.torch.replay._replay import of_user

__all__ = ["search"]

_STATEMENTS = 24  # in one function
_RESULT = "__luff_value"
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


def _tensors(value: Any, depth: int = 0) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value]
    if depth < 4 and isinstance(value, tuple | list):
        return [tensor for item in value for tensor in _tensors(item, depth + 1)]
    return []


def _state(tensor: Any) -> int:
    """Returns 0: finite; 1: infinities; 2: NaN."""
    if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex) or not tensor.numel():
        return 0
    array = array_of(tensor)
    if array is not None:
        return 0 if not is_bad(array) else 2 if bool((array != array).any()) else 1
    if bool(torch.isfinite(tensor).all()):
        return 0
    return 2 if bool(torch.isnan(tensor).any()) else 1


def _key(tensor: Any) -> Any:
    try:
        return tensor.untyped_storage()._cdata
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def place() -> dict[str, Any]:
    """Returns the user's line that is running now."""
    frame: Any = sys._getframe(1)
    while frame is not None and not of_user(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return {}
    return line_of(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def line_of(filename: str, line: int, function: str = "") -> dict[str, Any]:
    """Returns file (relative to the working directory), line and text."""
    shown = os.path.relpath(filename) if filename.startswith(os.getcwd() + os.sep) else filename
    found: dict[str, Any] = {"file": shown[-200:], "line": line}
    text = linecache.getline(filename, line).strip()
    if text:
        found["code"] = text[:160]
    if function and not function.startswith("<"):
        found["function"] = function[:80]
    return found


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

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self._inputs(args, kwargs)
        result = func(*args, **(kwargs or {}))
        if self.found is None and self.outside is None:
            self._look(func, args, result, before)
        return result

    def _inputs(self, args: Any, kwargs: Any) -> list[tuple[Any, int]]:
        if self.found is not None or self.outside is not None:
            return []
        tensors = [*_tensors(args), *_tensors(list((kwargs or {}).values()))]
        return [(tensor, _state(tensor)) for tensor in tensors]

    def _look(self, func: Any, args: Any, result: Any, before: list[tuple[Any, int]]) -> None:
        op = func.overloadpacket.__name__
        outputs = _tensors(result)
        states = [_state(tensor) for tensor in outputs]
        worst = max(states, default=0)
        if not worst or op.rstrip("_").startswith(_GARBAGE):
            return
        if any(state == 2 for _, state in before) and not op.endswith("_"):
            tensor = next(tensor for tensor, state in before if state == 2)
            self.outside = self._outside(op, tensor)
            return
        sources = [self._infinite[_key(t)] for t, state in before if state and _key(t) in self._infinite]
        known = next((source for source in sources if source is not None), None)
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
                tensors = _tensors(result)
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
        found = {**_made_by(op.strip("_"), phase, reason, count, output), **place()}
        if self.modules:
            module = self.modules[-1]
            name = self._names.module(module)
            kind = type(module).__name__
            found["module"] = f"{name[0]} ({kind})" if name and name[0] else kind
            if not any(True for _ in self.modules[0].parameters()):
                found["phase"] = "loss"
        return found

    def _outside(self, op: str, tensor: Any) -> dict[str, Any]:
        name = self._names.parameter(tensor)
        array = array_of(tensor)
        count = int((array != array).sum()) if array is not None else 0
        held = {"count": count, "elements": int(tensor.numel()), **place()}
        if name is not None:
            return {"phase": "weights", "tensor": name, "reason": f"{name} holds NaN", **held}
        shape = "x".join(str(n) for n in tensor.shape) or "one number"
        return {"phase": "input", "reason": f"an input of {op.strip('_')} holds NaN (shape {shape})", **held}


def _made_by(op: str, phase: str, reason: str, count: int, tensor: Any) -> dict[str, Any]:
    """Describes the operation that made a tensor; `count` of its non-finite values, 0: counted here."""
    array = array_of(tensor)
    bad = 0 if array is None else int((~(abs(array) < float("inf"))).sum())
    return {
        "phase": phase,
        "operator": op,
        "reason": reason,
        "count": count or bad,
        "elements": int(tensor.numel()),
    }


# Statements --------------------------------------------------------------------------------------------------------


def _block(tree: Any, line: int) -> tuple[list[tuple[Any, list[Any]]], Any]:
    """Returns the assignments before a line in its function and loop, and the statement at the line.

    The last assignment comes first; each has the `with` statements around it.
    """
    found: list[tuple[Any, list[Any]]] = []
    current: Any = None
    start = 0

    def scope(node: Any) -> Any:
        """Returns the innermost function or module around the line."""
        for child in ast.walk(node):
            if (
                child is not node
                and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
                and child.body[0].lineno <= line <= (child.end_lineno or 0)
            ):
                return scope(child)
        return node

    def walk(body: list[Any], withs: list[Any]) -> None:
        nonlocal current, start
        for node in body:
            last = node.end_lineno or node.lineno
            around = node.lineno <= line <= last
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            inner = [*withs, node] if isinstance(node, ast.With) else withs
            blocks = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
            if isinstance(node, ast.For | ast.While) and around:
                start = node.lineno
            if any(blocks):
                for block in blocks:
                    walk(block, inner)
                for handler in getattr(node, "handlers", []):
                    walk(handler.body, inner)
            elif around:
                current = node
            if (
                isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)
                and node.value is not None
                and last < line
            ):
                found.append((node, withs))

    walk(scope(tree).body, [])
    return [item for item in found if item[0].lineno >= start][::-1], current


def _names_in(node: Any) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _evaluate(value: Any, withs: list[Any], filename: str, scope: dict[str, Any]) -> Any:
    inner: Any = ast.Assign(targets=[ast.Name(id=_RESULT, ctx=ast.Store())], value=value)
    ast.copy_location(inner, value)
    for around in reversed(withs):
        inner = ast.copy_location(ast.With(items=around.items, body=[inner]), around)
    module = ast.fix_missing_locations(ast.Module(body=[inner], type_ignores=[]))
    exec(compile(module, filename, "exec"), scope)  # the user's own statement, run in the child
    return scope.pop(_RESULT, None)


def _parsed(frame: Any) -> Any:
    filename = frame.f_code.co_filename
    lines = linecache.getlines(filename, frame.f_globals)
    return ast.parse("".join(lines)) if lines else None


def _calls_next(node: Any) -> bool:
    """Returns whether a statement takes something from an iterator that is used elsewhere, too."""
    return any(
        isinstance(part, ast.Await | ast.Yield | ast.YieldFrom)
        or (
            isinstance(part, ast.Call)
            and isinstance(part.func, ast.Name)
            and part.func.id in ("next", "input")
        )
        for part in ast.walk(node)
    )


def search(frames: list[Any], root: Any, backward: bool, names: Any) -> dict[str, Any] | None:
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
    """
    outside: dict[str, Any] | None = None
    for frame in frames:
        try:
            tree = _parsed(frame)
        except (SyntaxError, ValueError):
            continue
        if tree is None:
            continue
        statements, current = _block(tree, frame.f_lineno)
        if backward:
            found = _derivative(frame, statements)
        else:
            found, seen = _forward(frame, statements, current, root, names)
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
            result = _evaluate(value, withs, filename, scope)
    finally:
        enter.remove()
        leave.remove()
    return result, tracer


def _forward(
    frame: Any, statements: list[Any], current: Any, root: Any, names: Any
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    local = dict(frame.f_locals)
    wanted = {name for name, value in local.items() if value is root}
    if not wanted and current is not None:
        wanted = _names_in(current)
    filename = frame.f_code.co_filename
    outside = None
    done = 0
    for node, withs in statements:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        written = set().union(*(_names_in(target) for target in targets))
        if not written & wanted or _calls_next(node.value):
            continue
        done += 1
        if done > _STATEMENTS:
            break
        wanted |= _names_in(node.value)
        try:
            result, tracer = _traced(node.value, withs, filename, {**frame.f_globals, **local}, names)
        except Exception:
            continue  # a name has another value by now
        if tracer.found is not None:
            # The culprit is what made the data, not what used them; a model makes no data.
            if outside is not None and tracer.found["phase"] != "forward":
                tracer.found["phase"] = "input"
            return tracer.found, None
        if tracer.outside is not None:
            outside = tracer.outside
        elif tracer.infinite is not None and any(_state(tensor) for tensor in _tensors(result)):
            return tracer.infinite, None
    return None, outside


def _derivative(frame: Any, statements: list[Any]) -> dict[str, Any] | None:
    """Evaluates the statements in order under anomaly detection, then the backward pass."""
    scope = {**frame.f_globals, **frame.f_locals}
    filename = frame.f_code.co_filename
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        done = [item for item in statements if not _calls_next(item[0].value)][:_STATEMENTS][::-1]
        for node, withs in done:
            try:
                value = _evaluate(node.value, withs, filename, scope)
            except Exception:
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if isinstance(node, ast.AugAssign) or len(targets) != 1:
                continue
            target = targets[0]
            if isinstance(target, ast.Name):
                scope[target.id] = value
            elif isinstance(target, ast.Tuple) and all(isinstance(part, ast.Name) for part in target.elts):
                try:
                    scope.update({part.id: item for part, item in zip(target.elts, value, strict=True)})  # type: ignore[attr-defined]
                except (TypeError, ValueError):
                    continue
    losses = {
        name
        for node, _ in statements
        for name in _names_in(node)
        if isinstance(scope.get(name), torch.Tensor)
    }
    tree = [scope[name] for name in losses if scope[name].numel() == 1 and scope[name].grad_fn is not None]
    for loss in tree:
        found = _walk_backward(loss)
        if found:
            return found
    return None


def _walk_backward(loss: Any) -> dict[str, Any] | None:
    nodes = list(nodes_behind([loss.grad_fn], 8192))
    leaves = [node.variable for node in nodes if getattr(node, "variable", None) is not None]
    first: list[Any] = []

    def look(node: Any) -> Any:
        def hook(given: Any, received: Any) -> None:
            # given: gradients of the node's inputs; received: of its outputs
            if first or any(_state(tensor) for tensor in _tensors(list(received))):
                return
            for tensor in _tensors(list(given)):
                if _state(tensor):
                    first.append((node, tensor))
                    return

        return hook

    for node in nodes:
        if getattr(node, "variable", None) is None:
            node.register_hook(look(node))
    saved = {node: saved_by(node) for node in nodes}
    torch.autograd.grad(loss, leaves, allow_unused=True)
    if not first:
        return None
    node, gradient = first[0]
    op = operator_of(node)

    def get(name: str) -> Any:
        value = saved[node].get(name)
        return array_of(value) if isinstance(value, torch.Tensor) else value

    reason, count = reason_of(op, get, backward=True)
    reason = reason or f"the derivative of {op} is not finite"
    return {
        **_made_by(op, "backward", reason, count, gradient),
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
