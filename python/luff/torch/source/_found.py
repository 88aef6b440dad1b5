"""A place of a source where a result is lost."""

from __future__ import annotations

import ast
from dataclasses import dataclass

__all__ = ["Found"]


@dataclass
class Found:
    """What is said of a statement.

    Attributes
    ----------
    cause
        The kind of the mistake.
    node
        The statement.
    name
        What is lost, or what it is lost from.
    other
        What would have been meant, or what takes its place.
    made
        An object is made and not used.
    """

    cause: str
    node: ast.AST
    name: str
    other: str
    made: bool = False

    @property
    def line(self) -> int:
        """The line of the statement."""
        return int(getattr(self.node, "lineno", 0))
