"""The run's "model" document: what is trained, and with which loss, optimizer and scheduler."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from typing import Any

from luff.torch.capture._memory import read_scalar
from luff.torch.capture._mentions import is_mentioned
from luff.torch.capture._names import Names, class_name

__all__ = ["describe", "has_moved", "settings_of"]

_PLAIN = (bool, int, float, str, type(None))
_MAX_MODULES = 50_000
_MAX_TEXT = 200
_DRAWN = 16  # times that a parameter is written in place before it is trained, at most
_HIDDEN = frozenset({"training", "call_super_init", "dump_patches"})
_MAX_MILESTONES = 64
# Set on a parameter by somebody who meant requires_grad; torch takes any attribute. Of modules all settings are told.
_MISSPELT = (
    "require_grad",
    "required_grad",
    "requires_grads",
    "require_grads",
    "requires_gradient",
    "require_gradient",
    "requires_gradients",
    "requiresGrad",
)


def _plain(value: Any, depth: int = 0) -> Any:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, str):
        return value[:_MAX_TEXT]
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, tuple | list) and len(value) <= 16 and depth < 3:
        return [_plain(item, depth + 1) for item in value]
    return None


def settings_of(thing: Any) -> dict[str, Any]:
    """Returns numbers, words and short tuples among an object's public attributes."""
    return plain_settings(vars(thing))


def plain_settings(of: Mapping[str, Any]) -> dict[str, Any]:
    """Returns numbers, words and short tuples among named values."""
    found = {}
    for key, value in list(of.items())[:256]:
        if key.startswith("_") or key in _HIDDEN:
            continue
        plain = _plain(value)
        if plain is not None or value is None:
            found[key] = plain
    return found


def _has_scheduler(optimizer: Any) -> bool:
    """Whether a scheduler of torch was made for the optimizer: it counts the calls of `step`."""
    step = getattr(optimizer, "step", None)
    return hasattr(step, "_wrapped_by_lr_sched") or hasattr(
        step, "_with_counter"
    )  # the latter in older versions


def _numbers(mapping: dict[str, Any]) -> dict[str, Any]:
    result = {}
    for key, value in mapping.items():
        if key == "params":
            continue
        if getattr(value, "numel", None) is not None:
            value = read_scalar(value)
        plain = _plain(value)
        if plain is not None or value is None:
            result[key] = plain
    return result


def _misspelt(parameter: Any) -> str:
    """Returns an attribute of a parameter that was to freeze it and means nothing; "" if there is none."""
    own = getattr(parameter, "__dict__", None)
    return next((name for name in _MISSPELT if own.get(name) is False), "") if own else ""


def _was_updated(parameter: Any) -> bool:
    """Returns whether a parameter was written in place more often than one draws or loads it: as a training does."""
    try:
        return int(parameter._version) > _DRAWN
    except (RuntimeError, AttributeError):  # of inference mode
        return False


def has_moved(optimizer: Any) -> bool:
    """Whether a scheduler has changed a rate of its optimizer."""
    pairs = [(group.get("lr"), group.get("initial_lr")) for group in getattr(optimizer, "param_groups", ())]
    return any(
        isinstance(now, float | int) and isinstance(was, float | int) and now != was for now, was in pairs
    )


def _scheduler(scheduler: Any, numbers: Mapping[int, int], called: Container[int]) -> dict[str, Any]:
    """Describes a scheduler; `numbers` are those of known optimizers, by their ids.

    One whose optimizer holds nothing of a model that was called is a calculator, of a weight of the loss, and moves
    nothing.
    """
    entry: dict[str, Any] = {"type": type(scheduler).__name__, "settings": settings_of(scheduler)}
    milestones = getattr(scheduler, "milestones", None)
    if isinstance(milestones, Counter):  # MultiStepLR
        entry["milestones"] = sorted(at for at in milestones if isinstance(at, int))[:_MAX_MILESTONES]
    optimizer = getattr(scheduler, "optimizer", None)
    if optimizer is not None:
        entry["optimizer"] = numbers.get(id(optimizer), -1)
        entry["moved"] = has_moved(optimizer) and any(
            id(p) in called for group in optimizer.param_groups for p in group["params"]
        )
    return entry


