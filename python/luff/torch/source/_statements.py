"""Statements that do nothing: a method that is only named, a result that is thrown away, a comparison, half a sum."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

from luff.torch.source._found import Found
from luff.torch.source._imports import Names, called, dotted
from luff.torch.source._pure import (
    changes_its_input,
    is_pure_function,
    is_pure_method,
    is_written_in_place,
    only_tensors_have,
)

__all__ = ["statements_of", "useless", "without_effect"]

_ACTS = {"zero_grad", "step", "backward", "requires_grad_", "unscale_"}
_MODES = {"eval", "train"}
_TYPES = {"float", "double", "half", "long", "int", "bool", "to", "cuda", "bfloat16"}  # modules: in place
_FLAGS = {"requires_grad", "grad", "data"}
_HARMLESS_WITH = {
    "no_grad",
    "enable_grad",
    "set_grad_enabled",
    "inference_mode",
    "autocast",
    "accumulate",
    "no_sync",
}
_SUMS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.MatMult)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def statements_of(function: Any) -> Iterator[tuple[ast.stmt, list[ast.stmt], int]]:
    """Yields each statement with the list that it stands in and its place there.

    Not those of functions within; of `try` with handlers, which may want the exception; and of `with` that may time or
    watch what is called.
    """
    waiting: list[list[ast.stmt]] = [function.body]
    while waiting:
        body = waiting.pop()
        for at, node in enumerate(body):
            if isinstance(node, _SCOPES):
                continue
            yield node, body, at
            if isinstance(node, ast.Try) and node.handlers:
                continue
            if isinstance(node, ast.With | ast.AsyncWith) and not all(
                called(one.context_expr).rpartition(".")[2] in _HARMLESS_WITH for one in node.items
            ):
                continue
            waiting.extend(
                inner for name in ("body", "orelse", "finalbody") if (inner := getattr(node, name, None))
            )
            waiting.extend(one.body for one in getattr(node, "cases", ()))


def without_effect(node: Any, names: Names) -> bool:
    """Whether nothing in an expression does anything but give a value, and at least one call or sum makes it anew."""
    makes = False
    for one in ast.walk(node):
        if isinstance(one, ast.Call):
            if not _is_pure_call(one, names):
                return False
            makes = True
        elif isinstance(one, ast.BinOp):
            makes = makes or isinstance(one.op, _SUMS)
        elif isinstance(one, ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr):
            return False
    return makes


def _is_pure_call(node: ast.Call, names: Names) -> bool:
    given = tuple(one.arg or "" for one in node.keywords)
    if "" in given or any(isinstance(one, ast.Starred) for one in node.args):
        return False
    full = names.meant(node.func)
    if full:
        return is_pure_function(full, len(node.args), given) or names.layer_made(node) is not None
    if names.layers.get(dotted(node.func)) is not None:
        return True
    if not isinstance(node.func, ast.Attribute) or node.func.attr in names.functions:
        return False
    return only_tensors_have(node.func.attr)


def _is_tensor(node: Any, names: Names, known: Callable[[Any], bool | None]) -> bool:
    """Whether an expression is a tensor: it can be nothing else, or what it names is one."""
    if isinstance(node, ast.Call):
        full = names.meant(node.func)
        if full.startswith("torch."):
            return is_pure_function(full, len(node.args), ())
        return isinstance(node.func, ast.Attribute) and only_tensors_have(node.func.attr)
    if isinstance(node, ast.Attribute) and node.attr == "data":
        return (isinstance(node.value, ast.Attribute) and node.value.attr == "grad") or _is_tensor(
            node.value, names, known
        )
    if isinstance(node, ast.Attribute) and node.attr == "grad":
        return True
    return known(node) is True


def useless(function: Any, names: Names, known: Callable[[Any], bool | None]) -> Iterator[Found]:
    """Yields the statements of a function that do nothing.

    Parameters
    ----------
    function
        The node of a function or module.
    names
        What names of the file stand for.
    known
        Whether a name is that of a tensor; None if nobody can tell, or of an array.
    """
    shown = _lines_of_cells(function)
    for node, body, at in statements_of(function):
        found = _sign(node)
        if found is not None:
            yield found
        if not isinstance(node, ast.Expr):
            continue
        value = node.value
        if isinstance(value, ast.Attribute):
            last = value.attr
            if dotted(value) and (last in _ACTS or last in _MODES or is_written_in_place(last)):
                cause = "mode_not_called" if last in _MODES else "not_called"
                yield Found(cause, node, dotted(value), f"{dotted(value)}()")
        elif id(node) in shown:
            continue
        elif isinstance(value, ast.Call):
            lost = _dropped(node, value, function, names, known)
            if lost is not None:
                yield lost
        elif isinstance(value, ast.Compare):
            if _means_to_assign(value):
                yield Found("compared", node, ast.unparse(value.left), "=")
        elif isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.UAdd | ast.USub):
            if at > 0 and isinstance(body[at - 1], ast.Assign | ast.AugAssign | ast.Return):
                yield Found("cut_off", node, ast.unparse(value.operand), "( )")
        elif isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add | ast.Sub):
            if _is_used(value.left, node, function):
                yield Found("compared", node, ast.unparse(value.left), "=")


def _means_to_assign(node: ast.Compare) -> bool:
    """Whether `a == b` stands where `a = b` is meant; other comparisons may be assertions without the word."""
    left, right = node.left, node.comparators[0]
    if len(node.ops) != 1 or not isinstance(node.ops[0], ast.Eq):
        return False
    if isinstance(left, ast.Attribute):
        return left.attr in _FLAGS
    if isinstance(left, ast.Subscript):
        return not any(isinstance(one, ast.Call) for one in ast.walk(right))
    return isinstance(left, ast.Name) and isinstance(right, ast.Constant)


def _lines_of_cells(function: Any) -> set[int]:
    """Returns the statements of a module that stand in no loop: in a script that was a notebook they show values."""
    if not isinstance(function, ast.Module):
        return set()
    inside = {
        id(inner)
        for one in ast.walk(function)
        if isinstance(one, ast.For | ast.While | ast.AsyncFor)
        for inner in ast.walk(one)
    }
    return {id(one) for one in ast.walk(function) if isinstance(one, ast.Expr) and id(one) not in inside}


def _dropped(
    node: ast.Expr, value: ast.Call, function: Any, names: Names, known: Callable[[Any], bool | None]
) -> Found | None:
    given = {one.arg or "" for one in value.keywords}
    if given & {"", "out", "inplace"} or any(isinstance(one, ast.Starred) for one in value.args):
        return None
    if names.layer_made(value) is not None:
        return Found("dropped", node, "", dotted(value.func), made=True)
    full, layer = names.meant(value.func), names.layers.get(dotted(value.func))
    method = value.func.attr if isinstance(value.func, ast.Attribute) else ""
    if full:
        name = full.rpartition(".")[2]
        lost: Any = value.args[0] if value.args else None
        if not is_pure_function(full, len(value.args), tuple(given)):
            return None
        if not (changes_its_input(name) or full.startswith("torch.nn.functional.")):
            return None
    elif layer is not None:
        lost = value.args[0] if value.args else None
    elif isinstance(value.func, ast.Attribute) and changes_its_input(method):
        lost = value.func.value
        root = _root(lost)
        sure = only_tensors_have(method) and method not in names.functions and known(lost) is not False
        sure = sure and root != "self" and not names.imports(root)
        if not sure and not ((is_pure_method(method) or method in _TYPES) and _is_tensor(lost, names, known)):
            return None
    else:
        return None
    if not _is_used(lost, node, function):
        return None
    return Found(
        "dropped", node, ast.unparse(lost), method if not full and layer is None else dotted(value.func)
    )


def _root(node: Any) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _is_used(lost: Any, at: ast.stmt, function: Any) -> bool:
    """Whether something else reads what a result was worked out from, as it is: then it is read without the change."""
    if isinstance(lost, ast.Attribute) and lost.attr in ("data", "grad"):
        return True
    while isinstance(lost, ast.Attribute | ast.Subscript):
        lost = lost.value
    if not isinstance(lost, ast.Name):
        return False
    here = {id(one) for one in ast.walk(at)}
    return any(
        isinstance(one, ast.Name)
        and one.id == lost.id
        and isinstance(one.ctx, ast.Load)
        and id(one) not in here
        for one in ast.walk(function)
    )


def _sign(node: ast.stmt) -> Found | None:
    """Returns a finding where `loss =+ term` stands."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(node.value, ast.UnaryOp):
        return None
    target, value = node.targets[0], node.value
    if not isinstance(value.op, ast.UAdd) or not isinstance(target, ast.Name | ast.Attribute):
        return None
    if isinstance(value.operand, ast.Constant) or value.operand.col_offset - value.col_offset < 2:
        return None  # `= +term` may be meant
    if value.lineno != target.end_lineno or value.col_offset - (target.end_col_offset or 0) > 2:
        return None  # `= + term`, below or above `= - term`
    return Found("sign_for_sum", node, ast.unparse(target), "+=")
