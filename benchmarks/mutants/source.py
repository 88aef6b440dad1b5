"""The source of a script as a tree that operators edit."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

OPTIMIZERS = (
    "SGD",
    "Adam",
    "AdamW",
    "NAdam",
    "RAdam",
    "Adamax",
    "Adagrad",
    "Adadelta",
    "RMSprop",
    "ASGD",
    "LBFGS",
)


class Source:
    """A script. Operators ask it for places and edit them; `text()` is the edited script."""

    def __init__(self, text: str) -> None:
        self.tree = ast.parse(text)

    @classmethod
    def read(cls, path: Path) -> Source:
        return cls(path.read_text())

    def text(self) -> str:
        """The script without its comments."""
        return ast.unparse(ast.fix_missing_locations(self.tree)) + "\n"

    # Places --------------------------------------------------------------------

    def calls(self, *names: str) -> list[ast.Call]:
        """Calls of functions or methods by the last part of their name, in the order of the source."""
        found = [n for n in ast.walk(self.tree) if isinstance(n, ast.Call) and name_of(n.func) in names]
        return sorted(found, key=lambda n: (n.lineno, n.col_offset))

    def optimizers(self) -> list[ast.Call]:
        """Calls that make an optimizer."""
        return self.calls(*OPTIMIZERS)

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that holds a node."""
        inner = None
        for block in self._blocks():
            for statement in block:
                if any(child is node for child in ast.walk(statement)):
                    inner = statement  # blocks come outermost first
        assert inner is not None, "the node is not of this script"
        return inner

    def assigned(self, name: str) -> ast.stmt | None:
        """The last statement at the top of the script that assigns a name."""
        found = None
        for statement in self.tree.body:
            if isinstance(statement, ast.Assign):
                targets = [n.id for t in statement.targets for n in ast.walk(t) if isinstance(n, ast.Name)]
                if name in targets:
                    found = statement
        return found

    def optimizer_name(self) -> str | None:
        """The expression that the only optimizer of the script is assigned to."""
        made = self.optimizers()
        if len(made) != 1:
            return None
        statement = self.statement(made[0])
        return ast.unparse(statement.targets[0]) if isinstance(statement, ast.Assign) else None

    def loops(self) -> list[ast.For]:
        """``for`` loops in which an optimizer steps, innermost last."""
        return [
            n
            for n in ast.walk(self.tree)
            if isinstance(n, ast.For) and any(name_of(c.func) == "step" for c in _calls_in(n))
        ]

    # Edits ---------------------------------------------------------------------

    def drop(self, node: ast.AST) -> None:
        """Removes the statement of a node; an empty block gets ``pass``."""
        gone = self.statement(node)
        for block in self._blocks():
            if any(s is gone for s in block):
                block[:] = [s for s in block if s is not gone] or [ast.Pass()]
                return

    def before(self, node: ast.AST, code: str) -> None:
        """Puts statements before that of a node."""
        self._insert(self.statement(node), code, 0)

    def after(self, node: ast.AST, code: str) -> None:
        """Puts statements behind that of a node."""
        self._insert(self.statement(node), code, 1)

    def replace(self, node: ast.expr, code: str) -> None:
        """Puts an expression in place of another; ``{}`` in `code` is the old one."""
        new = ast.parse(code.replace("{}", f"({ast.unparse(node)})"), mode="eval").body

        class _Swap(ast.NodeTransformer):
            def visit(self, n: ast.AST) -> ast.AST:
                return new if n is node else super().visit(n)

        self.tree = _Swap().visit(self.tree)

    def _insert(self, at: ast.stmt, code: str, offset: int) -> None:
        for block in self._blocks():
            for i, statement in enumerate(block):
                if statement is at:
                    block[i + offset : i + offset] = ast.parse(code).body
                    return

    def _blocks(self) -> Iterator[list[ast.stmt]]:
        for node in ast.walk(self.tree):
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                    yield block


def _calls_in(node: ast.AST) -> list[ast.Call]:
    return [n for n in ast.walk(node) if isinstance(n, ast.Call)]


def name_of(node: ast.expr) -> str:
    """``step`` of ``optimizer.step``, ``Adam`` of ``torch.optim.Adam``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The value of a keyword argument."""
    return next((k.value for k in call.keywords if k.arg == name), None)


def set_keyword(call: ast.Call, name: str, code: str) -> None:
    """Sets a keyword argument; ``{}`` in `code` is the old value."""
    old = keyword(call, name)
    text = code.replace("{}", f"({ast.unparse(old)})") if old is not None else code
    value = ast.parse(text, mode="eval").body
    call.keywords = [k for k in call.keywords if k.arg != name] + [ast.keyword(arg=name, value=value)]