def _device_of(optimizer: Any) -> str:
    """Returns the kind of device that holds all parameters of an optimizer; "" for several."""
    kinds = {p.device.type for group in optimizer.param_groups for p in group["params"]}
    return kinds.pop() if len(kinds) == 1 else ""


def describe(
    names: Names,
    optimizers: Iterable[tuple[int, str, Any]],
    schedulers: Iterable[Any],
    losses: Iterable[tuple[str, dict[str, Any]]],
    called: Container[int],
) -> str:
    """Returns the document as JSON.

    Parameters
    ----------
    names
        Models and their parts.
    optimizers
        Tuples (number, name, optimizer).
    schedulers
        Learning rate schedulers that have stepped.
    losses
        (class name, settings) of the losses that were seen.
    called
        Ids of the parameters of the models that were called.
    """
    optimizers = list(optimizers)
    numbers = {id(optimizer): number for number, _, optimizer in optimizers}
    group_of: dict[int, tuple[str, int]] = {}
    holders: Counter[int] = Counter()
    for _, name, optimizer in optimizers:
        holders.update({id(p) for group in optimizer.param_groups for p in group["params"]})
        for index, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                group_of.setdefault(id(parameter), (name, index))
    models = []
    modules_left = _MAX_MODULES
    for model, model_name in names.models():
        modules = []
        parts: dict[str, Any] = {}
        for path, module in model.named_modules():
            parts[path] = module
            if modules_left <= 0:
                break
            modules_left -= 1
            found = names.module(module)
            entry: dict[str, Any] = {
                "path": path,
                "type": class_name(module),
                "settings": settings_of(module),
            }
            if found is not None:
                entry["name"], entry["number"] = found
            if type(module).__module__.startswith("torch.nn."):
                entry["builtin"] = True
                if path and is_mentioned(parts, path):
                    entry["mentioned"] = True
            entry["training"] = bool(module.training)
            modules.append(entry)
        parameters = []
        for path, parameter in model.named_parameters():
            optimizer_name, group_index = group_of.get(id(parameter), (None, None))
            told = {
                "path": path,
                "name": names.parameter(parameter),
                "shape": _shape(parameter),
                "dtype": _dtype(parameter),
                "device": str(getattr(parameter, "device", "")),
                "requires_grad": bool(parameter.requires_grad),
                "optimizer": optimizer_name,
                "group": group_index,
            }
            if optimizer_name is None and _was_updated(parameter):
                told["updated"] = True
            if misspelt := _misspelt(parameter):
                told["misspelt"] = misspelt
            parameters.append(told)
        buffers = [
            {"path": path, "shape": _shape(buffer), "dtype": _dtype(buffer)}
            for path, buffer in model.named_buffers()
        ]
        models.append(
            {
                "name": model_name,
                "type": class_name(model),
                "modules": modules,
                "parameters": parameters,
                "buffers": buffers,
            }
        )
    document = {
        "framework": "torch",
        "models": models,
        "optimizers": [
            {
                "number": number,
                "name": name,
                "type": type(optimizer).__name__,
                "defaults": _numbers(optimizer.defaults),
                "scheduled": _has_scheduler(optimizer),
                "device": _device_of(optimizer),
                "groups": [
                    {"settings": _numbers(group), "parameters": len(group["params"])}
                    for group in optimizer.param_groups
                ],
                "foreign": sum(
                    id(p) not in called for group in optimizer.param_groups for p in group["params"]
                ),
                "shared": sum(
                    holders[id(p)] > 1 for group in optimizer.param_groups for p in group["params"]
                ),
            }
            for number, name, optimizer in optimizers
        ],
        "schedulers": [_scheduler(one, numbers, called) for one in schedulers],
        "losses": [{"type": kind, "settings": settings} for kind, settings in losses],
    }
    return json.dumps(document, default=str)


def _shape(tensor: Any) -> list[int] | None:
    try:
        return [int(size) for size in tensor.shape]
    except (
        AttributeError,
        TypeError,
        ValueError,
        RuntimeError,
    ):  # the last of a lazy one that has no values yet
        return None


def _dtype(tensor: Any) -> str:
    return str(getattr(tensor, "dtype", "")).removeprefix("torch.")
