"""Finds parameters, states, batches, losses and gradients in the arguments and results of a function.

Types decide where they can (modules and optimizers of NNX, states of Optax), otherwise names, and otherwise
structure: gradients, moments and new parameters are trees like the parameters. The results are places, so that one
search serves all calls of a kind.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from luff.jax._flax import nnx_of
from luff.jax._optimizer import is_state, unwrap
from luff.jax._summaries import Summaries

__all__ = [
    "CAN_ASK",
    "Call",
    "Outcome",
    "Path",
    "at",
    "has_tracer",
    "in_trace",
    "look_at_call",
    "look_at_result",
    "name_numbers",
    "names_of_parameters",
    "told",
]

try:
    from jax._src.core import trace_state_clean as _is_clean
except ImportError:  # this JAX cannot say whether it traces: the values are checked instead
    _is_clean = None
#: Whether JAX itself can say whether it traces.
CAN_ASK = _is_clean is not None

_PARAMETERS = frozenset({"params", "parameters", "weights", "model", "variables", "batch_stats"})
_GRADIENTS = frozenset({"grads", "grad", "gradients", "gradient"})
_MAX_DEPTH = 6
_MAX_SCALARS = 64


#: Steps from a root to a value: names of attributes (True), keys and indices (False).
Path = tuple[tuple[bool, Any], ...]


def at(path: Path, root: Any) -> Any:
    """Returns the value at a place."""
    for is_attribute, key in path:
        root = getattr(root, key) if is_attribute else root[key]
    return unwrap(root)


@dataclass
class Call:
    """Places in ``(args, kwargs)`` of a call."""

    params: list[Path] = field(default_factory=list)
    states: list[Path] = field(default_factory=list)  # of Optax
    batch: list[Path] = field(default_factory=list)


@dataclass
class Outcome:
    """Places in the result of a call; `Outcome.of` returns the values at them."""

    losses: list[tuple[str, Any]] = field(default_factory=list)
    scalars: list[tuple[str, Any]] = field(default_factory=list)
    series: list[tuple[str, Any]] = field(default_factory=list)  # losses of several steps, in order
    states: list[Any] = field(default_factory=list)
    grads: Any = None
    structures: list[Any] = field(default_factory=list)  # of the parameters in the result
    params: Any = None  # new parameters

    def of(self, result: Any) -> Outcome:
        """Returns the same with values instead of places."""
        return Outcome(
            [(name, at(path, result)) for name, path in self.losses],
            [(name, at(path, result)) for name, path in self.scalars],
            [(name, at(path, result)) for name, path in self.series],
            [at(path, result) for path in self.states],
            None if self.grads is None else at(self.grads, result),
            params=None if self.params is None else at(self.params, result),
        )


def names_of_parameters(function: Callable[..., Any]) -> list[str]:
    """Returns the names of the positional parameters of a function; empty if it has no signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def in_trace() -> bool:
    """Whether JAX is tracing the code that calls this."""
    return CAN_ASK and not _is_clean()


def has_tracer(values: Any) -> bool:
    """Whether any of the values is a tracer."""
    return any(isinstance(value, jax.core.Tracer) for value in values)


