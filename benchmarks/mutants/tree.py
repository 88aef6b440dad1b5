"""The syntax tree of a script, with searches and edits."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

Loop = ast.For | ast.While


class Tree:
    """A script. Operators search it for places and edit them; `text()` returns the edited script."""

    def __init__(self, text: str) -> None:
        self.tree = ast.parse(text)

    def text(self) -> str:
        """Returns the script without its comments."""
        return ast.unparse(ast.fix_missing_locations(self.tree)) + "\n"

    # Places --------------------------------------------------------------------

    def calls(self, *names: str) -> list[ast.Call]:
        """Returns calls of functions or methods by the last part of their name, in source order."""
        found = [n for n in ast.walk(self.tree) if isinstance(n, ast.Call) and name_of(n.func) in names]
        return sorted(found, key=lambda n: (n.lineno, n.col_offset))

    def statement(self, node: ast.AST) -> ast.stmt:
        """Returns the innermost statement that contains a node."""
        inner = None
        for block in self._blocks():
            for statement in block:
                if any(child is node for child in ast.walk(statement)):
                    inner = statement  # outer blocks come first
        assert inner is not None, "the node is not of this script"
        return inner

    def assigned(self, name: str) -> ast.stmt | None:
        """Returns the last top-level statement of the script that assigns a name."""
        found = None
        for statement in self.tree.body:
            if isinstance(statement, ast.Assign):
                targets = [n.id for t in statement.targets for n in ast.walk(t) if isinstance(n, ast.Name)]
                if name in targets:
                    found = statement
        return found

    def ancestors(self, node: ast.AST) -> list[ast.AST]:
        """Returns the ancestors of a node, innermost first."""
        above = {id(child): n for n in ast.walk(self.tree) for child in ast.iter_child_nodes(n)}
        found: list[ast.AST] = []
        while id(node) in above:
            node = above[id(node)]
            found.append(node)
        return found

    def scope(self, node: ast.AST) -> ast.FunctionDef | ast.Module:
        """Returns the function that contains a node, or the script."""
        return next(n for n in self.ancestors(node) if isinstance(n, ast.FunctionDef | ast.Module))

    def binds(self, scope: ast.FunctionDef | ast.Module, name: str) -> bool:
        """Returns whether a name is a variable of a scope, so that the scope may assign it again."""
        if isinstance(scope, ast.FunctionDef) and name in [
            a.arg for a in ast.walk(scope.args) if isinstance(a, ast.arg)
        ]:
            return True
        inside: list[ast.AST] = list(ast.iter_child_nodes(scope))
        while inside:
            node = inside.pop()
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name:
                return True
            if not isinstance(node, ast.FunctionDef):  # a nested function has its own scope
                inside += ast.iter_child_nodes(node)
        return False

    def loops(self, node: ast.AST) -> list[Loop]:
        """Returns the loops around a node within its function, innermost first."""
        found: list[Loop] = []
        for n in self.ancestors(node):
            if isinstance(n, ast.FunctionDef):
                break
            if isinstance(n, Loop):
                found.append(n)
        return found

    def without_gradient(self, node: ast.AST) -> bool:
        """Returns whether a node is inside `no_grad` or `inference_mode`."""
        for n in self.ancestors(node):
            above = [i.context_expr for i in n.items] if isinstance(n, ast.With) else []
            above += n.decorator_list if isinstance(n, ast.FunctionDef) else []
            if any(re.search(r"no_grad|inference_mode", ast.unparse(e)) for e in above):
                return True
        return False

    def imports(self, module: str) -> bool:
        """Returns whether the script imports a package or a part of it."""
        return bool(re.search(rf"^\s*(import|from) {module}\b", self.text(), re.MULTILINE))

    # Edits ---------------------------------------------------------------------

    def drop(self, node: ast.AST) -> None:
        """Removes the statement of a node; an empty block gets ``pass``."""
        gone = self.statement(node)
        for block in self._blocks():
            if any(s is gone for s in block):
                block[:] = [s for s in block if s is not gone] or [ast.Pass()]
                return

    def remove_call(self, call: ast.Call) -> None:
        """Removes a method call: its whole statement, or all of the call but the object."""
        statement = self.statement(call)
        if isinstance(statement, ast.Expr) and statement.value is call:
            self.drop(call)
        else:
            self.replace(call, base_text(call))

    def before(self, node: ast.AST, code: str) -> None:
        """Inserts statements before the statement of a node."""
        self._insert(self.statement(node), code, 0)

    def after(self, node: ast.AST, code: str) -> None:
        """Inserts statements after the statement of a node."""
        self._insert(self.statement(node), code, 1)

    def replace(self, node: ast.expr, code: str) -> None:
        """Replaces an expression by another; ``{}`` in `code` stands for the old one."""
        new = ast.parse(code.replace("{}", f"({ast.unparse(node)})"), mode="eval").body

        class _Swap(ast.NodeTransformer):
            def visit(self, n: ast.AST) -> ast.AST:
                return new if n is node else super().visit(n)

        self.tree = _Swap().visit(self.tree)

    def wrap(self, statement: ast.stmt, header: str) -> None:
        """Puts a statement into a block with a header such as ``with torch.no_grad():``."""
        for block in self._blocks():
            for i, own in enumerate(block):
                if own is statement:
                    outer = ast.parse(f"{header}\n    pass").body[0]
                    outer.body = [own]  # type: ignore[attr-defined]
                    block[i] = outer
                    return

    def unwrap(self, compound: ast.With) -> None:
        """Replaces a `with` statement by its body."""
        for block in self._blocks():
            for i, own in enumerate(block):
                if own is compound:
                    block[i : i + 1] = compound.body
                    return

    def need(self, code: str) -> None:
        """Adds an import if the script lacks it."""
        if not re.search(rf"^{re.escape(code)}$", self.text(), re.MULTILINE):
            first = next(
                i
                for i, s in enumerate(self.tree.body)
                if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
                and not (isinstance(s, ast.ImportFrom) and s.module == "__future__")
            )
            self.tree.body[first:first] = ast.parse(code).body

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


def named(node: ast.AST, *names: str) -> Iterator[ast.Call]:
    """Returns the calls of these names inside a node."""
    return (n for n in ast.walk(node) if isinstance(n, ast.Call) and name_of(n.func) in names)


def name_of(node: ast.expr) -> str:
    """Returns the last part of a name: ``step`` for ``optimizer.step``, ``Adam`` for ``torch.optim.Adam``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def base_text(call: ast.Call) -> str:
    """Returns the object of a method call: ``optimizer`` for ``optimizer.step()``."""
    return ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """Returns the value of a keyword argument, or None."""
    return next((k.value for k in call.keywords if k.arg == name), None)


def set_keyword(call: ast.Call, name: str, code: str) -> None:
    """Sets a keyword argument; ``{}`` in `code` stands for the old value, if there is one."""
    old = keyword(call, name)
    text = code.replace("{}", f"({ast.unparse(old)})") if old is not None else code
    value = ast.parse(text, mode="eval").body
    call.keywords = [k for k in call.keywords if k.arg != name] + [ast.keyword(arg=name, value=value)]
