"""Goes through the functions that a training runs: those on the stack, those that they call by a plain name or as a
method of their own class, and what the models' classes have as `forward`. Each is read once.
"""

from __future__ import annotations

import ast
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from types import CodeType, FrameType, FunctionType
from typing import Any

import numpy as np
import torch

from luff.torch.source._flow import losing
from luff.torch.source._found import Found
from luff.torch.source._imports import Names, called
from luff.torch.source._statements import statements_of, useless
from luff.torch.source._text import Text, function_of, is_of_user, read

__all__ = ["Sources"]

_FRAMES = 32  # of the stack
_FUNCTIONS = 64  # that are read, all in all
_SECONDS = 0.2  # that reading may take, all in all
_MODULES = 1024  # of a model
_DEEP = 2  # calls from a function on the stack
_OPTIMIZED = 1  # CO_OPTIMIZED: names of the frame are its own
_ASK_FOR_NAMES = {
    "locals",
    "vars",
    "eval",
    "exec",
    "dir",
    "_getframe",
}  # what they give may be one and the same copy
_LIVE_LOCALS = sys.version_info >= (3, 13)  # `f_locals` keeps nothing alive
_LONGEST = 160


class Sources:
    """Looks at each function once; bounded in number and time."""

    def __init__(self) -> None:
        self._seen: dict[int, CodeType] = {}
        self._texts: dict[str, tuple[Text, Names] | None] = {}
        self._kinds: set[type] = set()
        self._left = _SECONDS

    @property
    def over(self) -> bool:
        """Nothing more is read."""
        return self._left <= 0 or len(self._seen) >= _FUNCTIONS

    def look(self, frame: FrameType | None, models: list[Any]) -> list[dict[str, Any]]:
        """Returns what is found in the functions around a frame, and in the classes of models."""
        began = time.thread_time()
        found: list[dict[str, Any]] = []
        try:
            for code, scope, of, deep in self._functions(frame, models):
                found.extend(self._read(code, scope, of, deep, frame, began))
                if time.thread_time() - began > self._left:
                    break
        finally:
            self._texts.clear()
            self._left -= time.thread_time() - began
        return found

    def _functions(
        self, frame: FrameType | None, models: list[Any]
    ) -> Iterator[tuple[CodeType, dict[str, Any], Any, int]]:
        for _ in range(_FRAMES):
            if frame is None:
                break
            yield frame.f_code, frame.f_globals, _class_of(frame.f_code, frame.f_globals), 0
            frame = frame.f_back
        for model in models:
            kinds = dict.fromkeys(type(one) for one in islice(model.modules(), _MODULES))
            for kind in kinds.keys() - self._kinds:
                forward = getattr(kind, "forward", None)
                if isinstance(forward, FunctionType):
                    yield forward.__code__, forward.__globals__, kind, 0
            self._kinds.update(kinds)

    def _read(
        self, code: CodeType, scope: dict[str, Any], of: Any, deep: int, frame: FrameType | None, began: float
    ) -> Iterator[dict[str, Any]]:
        if id(code) in self._seen or len(self._seen) >= _FUNCTIONS or not is_of_user(code.co_filename):
            return
        if time.thread_time() - began > self._left:
            return
        self._seen[id(code)] = code
        if code.co_filename not in self._texts:
            text = read(code.co_filename, scope)
            self._texts[code.co_filename] = None if text is None else (text, Names(text.nodes))
        known = self._texts[code.co_filename]
        if known is None:
            return
        text, names = known
        node = function_of(text, code)
        if node is None:
            return
        is_tensor = _tensors_of(code, frame)
        for one in [*useless(node, names, is_tensor), *losing(node, names, text.tree)]:
            yield _event(one, code, text)
        if deep >= _DEEP:
            return
        for function in _called_by(node, scope, of):
            yield from self._read(function.__code__, function.__globals__, of, deep + 1, frame, began)


def _class_of(code: CodeType, scope: dict[str, Any]) -> Any:
    """Returns the class that a method's code is written in, if it is one of its module's."""
    name, _, method = getattr(code, "co_qualname", "").rpartition(".")
    found = scope.get(name) if name and "." not in name else None
    own = vars(found).get(method) if isinstance(found, type) else None
    return found if isinstance(own, FunctionType) and own.__code__ is code else None


def _called_by(node: Any, scope: dict[str, Any], of: Any) -> Iterator[FunctionType]:
    """Yields the functions that a function calls wherever it runs: not those of an `if`."""
    under = {
        id(inner)
        for one in ast.walk(node)
        if isinstance(one, ast.If | ast.Try)
        for inner in ast.walk(one)
        if isinstance(inner, ast.stmt) and inner is not one
    }
    for statement, _, _ in statements_of(node):
        if id(statement) in under:
            continue
        for one in ast.walk(statement):
            first, _, rest = called(one).partition(".")
            found: Any = None
            if first and not rest:
                found = scope.get(first)
            elif first == "self" and rest and of is not None:
                found = getattr(of, rest, None) if "." not in rest else None
            if isinstance(found, FunctionType):
                yield found


def _tensors_of(code: CodeType, frame: FrameType | None) -> Callable[[Any], bool | None]:
    """Returns whether a plain name is that of a tensor, now, in the frame that runs a code; None if it has no value
    there, or one of an array.
    """
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    of: FrameType | None = frame

    def known(node: Any) -> bool | None:
        if of is None or not isinstance(node, ast.Name):
            return None
        if not code.co_flags & _OPTIMIZED:
            return _is_tensor(of.f_globals, node.id) if code.co_name == "<module>" else None
        if _ASK_FOR_NAMES.intersection(code.co_names):
            return None
        values = of.f_locals
        try:
            return _is_tensor(values, node.id)
        finally:
            if not _LIVE_LOCALS:
                values.clear()  # a copy, which would keep them alive

    return known


def _is_tensor(values: Mapping[str, Any], name: str) -> bool | None:
    kind = type(values.get(name))
    if kind is torch.Tensor:
        return True
    return None if kind is type(None) or issubclass(kind, torch.Tensor | np.ndarray) else False


def _event(found: Found, code: CodeType, text: Text) -> dict[str, Any]:
    filename = code.co_filename
    shown = os.path.relpath(filename) if filename.startswith(os.getcwd() + os.sep) else filename
    return {
        "kind": "unused_result",
        "cause": found.cause,
        "file": shown[-_LONGEST:],
        "line": found.line,
        "function": code.co_name[:_LONGEST],
        "text": text.line(found.line)[:_LONGEST],
        "name": found.name[:_LONGEST],
        "other": found.other[:_LONGEST],
        "made": found.made,
    }
