"""Reads the states of Optax by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from luff.jax._flax import nnx_of

__all__ = ["accumulates", "count_of", "is_state", "settings_of", "state_kinds", "state_parts", "unwrap"]

_MAX_DEPTH = 16
_SETTINGS = {
    "learning_rate": "lr",
    "b1": "beta1",
    "b2": "beta2",
    "weight_decay": "weight_decay",
    "momentum": "momentum",
    "decay": "momentum",
}


def unwrap(value: Any) -> Any:
    """Returns the value of a variable of NNX; anything else unchanged."""
    nnx = nnx_of()
    return value.get_raw_value() if nnx is not None and isinstance(value, nnx.Variable) else value


def is_state(value: Any) -> bool:
    """Whether this is a state of Optax: one of its named tuples, or a tuple of them."""
    if not isinstance(value, tuple):
        return False
    if hasattr(value, "_fields"):
        return type(value).__module__.partition(".")[0] == "optax" and not callable(
            getattr(value, "update", None)
        )
    return bool(value) and all(is_state(item) for item in value)


def _walk(state: Any, depth: int = 0) -> Iterator[tuple[str, str, Any]]:
    """Yields (type, field, value) of every field of every state, in order."""
    if depth > _MAX_DEPTH or not isinstance(state, tuple):
        if isinstance(state, Mapping) and depth <= _MAX_DEPTH:  # of several transformations, by label
            for item in state.values():
                yield from _walk(item, depth + 1)
        return
    if not hasattr(state, "_fields"):
        for item in state:
            yield from _walk(item, depth + 1)
        return
    kind = type(state).__name__.removesuffix("State")
    for name, value in zip(state._fields, state, strict=True):
        if is_state(value) or (isinstance(value, Mapping) and any(is_state(v) for v in value.values())):
            yield from _walk(value, depth + 1)
        else:
            yield kind, str(name), value


def state_parts(state: Any) -> Iterator[tuple[str, Any]]:
    """Yields names (``ScaleByAdam.mu``) and the trees under them."""
    taken: dict[str, int] = {}
    for kind, name, value in _walk(state):
        label = f"{kind}.{name}"
        taken[label] = count = taken.get(label, 0) + 1
        yield (label if count == 1 else f"{kind}_{count}.{name}"), unwrap(value)


def settings_of(state: Any) -> Iterator[tuple[str, Any]]:
    """Yields the settings that the state itself contains (``optax.inject_hyperparams``)."""
    for kind, name, value in _walk(state):
        if name == "hyperparams" and kind.startswith("Inject") and isinstance(value, Mapping):
            for key, setting in value.items():
                yield _SETTINGS.get(str(key), str(key)), unwrap(setting)


def state_kinds(state: Any, depth: int = 0) -> list[str]:
    """Returns the types of the states, in order."""
    if depth > _MAX_DEPTH:
        return []
    if isinstance(state, Mapping):
        return [kind for item in state.values() for kind in state_kinds(item, depth + 1)]
    if not isinstance(state, tuple):
        return []
    if not hasattr(state, "_fields"):
        return [kind for item in state for kind in state_kinds(item, depth + 1)]
    inner = [kind for item in state for kind in state_kinds(item, depth + 1)]
    return [type(state).__name__.removesuffix("State"), *inner]


def count_of(state: Any) -> int | None:
    """Returns the updates that a state has counted; None if it does not count. Waits until the number is computed."""
    nnx = nnx_of()
    if nnx is not None and isinstance(state, nnx.Optimizer):
        state = state.opt_state
    found: Any = None
    for kind, name, value in _walk(state):
        if kind == "MultiSteps" and name == "gradient_step":
            found = value
            break
        if found is None and name == "count":
            found = value
    found = unwrap(found)
    return None if found is None or getattr(found, "ndim", None) != 0 else int(found)


def accumulates(state: Any) -> bool:
    """Whether an update comes only after several calls (``optax.MultiSteps``)."""
    nnx = nnx_of()
    if nnx is not None and isinstance(state, nnx.Optimizer):
        state = state.opt_state
    return "MultiSteps" in state_kinds(state)
