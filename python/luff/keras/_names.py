"""Names variables of Keras: ``LAYER/weights/VARIABLE``, where LAYER is the path of names below the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from luff._codes import Role
from luff._weak import Identities
from luff.keras._kinds import layer_kind

__all__ = ["Names", "Variable", "layers_of"]

_MAX_LAYERS = 50_000
_WEIGHT, _BIAS, _BUFFER = int(Role.WEIGHT), int(Role.BIAS), int(Role.BUFFER)


@dataclass(frozen=True)
class Variable:
    """Name of a variable, and what it belongs to."""

    name: str
    role: int
    path: str
    kind: str  # type of the layer
    is_parameter: bool = True  # trainable, or only frozen


def layers_of(model: Any) -> Iterator[tuple[str, Any]]:
    """Yields (path, layer) of a model and everything in it; the model itself comes first, with the path ""."""
    seen: set[int] = set()
    waiting = [("", model)]
    while waiting and len(seen) < _MAX_LAYERS:
        path, layer = waiting.pop()
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        yield path, layer
        inner = [child for child in _children(layer) if id(child) not in seen]
        used: dict[str, int] = {}
        named = []
        for child in inner:
            name = str(getattr(child, "name", type(child).__name__))
            count = used[name] = used.get(name, 0) + 1
            name = name if count == 1 else f"{name}_{count - 1}"
            named.append((f"{path}/{name}" if path else name, child))
        waiting.extend(reversed(named))


def _children(layer: Any) -> list[Any]:
    flatten = getattr(layer, "_flatten_layers", None)
    return list(flatten(include_self=False, recursive=False)) if flatten is not None else []


class Names:
    """The names of all variables of the models that were seen.

    A variable is known by the object that Keras holds and by that of the backend. Only weak references are kept.
    """

    def __init__(self) -> None:
        self._known: Identities[Variable] = Identities()
        self._models: Identities[tuple[int, str]] = Identities()  # number of variables, prefix
        self._taken: set[str] = set()
        self._paths: Identities[str] = Identities()
        self._first = True

    def models(self) -> list[tuple[Any, str]]:
        """Returns (model, prefix of its names) of the models that are alive."""
        found = [(model, self._models.get(model)) for model in self._models.things()]
        return [(model, known[1]) for model, known in found if known is not None]

    def learn(self, model: Any) -> bool:
        """Names the variables of a model; returns False if none is new."""
        count = len(model.variables)
        known = self._models.get(model)
        if known is not None:
            if known[0] == count:
                return False
            prefix = known[1]
        else:
            prefix, self._first = "" if self._first else f"{model.name}/", False
        self._models[model] = (count, prefix)
        for path, layer in layers_of(model):
            self._paths[layer] = prefix + path
            trainable = {id(v) for v in layer._trainable_variables}
            for variable in [*layer._trainable_variables, *layer._non_trainable_variables]:
                self._name(variable, prefix + path, layer_kind(layer), id(variable) in trainable)
        return True

    def of(self, variable: Any) -> Variable:
        """Returns the name of a variable; a variable of no known model is named by its own path."""
        known = self._known.get(variable)
        if known is not None:
            return known
        path = str(getattr(variable, "path", None) or getattr(variable, "name", "variable"))
        head, _, tail = path.removesuffix(":0").rpartition("/")
        return self._add(variable, head, tail, "", bool(getattr(variable, "trainable", True)))

    def path_of(self, layer: Any, model: Any = None) -> str:
        """Returns the path of a layer of `model`, or of a known model; "" for other
        layers, and for the model itself.
        """
        known = self._paths.get(layer)
        if known is not None:
            return known
        if model is not None and model not in self._models:  # the model is called for the first time
            for path, inner in layers_of(model):
                if inner is layer:
                    return path if self._first else f"{model.name}/{path}"
        return ""

    def _name(self, variable: Any, path: str, kind: str, trainable: bool) -> None:
        if variable not in self._known:
            self._add(variable, path, str(variable.name), kind, trainable)

    def _add(self, variable: Any, path: str, tail: str, kind: str, trainable: bool) -> Variable:
        stem = f"{path}/weights/{tail}" if path else f"weights/{tail}"
        name, count = stem, 0
        while name in self._taken:
            count += 1
            name = f"{stem}_{count}"
        self._taken.add(name)
        parameter = trainable or _is_parameter(tail)
        role = _BUFFER if not parameter else _BIAS if "bias" in tail or tail == "beta" else _WEIGHT
        found = Variable(name, role, path, kind, parameter)
        self._known[variable] = found
        value = getattr(variable, "_value", None)
        if value is not None and value is not variable:
            try:
                self._known[value] = found
            except TypeError:  # arrays of some backends are not hashable or weakly referenceable
                pass
        return found


def _is_parameter(name: str) -> bool:
    """Whether a variable is a parameter: a frozen kernel is still a weight, a moving average is not."""
    return name in ("kernel", "bias", "embeddings", "gamma", "beta") or name.endswith(("_kernel", "_bias"))
