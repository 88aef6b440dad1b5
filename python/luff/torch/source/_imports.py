"""What names of a file stand for: torch, its functions and classes, NumPy, layers and losses that a file makes."""

from __future__ import annotations

import ast
from typing import Any

__all__ = ["Names", "called", "dotted"]

_ROOTS = ("torch", "numpy", "copy")
_NOT_LEAVES = ("container", "batchnorm", "instancenorm", "module", "lazy", "rnn")


def dotted(node: Any) -> str:
    """Returns a chain of names and attributes as text; "" for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])


def called(node: Any) -> str:
    """Returns what a call names; "" for anything else."""
    return dotted(node.func) if isinstance(node, ast.Call) else ""


class Names:
    """Names that a file imports, and those that it gives to torch's layers. One that is bound otherwise is not known.

    Attributes
    ----------
    layers
        Names of layers and losses of torch, as `criterion` or `self.relu`, with the class of each.
    functions
        Names of the functions and methods that the file defines.
    """

    def __init__(self, nodes: list[ast.AST]) -> None:
        self._meant: dict[str, str] = {}
        self.functions: set[str] = set()
        bound: dict[str, int] = {}
        for node in nodes:
            if isinstance(node, ast.Import):
                for one in node.names:
                    root = one.name.partition(".")[0]
                    self._meant[one.asname or root] = one.name if one.asname else root
                    bound[one.asname or root] = 0
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                for one in node.names:
                    self._meant[one.asname or one.name] = f"{node.module}.{one.name}"
        for node in nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                bound[node.id] = bound.get(node.id, 0) + 1
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                bound[node.name] = bound.get(node.name, 0) + 1
                if not isinstance(node, ast.ClassDef):
                    self.functions.add(node.name)
            elif isinstance(node, ast.arg):
                bound[node.arg] = bound.get(node.arg, 0) + 1
        for name, count in bound.items():
            if count:
                self._meant.pop(name, None)
        #: Names of modules and of what they hold.
        self._imported = set(self._meant)
        self.layers: dict[str, type] = {}
        other: set[str] = set()
        for node in nodes:
            if not isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                name = dotted(target)
                kind = self.layer_made(node.value)
                if kind is not None and name and self.layers.get(name, kind) is kind:
                    self.layers[name] = kind
                elif name:
                    other.add(name)
        for name in (*other, *(name for name, count in bound.items() if count > 1)):
            self.layers.pop(name, None)

    def meant(self, node: Any) -> str:
        """Returns the full name of what a chain of names stands for in torch or NumPy; "" for anything else."""
        first, _, rest = dotted(node).partition(".")
        full = self._meant.get(first, "")
        if full.partition(".")[0] not in _ROOTS:
            return ""
        return f"{full}.{rest}" if rest else full

    def imports(self, name: str) -> bool:
        """Whether a name, or the first of a chain, is one that the file imports."""
        return name.partition(".")[0] in self._imported

    def layer_made(self, node: Any) -> type | None:
        """Returns the class of torch's that a call makes: a layer or loss, not in place, that holds no others."""
        full = self.meant(node.func) if isinstance(node, ast.Call) else ""
        if not full.startswith("torch.nn.") or full.count(".") != 2 or full == "torch.nn.Identity":
            return None
        if any(one.arg in ("inplace", None) for one in node.keywords) or any(
            isinstance(one, ast.Constant) and one.value is True for one in node.args
        ):
            return None
        import torch

        kind = getattr(torch.nn, full.rpartition(".")[2], None)
        if not isinstance(kind, type) or not issubclass(kind, torch.nn.Module):
            return None
        return None if kind.__module__.rpartition(".")[2] in _NOT_LEAVES else kind
