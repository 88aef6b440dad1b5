"""The documents "environment" and "model" of a training in JAX."""

from __future__ import annotations

import json
import sys
from typing import Any

from luff._codes import Role
from luff.jax._optimizer import state_kinds
from luff.jax._trees import Part

__all__ = ["Document", "process_count", "versions"]

_PLAIN = (bool, int, float, str)
_MAX_MODULES = 50_000
_MAX_SETTINGS = 64
_BUFFER = int(Role.BUFFER)


def versions() -> dict[str, Any]:
    """Returns the versions of the software that computes here."""
    import jax

    found: dict[str, Any] = {"jax": jax.__version__, "jax_backend": jax.default_backend()}
    for name in ("flax", "optax"):
        module = sys.modules.get(name)
        if module is not None:
            found[name] = str(getattr(module, "__version__", ""))
    return found


def process_count() -> int:
    """Returns the number of processes of the job; 1 if this is the only one."""
    import jax

    return int(jax.process_count())


class Document:
    """The document "model", which grows with what is seen."""

    def __init__(self) -> None:
        self._models: dict[str, dict[str, Any]] = {}
        self._optimizers: list[dict[str, Any]] = []
        self._held: set[str] | None = None
        self._left = _MAX_MODULES

    def model(self, part: Part) -> bool:
        """Adds a model. Returns True if it adds anything."""
        name = part.model or "params"
        if name in self._models and part.model:
            return False
        entry = self._models.setdefault(
            name,
            {"name": name, "type": part.kind or "params", "modules": [], "parameters": [], "buffers": []},
        )
        known = {parameter["name"] for parameter in entry["parameters"]}
        known |= {buffer["name"] for buffer in entry["buffers"]}
        before = len(known)
        for path, kind, module in part.modules[: self._left]:
            entry["modules"].append(
                {
                    "path": path,
                    "type": kind,
                    "name": f"{part.model}_{path}" if path else part.model,
                    "builtin": type(module).__module__.startswith("flax."),
                    "settings": _settings(module),
                }
            )
        self._left -= len(part.modules)
        if not part.modules and not entry["modules"]:
            entry["modules"].append({"path": "", "type": "params", "name": name, "settings": {}})
        for leaf, value in zip(part.leaves, part.values, strict=True):
            if leaf.name in known or self._left <= 0:
                continue
            known.add(leaf.name)
            self._left -= 1
            shape = [int(size) for size in getattr(value, "shape", ())]
            one = {
                "path": leaf.path,
                "name": leaf.name,
                "shape": shape,
                "dtype": str(getattr(value, "dtype", "")),
            }
            if leaf.role == _BUFFER:
                entry["buffers"].append(one)
            else:
                entry["parameters"].append({**one, "requires_grad": True})
        return len(known) > before

    def optimizer(self, state: Any, held: set[str] | None = None) -> None:
        """Adds the optimizer that is seen first.

        Parameters
        ----------
        state
            Its Optax state, or None if it is not known.
        held
            Names of the parameters that it keeps moments of; None if it keeps none and may update all.
        """
        kinds = [kind for kind in state_kinds(state) if kind != "Empty"]
        name = _name_of(kinds)
        self._held = held
        self._optimizers.append(
            {"number": 0, "name": name, "type": name, "defaults": {}, "states": kinds[:64], "groups": []}
        )

    @property
    def has_optimizer(self) -> bool:
        """Whether an optimizer is in the document."""
        return bool(self._optimizers)

    @property
    def optimizer_name(self) -> str:
        """Name of the optimizer; "optax" while it is not known."""
        return str(self._optimizers[0]["name"]) if self._optimizers else "optax"

    def text(self) -> str:
        """Returns the document as JSON."""
        if self._optimizers:
            count = 0
            for entry in self._models.values():
                for parameter in entry["parameters"]:
                    if self._held is None or parameter["name"] in self._held:
                        parameter["optimizer"], parameter["group"] = self.optimizer_name, 0
                        count += 1
            self._optimizers[0]["groups"] = [{"settings": {}, "parameters": count}]
        return json.dumps(
            {
                "framework": "jax",
                "models": list(self._models.values()),
                "optimizers": self._optimizers,
                "schedulers": [],
                "losses": [],
            },
            default=str,
        )


def _name_of(kinds: list[str]) -> str:
    """Returns the name of the optimizer that the transformations make up. By its states, an AdamW is an Adam."""
    for kind, name in (("ScaleByAdam", "Adam"), ("ScaleByRms", "RMSProp"), ("Trace", "SGD")):
        if kind in kinds:
            return name
    own = [kind for kind in kinds if kind.startswith("ScaleBy") and kind != "ScaleBySchedule"]
    return own[0].removeprefix("ScaleBy") if own else "optax"


def _settings(module: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in list(vars(module).items()):
        if key.startswith("_") or len(found) >= _MAX_SETTINGS:
            continue
        if isinstance(value, _PLAIN):
            plain = isinstance(value, float) and (value != value or value in (float("inf"), float("-inf")))
            found[key] = str(value) if plain else value[:200] if isinstance(value, str) else value
        elif (
            isinstance(value, tuple) and len(value) <= 16 and all(isinstance(item, _PLAIN) for item in value)
        ):
            found[key] = list(value)
    return found