def _fields(value: Any) -> Iterator[tuple[str, tuple[bool, Any], Any]]:
    """Yields name, path step and value of each member of a tree node; nothing for leaves."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key), (False, key), item
    elif isinstance(value, (list, tuple)):
        names = getattr(value, "_fields", None)
        for index, item in enumerate(value):
            yield names[index] if names else "", (False, index), item
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield name, (True, name), getattr(value, name, None)


def look_at_call(names: list[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
    """Sorts the arguments of a call."""
    call = Call()
    for index, value in enumerate(args):
        _argument(call, names[index] if index < len(names) else "", value, ((False, 0), (False, index)))
    for name, value in kwargs.items():
        _argument(call, name, value, ((False, 1), (False, name)))
    return call


def _argument(call: Call, name: str, value: Any, path: Path) -> None:
    nnx = nnx_of()
    if nnx is not None and isinstance(value, nnx.Optimizer):
        call.states.append(path)
        if vars(value).get("model") is not None:
            call.params.append((*path, (True, "model")))
    elif nnx is not None and isinstance(value, nnx.Metric):
        return
    elif nnx is not None and isinstance(value, nnx.Module):
        call.params.append(path)
    elif is_state(value):
        call.states.append(path)
    elif name in _PARAMETERS and _is_tree(value):
        call.params.append(path)
    elif len(path) < _MAX_DEPTH and _holds_state(value, len(path)):
        for inner, step, item in _fields(value):
            _argument(call, inner, item, (*path, step))
    else:
        call.batch.append(path)


def _is_tree(value: Any) -> bool:
    return not isinstance(value, (str, int, float, bool, type(None))) and not callable(value)


def _holds_state(value: Any, depth: int) -> bool:
    """Whether parameters or an Optax state are among the members, at any depth."""
    if depth >= _MAX_DEPTH or isinstance(value, (jax.Array, np.ndarray)):
        return False
    nnx = nnx_of()
    for name, _, item in _fields(value):
        if name in _PARAMETERS and _is_tree(item):
            return True
        if is_state(item) or (nnx is not None and isinstance(item, (nnx.Module, nnx.Optimizer))):
            return True
        if isinstance(item, (tuple, Mapping)) and _holds_state(item, depth + 1):
            return True
    return False


def look_at_result(params: list[Any], result: Any) -> Outcome:
    """Sorts the results of a call.

    Parameters
    ----------
    params
        Values of the call's parameters.
    """
    outcome = Outcome()
    nnx = nnx_of()
    inside = nnx is not None and any(isinstance(value, nnx.Module) for value in params)
    structures = [
        jax.tree_util.tree_structure(value)
        for value in params
        if nnx is None or not isinstance(value, nnx.Module)
    ]
    _outcome(outcome, "", result, (), structures, inside)
    return outcome


def name_numbers(outcome: Outcome, function: str = "") -> None:
    """Names the numbers that have no name: the first one is the loss, unless another one is called a loss.

    Parameters
    ----------
    function
        Name of a function that may compute anything. Unless it contains the word ``loss``, no unnamed number is a
        loss.
    """
    base = function or "output"
    if not outcome.losses and (not function or "loss" in function.lower()):
        for index, (name, value) in enumerate(outcome.scalars):
            if not name:
                outcome.losses.append(("loss", value))
                del outcome.scalars[index]
                break
    unnamed = 0
    for index, (name, value) in enumerate(outcome.scalars):
        if not name:
            unnamed += 1
            outcome.scalars[index] = (base if unnamed == 1 and function else f"{base}_{unnamed}", value)


def told(given: Mapping[str, Any]) -> tuple[Outcome, list[Any]]:
    """Converts what the user's `read` function returns to an outcome and the Optax states."""
    loss, state = given.get("loss"), given.get("opt_state")
    losses = list(loss.items()) if isinstance(loss, Mapping) else [] if loss is None else [("loss", loss)]
    return Outcome(losses=losses, grads=given.get("grads")), [] if state is None else [state]


def _is_number(value: Any) -> bool:
    if isinstance(value, (float, np.floating)):
        return True
    if not isinstance(value, (jax.Array, np.ndarray)) or value.ndim:
        return False
    return bool(jax.numpy.issubdtype(value.dtype, np.floating))


def _outcome(
    outcome: Outcome, name: str, value: Any, path: Path, structures: list[Any], inside: bool
) -> None:
    value = unwrap(value)
    if _is_number(value):
        if len(outcome.losses) + len(outcome.scalars) < _MAX_SCALARS:
            (outcome.losses if "loss" in name.lower() else outcome.scalars).append((name, path))
        return
    if isinstance(value, (jax.Array, np.ndarray)):
        if value.ndim == 1 and jax.numpy.issubdtype(value.dtype, np.floating):
            outcome.series.append((name, path))
        return
    if value is None or len(path) > _MAX_DEPTH:
        return
    if name in _PARAMETERS:
        if outcome.params is None and jax.tree_util.tree_structure(value) in structures:
            outcome.params = path
        return
    nnx = nnx_of()
    if nnx is not None and isinstance(value, (nnx.Optimizer, nnx.Module)):
        return
    if is_state(value):
        outcome.states.append(path)
        return
    is_grads = isinstance(value, Summaries) or name in _GRADIENTS
    if is_grads or (inside and nnx is not None and isinstance(value, nnx.State)):
        outcome.grads = path
        return
    if structures and not isinstance(value, (int, str, bool)):
        structure = jax.tree_util.tree_structure(value)
        if structure in structures:
            # A function that returns new parameters returns them first; a later tree like them holds gradients.
            if structure in outcome.structures:
                outcome.grads = path
            elif outcome.params is None:
                outcome.params = path
            outcome.structures.append(structure)
            return
    for inner, step, item in _fields(value):
        _outcome(outcome, inner, item, (*path, step), structures, inside)
