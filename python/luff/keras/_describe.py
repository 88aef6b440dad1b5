"""The document "model": layers, variables, optimizers and losses, in the terms that rules read."""

from __future__ import annotations

import json
from typing import Any

from luff.keras._kinds import activation_of, layer_kind, loss_kind, losses_of
from luff.keras._names import Names, layers_of
from luff.keras._optimizers import Known

__all__ = ["Document"]

_MAX_MODULES = 50_000
_PLAIN = (bool, int, float, str)
_CONTAINERS = ("Sequential", "Functional", "Model")


class Document:
    """The document, which grows with each model that is seen."""

    def __init__(self) -> None:
        self._models: dict[str, dict[str, Any]] = {}
        self._numbers = 0

    def model(self, names: Names, model: Any) -> None:
        """Adds a model, or updates it."""
        if self._numbers > _MAX_MODULES:
            return
        modules: list[dict[str, Any]] = []
        for path, layer in layers_of(model):
            if type(layer).__name__ in ("InputLayer", "SeedGenerator"):
                continue
            kind = (
                type(layer).__name__
                if path == "" or type(layer).__name__ in _CONTAINERS
                else layer_kind(layer)
            )
            modules.append(self._module(path, kind, path or model.name, layer))
            ending = activation_of(layer)
            if ending and ending != kind:
                modules.append(self._module(f"{path}/{ending}", ending, f"{path}/{ending}", None))
        parameters, buffers = [], []
        trainable = {id(v) for v in model.trainable_variables}
        for variable in model.variables:
            found = names.of(variable)
            entry: dict[str, Any] = {
                "path": f"{found.path}/{variable.name}".replace("/", "."),
                "name": found.name,
                "shape": [int(size) for size in variable.shape],
                "dtype": str(variable.dtype),
            }
            if id(variable) in trainable:
                entry["requires_grad"] = True
                parameters.append(entry)
            elif found.is_parameter:
                entry["requires_grad"] = False
                parameters.append(entry)
            else:
                buffers.append(entry)
        self._models[model.name] = {
            "name": model.name,
            "type": type(model).__name__,
            "modules": modules,
            "parameters": parameters,
            "buffers": buffers,
        }

    def text(self, optimizers: list[tuple[Known, Any]], model: Any) -> str:
        """Returns the document as JSON."""
        document: dict[str, Any] = {"framework": "keras", "models": list(self._models.values())}
        document["optimizers"] = [_optimizer(known, optimizer) for known, optimizer in optimizers]
        held = {
            _key(variable): known.name
            for known, optimizer in optimizers
            for variable in getattr(optimizer, "_trainable_variables", ())
        }
        if optimizers:
            for entry in self._models.values():
                for parameter in entry["parameters"]:
                    parameter["optimizer"] = held.get(
                        (parameter["name"].rpartition("/")[2], *parameter["shape"])
                    )
                    parameter["group"] = None if parameter["optimizer"] is None else 0
        document["schedulers"] = []
        document["losses"] = [
            {"type": loss_kind(loss), "settings": _settings(getattr(loss, "_fn_kwargs", None) or vars(loss))}
            for loss in losses_of(model)
        ]
        return json.dumps(document, default=str)

    def _module(self, path: str, kind: str, name: str, layer: Any) -> dict[str, Any]:
        self._numbers += 1
        settings = {} if layer is None else _settings(vars(layer))
        if "rate" in settings and "Drop" in kind:
            settings["p"] = settings["rate"]
        if kind == "Embedding":
            settings |= {
                "num_embeddings": settings.get("input_dim"),
                "embedding_dim": settings.get("output_dim"),
            }
        return {
            "path": path.replace("/", "."),
            "type": kind,
            "name": name,
            "number": self._numbers - 1,
            "builtin": layer is None or type(layer).__module__.startswith("keras."),
            "training": True,
            "settings": settings,
        }


def _key(variable: Any) -> tuple[Any, ...]:
    return (str(variable.name), *(int(size) for size in variable.shape))


def _settings(values: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in list(dict(values).items())[:256]:
        if key.startswith("_") or key == "built":
            continue
        if isinstance(value, float) and not abs(value) < float("inf"):
            found[key] = str(value)
        elif isinstance(value, _PLAIN):
            found[key] = value[:200] if isinstance(value, str) else value
        elif (
            isinstance(value, tuple | list) and len(value) <= 16 and all(isinstance(v, _PLAIN) for v in value)
        ):
            found[key] = list(value)
    return found


def _optimizer(known: Known, optimizer: Any) -> dict[str, Any]:
    variables = getattr(optimizer, "_trainable_variables", [])
    settings = _settings(vars(optimizer))
    return {
        "number": known.number,
        "name": known.name,
        "type": type(optimizer).__name__,
        "defaults": settings,
        "groups": [{"settings": settings, "parameters": len(variables)}],
        "foreign": 0,
    }
