"""The source of a function that the training runs, as a tree, if the text is still what the code was made from."""

from __future__ import annotations

import ast
import linecache
import os
import sysconfig
import time
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch

import luff

__all__ = ["Text", "function_of", "is_of_user", "read", "text_of"]

_BEGAN = time.time()
_MOST_BYTES = 1 << 17  # of a file
_PACKAGES = ("site-packages", "dist-packages", "<", "ipykernel_")
_OWN = tuple(
    os.path.join(path, "")
    for key in ("stdlib", "platstdlib", "purelib", "platlib")
    if (path := sysconfig.get_paths().get(key))
) + tuple(os.path.join(os.path.dirname(os.path.abspath(str(one.__file__))), "") for one in (luff, torch))
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Text:
    """A file, parsed.

    Attributes
    ----------
    tree
        The module.
    nodes
        All nodes of it.
    lines
        Its lines.
    """

    tree: ast.Module
    nodes: list[ast.AST]
    lines: list[str]

    def line(self, number: int) -> str:
        """Returns a line without its indentation."""
        return self.lines[number - 1].strip() if 0 < number <= len(self.lines) else ""


def is_of_user(filename: str) -> bool:
    """Whether a file is the user's own: of no package, not of Python, no cell of a notebook."""
    return not filename.startswith(_OWN) and not any(part in filename for part in _PACKAGES)


def text_of(source: str) -> Text | None:
    """Returns a source that is not too large, parsed; None if it is no Python."""
    if len(source) > _MOST_BYTES:
        return None
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    return Text(tree, list(ast.walk(tree)), source.splitlines())


def read(filename: str, scope: dict[str, Any]) -> Text | None:
    """Returns the text of a file, unless it was written since the process began."""
    try:
        status = os.stat(filename)
        if status.st_mtime > _BEGAN or status.st_size > _MOST_BYTES:
            return None
    except OSError:
        return None
    return text_of("".join(linecache.getlines(filename, scope)))


def function_of(text: Text, code: CodeType) -> Any:
    """Returns the function's or module's node; None if the text and the code do not agree."""
    if code.co_name == "<module>":
        found: Any = text.tree
    else:
        fits = [
            node
            for node in text.nodes
            if isinstance(node, _FUNCTIONS)
            and node.name == code.co_name
            and min([node.lineno, *(one.lineno for one in node.decorator_list)]) == code.co_firstlineno
        ]
        if len(fits) != 1:
            return None
        found = fits[0]
        given = found.args
        names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
        if tuple(names) != code.co_varnames[: len(names)]:
            return None
    return found if _agree(found, code) else None


def _agree(node: Any, code: CodeType) -> bool:
    """Whether each name and each line of the code is one of the text."""
    names: set[str] = set()
    lines: set[int] = set()
    for one in ast.walk(node):
        if isinstance(one, ast.Name):
            names.add(one.id)
        elif isinstance(one, ast.Attribute):
            names.add(one.attr)
        elif isinstance(one, ast.alias):
            names.update(one.name.split("."))
        elif isinstance(one, ast.ImportFrom):
            names.update((one.module or "").split("."))
        elif isinstance(one, (*_FUNCTIONS, ast.ClassDef)):
            names.add(one.name)
        if hasattr(one, "lineno"):
            lines.update((one.lineno, getattr(one, "end_lineno", None) or one.lineno))
    for name in code.co_names:
        if not name.startswith("__") and not set(name.split(".")) <= names:
            return False
    first = code.co_firstlineno
    return all(line is None or line <= 1 or line == first or line in lines for _, _, line in code.co_lines())
