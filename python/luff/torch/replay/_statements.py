"""The statements of the user's function that a step has run, read from its source and evaluated in a replay.

Never used in the training process.
"""

from __future__ import annotations

import ast
import linecache
from typing import Any

__all__ = [
    "assign",
    "block",
    "calls_next",
    "evaluate",
    "given_to_backward",
    "in_order",
    "names_in",
    "parsed",
    "runs_backward",
    "targets_of",
    "value_of",
]

_RESULT = "__luff_value"


def block(tree: Any, line: int) -> tuple[list[tuple[Any, list[Any]]], Any]:
    """Returns the assignments and backward passes before a line in its function and loop, and the statement there.

    The last one comes first; each has the `with` statements around it.
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
            assigns = isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None
            if last < line and (assigns or (isinstance(node, ast.Expr) and runs_backward(node))):
                found.append((node, withs))

    walk(scope(tree).body, [])
    return [item for item in found if item[0].lineno >= start][::-1], current


def names_in(node: Any) -> set[str]:
    """Returns the names in a part of the source."""
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def targets_of(node: Any) -> list[Any]:
    """Returns what a statement assigns to."""
    if isinstance(node, ast.Assign):
        return list(node.targets)
    return [] if isinstance(node, ast.Expr) else [node.target]


def _calls_backward(node: Any) -> bool:
    function = node.func if isinstance(node, ast.Call) else None
    return "backward" in str(getattr(function, "attr", getattr(function, "id", "")))


def runs_backward(node: Any) -> bool:
    """Returns whether a statement calls something named like a backward pass."""
    return any(_calls_backward(part) for part in ast.walk(node))


def given_to_backward(node: Any) -> list[Any]:
    """Returns the expressions, other than names, whose values a statement gives to a backward pass."""
    given = []
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and _calls_backward(part):
            owner = part.func.value if isinstance(part.func, ast.Attribute) else None
            given += [
                one for one in (owner, *part.args) if isinstance(one, ast.Call | ast.BinOp | ast.UnaryOp)
            ]
    return given


def in_order(statements: list[tuple[Any, list[Any]]], most: int) -> list[tuple[Any, list[Any]]]:
    """Returns the last statements that can be evaluated again, in the order in which they ran."""
    return [one for one in statements if not calls_next(one[0])][:most][::-1]


def value_of(node: Any, made: set[str]) -> Any:
    """Returns the expression that a statement evaluates. What it adds to a value of before is taken alone, unless the
    value is one of those that were `made` again.
    """
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id in made:
        before = ast.copy_location(ast.Name(id=node.target.id, ctx=ast.Load()), node.target)
        return ast.copy_location(ast.BinOp(left=before, op=node.op, right=node.value), node.value)
    return node.value


def assign(targets: list[Any], value: Any, filename: str, scope: dict[str, Any]) -> None:
    """Assigns a value as a statement does."""
    node: Any = ast.Assign(targets=targets, value=ast.Name(id=_RESULT, ctx=ast.Load()))
    module = ast.fix_missing_locations(
        ast.Module(body=[ast.copy_location(node, targets[0])], type_ignores=[])
    )
    scope[_RESULT] = value
    exec(compile(module, filename, "exec"), scope)  # the user's own statement, run in the child
    del scope[_RESULT]


def evaluate(value: Any, withs: list[Any], filename: str, scope: dict[str, Any]) -> Any:
    """Evaluates an expression of the user's within the `with` statements around it."""
    inner: Any = ast.Assign(targets=[ast.Name(id=_RESULT, ctx=ast.Store())], value=value)
    ast.copy_location(inner, value)
    for around in reversed(withs):
        inner = ast.copy_location(ast.With(items=around.items, body=[inner]), around)
    module = ast.fix_missing_locations(ast.Module(body=[inner], type_ignores=[]))
    exec(compile(module, filename, "exec"), scope)  # the user's own statement, run in the child
    return scope.pop(_RESULT, None)


def parsed(frame: Any) -> Any:
    """Returns the syntax tree of a frame's file; None without its source."""
    filename = frame.f_code.co_filename
    lines = linecache.getlines(filename, frame.f_globals)
    return ast.parse("".join(lines)) if lines else None


def calls_next(node: Any) -> bool:
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
