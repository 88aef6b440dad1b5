"""Converts pytrees and NNX modules to lists of named leaves; each structure is examined once."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jax

from luff._codes import Role
from luff._weak import Identities
from luff.jax._flax import nnx_of

__all__ = ["Leaf", "Part", "Trees"]

_WEIGHT, _BIAS, _BUFFER = int(Role.WEIGHT), int(Role.BIAS), int(Role.BUFFER)
_BUFFERS = frozenset({"batch_stats"})
_BIASES = frozenset({"b", "beta"})
_LINEN = re.compile(r"([A-Z]\w*?)_\d+$")
_MAX_STRUCTURES = 1024
_LOOKS = (2, 16)  # a module's structure is examined again at these reads
_REWALK = 256  # and then at every 256th read


@dataclass(frozen=True)
class Leaf:
    """One array of a model: its name in the run, and what it is."""

    name: str
    path: str  # relative to the model
    role: int
    module_path: str = ""
    kind: str = ""  # type of the module that it belongs to, "" if unknown


@dataclass
class Part:
    """Leaves and their values. `model` and `kind` name the model; `modules` are (path, type, module)."""

    leaves: list[Leaf]
    values: list[Any]
    model: str = ""
    kind: str = ""
    modules: list[tuple[str, str, Any]] = field(default_factory=list)


@dataclass
class _Module:
    """What is known of a module, for as long as it lives."""

    module: weakref.ref[Any]
    leaves: list[Leaf]
    variables: list[Any]
    model: str
    kind: str
    reads: int = 1

    def values(self) -> list[Any]:
        """Returns the current values."""
        return [variable.get_raw_value() for variable in self.variables]


class Trees:
    """Names leaves. Names of a module's parameters begin with its class; those of other trees are only the path."""

    def __init__(self) -> None:
        self._structures: dict[Any, tuple[list[Leaf], list[int]]] = {}
        self._modules: dict[int, _Module] = {}
        self._models: Identities[str] = Identities()  # names; one is reused once its module is gone
        self._prefixes: dict[frozenset[str], tuple[str, dict[str, Leaf]]] = {}

    def parts(self, tree: Any) -> list[Part]:
        """Returns the leaves of a tree of parameters, as one part for each model."""
        nnx = nnx_of()
        if nnx is not None and isinstance(tree, nnx.Module):
            return [self._of_module(nnx, tree)]
        found: list[Part] = []
        if nnx is not None and isinstance(tree, (list, tuple, dict)):
            items = list(tree.values()) if isinstance(tree, dict) else list(tree)
            if any(isinstance(item, nnx.Module) for item in items):
                for item in items:
                    found += self.parts(item)
                return found
        return [self._of_tree(tree)]

    def leaves_of(self, structure: Any) -> list[Leaf] | None:
        """Returns the leaves of a structure that was examined before, or None."""
        known = self._structures.get(structure)
        return None if known is None else known[0]

    def like_parameters(self, tree: Any) -> Part:
        """Returns the leaves of a tree with the structure of parameters: gradients, moments."""
        return self._of_tree(tree)

    # Trees -----------------------------------------------------------------------------------------------------

    def _of_tree(self, tree: Any) -> Part:
        values, structure = jax.tree_util.tree_flatten(tree)
        known = self._structures.get(structure)
        if known is None:
            known = self._name(tree)
            if len(self._structures) < _MAX_STRUCTURES:
                self._structures[structure] = known
        leaves, kept = known
        return Part(leaves, values if len(kept) == len(values) else [values[i] for i in kept])

    def _name(self, tree: Any) -> tuple[list[Leaf], list[int]]:
        pairs, _ = jax.tree_util.tree_flatten_with_path(tree)
        paths = [path_text(keys) for keys, _ in pairs]
        model = self._prefixes.get(frozenset(paths))
        if model is not None:
            return [model[1][path] for path in paths], list(range(len(paths)))
        leaves: list[Leaf] = []
        for path in paths:
            parts = path.split(".") if path else []
            role = _BUFFER if parts and parts[0] in _BUFFERS else role_of(parts[-1] if parts else "")
            if len(parts) > 1 and parts[0] in ("params", "batch_stats"):
                parts = parts[1:]  # collections of Linen
            owner = _LINEN.match(parts[-2]) if len(parts) > 1 else None
            name = ".".join(parts) or "params"
            leaves.append(Leaf(name, name, role, ".".join(parts[:-1]), owner.group(1) if owner else ""))
        return leaves, list(range(len(leaves)))

    # Modules ---------------------------------------------------------------------------------------------------

    def _of_module(self, nnx: Any, module: Any) -> Part:
        known = self._modules.get(id(module))
        reads = 1
        if known is not None and known.module() is module:
            known.reads = reads = known.reads + 1
            if reads not in _LOOKS and reads % _REWALK:
                return Part(known.leaves, known.values(), known.model, known.kind)
        part, variables = self._walk(nnx, module)
        if known is not None and set(part.leaves) == set(known.leaves):
            # Other tables refer to the known leaves by identity, and an update may have reordered the attributes.
            by_path = {leaf.path: variable for leaf, variable in zip(part.leaves, variables, strict=True)}
            part.leaves = known.leaves
            variables = [by_path[leaf.path] for leaf in part.leaves]
            part.values = [variable.get_raw_value() for variable in variables]
        if len(self._modules) > _MAX_STRUCTURES:
            self._modules.clear()
        key, modules = id(module), self._modules
        # drops the variables together with the module
        reference = weakref.ref(module, lambda _: modules.pop(key, None))
        modules[key] = _Module(reference, part.leaves, variables, part.model, part.kind, reads)
        return part

    def _walk(self, nnx: Any, module: Any) -> tuple[Part, list[Any]]:
        """Returns leaves, values and modules, and the variables of the leaves."""
        kind = type(module).__name__
        model = self._name_model(module, kind)
        modules, variables = [], []
        order: dict[tuple[Any, ...], dict[Any, int]] = {}  # order in which the class sets its attributes
        nodes = list(nnx.iter_graph(module))
        for path, value in nodes:
            if isinstance(value, nnx.Module):
                order[path] = {key: index for index, key in enumerate(vars(value))}
        nodes.sort(
            key=lambda node: [
                order.get(node[0][:n], {}).get(k, k if isinstance(k, int) else 0)
                for n, k in enumerate(node[0])
            ]
        )
        for path, value in nodes:
            if isinstance(value, nnx.Variable):
                if isinstance(value, (nnx.Param, nnx.BatchStat)):
                    variables.append((tuple(str(key) for key in path), value))
            elif isinstance(value, nnx.Module) and not isinstance(value, (nnx.List, nnx.Dict)):
                modules.append((".".join(str(key) for key in path), type(value).__name__, value))
        types = {path: module_kind(value) for path, _, value in modules}
        leaves = []
        for keys, variable in variables:
            owner, path = ".".join(keys[:-1]), ".".join(keys)
            role = _BUFFER if isinstance(variable, nnx.BatchStat) else role_of(keys[-1] if keys else "")
            leaves.append(Leaf(f"{model}_{path}", path, role, owner, types.get(owner, "")))
        by_path = {leaf.path: leaf for leaf in leaves}
        trained = frozenset(leaf.path for leaf in leaves if leaf.role != _BUFFER)
        for paths in (trained, frozenset(by_path)):
            if len(self._prefixes) < _MAX_STRUCTURES and self._prefixes.get(paths, (model,))[0] == model:
                self._prefixes[paths] = (model, by_path)
        values = [variable.get_raw_value() for _, variable in variables]
        return Part(leaves, values, model, kind, modules), [variable for _, variable in variables]

    def _name_model(self, module: Any, kind: str) -> str:
        known = self._models.get(module)
        if known is not None:
            return known
        taken = set(self._models.values())
        name, count = kind, 1
        while name in taken:
            count += 1
            name = f"{kind}_{count}"
        self._models[module] = name
        return name


def module_kind(module: Any) -> str:
    """Returns the type of a module as its tensors carry it. In PyTorch's ``Linear`` rows
    are units, here columns are.
    """
    kind = type(module).__name__
    return f"nnx.{kind}" if kind == "Linear" else kind


def role_of(last: str) -> int:
    """Returns weight or bias, by the last part of a path."""
    low = last.lower()
    return _BIAS if "bias" in low or low in _BIASES else _WEIGHT


def path_text(keys: Any) -> str:
    """Returns a path of JAX as text: ``dense.kernel``."""
    return ".".join(_texts(keys))


def _texts(keys: Any) -> Iterator[str]:
    last = len(keys) - 1
    for index, key in enumerate(keys):
        for name in ("key", "idx", "name"):
            found = getattr(key, name, None)
            if found is not None:
                if name == "name" and found == "value" and index == last and index:
                    break  # a variable of NNX
                yield str(found)
                break
