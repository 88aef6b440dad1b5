"""Models, their parameters and optimizers: names, roles, and the run's document "model"."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mxnet import gluon

from luff._codes import Role
from luff._weak import Identities

__all__ = ["Models", "Parameter", "describe", "torch_name"]

_MAX_BLOCKS = 50_000
_PLAIN = (bool, int, float, str)
_SAME = {  # MXNet's layers that rules know by torch's name
    "Dense": "Linear",
    "Conv1D": "Conv1d",
    "Conv2D": "Conv2d",
    "Conv3D": "Conv3d",
    "Conv1DTranspose": "ConvTranspose1d",
    "Conv2DTranspose": "ConvTranspose2d",
    "Conv3DTranspose": "ConvTranspose3d",
    "HybridSequential": "Sequential",
    "HybridLambda": "Lambda",
    "Swish": "SiLU",
}
_ACTIVATIONS = {
    "relu": "ReLU",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "softrelu": "Softplus",
    "softsign": "Softsign",
}
_OF_BLOCKS = {  # attributes of every block, which say nothing of what it computes
    *("name", "prefix", "empty_prefix", "params", "scope", "children", "reg_params", "callback", "active"),
    *("forward_hooks", "forward_pre_hooks", "cached_graph", "cached_op", "cached_op_args", "flags"),
    *("out_format", "in_format", "backend", "backend_opts", "monitor_all"),
}
_LOSSES = {
    "SigmoidBinaryCrossEntropyLoss": "BCEWithLogitsLoss",
    "L1Loss": "L1Loss",
}


def torch_name(block: Any) -> str:
    """Returns the type of a block, by torch's name if torch has the same thing."""
    kind = type(block).__name__
    if isinstance(block, gluon.nn.Activation):
        return _ACTIVATIONS.get(getattr(block, "_act_type", ""), kind)
    if isinstance(block, gluon.loss.Loss):
        return loss_name(block)
    return _SAME.get(kind, kind) if type(block).__module__.startswith("mxnet.") else kind


def loss_name(block: Any) -> str:
    """Returns the type of a loss, by torch's name if it computes the same from the same arguments."""
    kind = type(block).__name__
    if not type(block).__module__.startswith("mxnet."):
        return kind
    if isinstance(block, gluon.loss.SoftmaxCrossEntropyLoss):
        if not block._sparse_label or block._axis not in (-1, 1):
            return kind
        return "NLLLoss" if block._from_logits else "CrossEntropyLoss"
    if isinstance(block, gluon.loss.SigmoidBinaryCrossEntropyLoss) and block._from_sigmoid:
        return "BCELoss"
    return _LOSSES.get(kind, kind)


@dataclass
class Parameter:
    """One parameter of a model, with the numbers of its tensors."""

    parameter: Any
    name: str
    role: int
    owner: str  # name of its block
    kind: str  # type of its block
    value: int = -1
    gradient: int = -1

    @property
    def data(self) -> Any:
        """Value in the first context; None before it is initialized."""
        held = self.parameter._data
        return None if held is None else held[0]

    @property
    def grad(self) -> Any:
        """Gradient in the first context; None if there is none."""
        held = self.parameter._grad
        return None if held is None else held[0]


@dataclass
class Models:
    """The models of one hook. Blocks are referenced weakly."""

    roots: list[Any] = field(default_factory=list)  # weak references
    parameters: dict[int, Parameter] = field(default_factory=dict)  # by id
    numbers: Identities[int] = field(default_factory=Identities)  # of blocks, in the document
    inside: Identities[None] = field(default_factory=Identities)  # all blocks of the models
    numbered: int = 0

    def living(self) -> list[Any]:
        """Returns the models that still exist."""
        return [root for root in (reference() for reference in self.roots) if root is not None]

    def owns(self, block: Any) -> bool:
        """Returns whether a block is a model, or a part of one."""
        return block in self.inside

    def add(self, block: Any) -> None:
        """Adds a model; models that are parts of it are dropped."""
        parts = {id(part) for _, part in blocks_of(block)}
        self.roots = [
            reference for reference in self.roots if reference() is not None and id(reference()) not in parts
        ]
        self.roots.append(weakref.ref(block))
        self.refresh()

    def refresh(self) -> None:
        """Looks at the models again: blocks and parameters may have been added."""
        found: dict[int, Parameter] = {}
        self.inside.clear()
        for root in self.living():
            for _, block in blocks_of(root):
                self.inside[block] = None
                if block not in self.numbers:
                    self.numbers[block] = self.numbered
                    self.numbered += 1
                for key, parameter in block._reg_params.items():
                    if id(parameter) not in found:
                        known = self.parameters.get(id(parameter))
                        found[id(parameter)] = known or Parameter(
                            parameter, parameter.name, _role(key, parameter), block.name, torch_name(block)
                        )
            for name, parameter in root.collect_params().items():  # of blocks made of symbols
                if id(parameter) not in found:
                    known = self.parameters.get(id(parameter))
                    found[id(parameter)] = known or Parameter(parameter, name, _role(name, parameter), "", "")
        self.parameters = found


def blocks_of(root: Any) -> Iterator[tuple[str, Any]]:
    """Yields a block and those inside it, with their paths; each once."""
    seen: set[int] = set()
    waiting = [("", root)]
    while waiting and len(seen) < _MAX_BLOCKS:
        path, block = waiting.pop()
        if id(block) in seen:
            continue
        seen.add(id(block))
        yield path, block
        children = list(block._children.items())
        waiting += [(f"{path}.{key}" if path else str(key), child) for key, child in reversed(children)]


def _role(key: str, parameter: Any) -> int:
    if "running_" in key or "moving_" in key:
        return int(Role.BUFFER)
    if key.endswith("beta") or ("bias" in key and "weight" not in key):
        return int(Role.BIAS)
    return int(Role.WEIGHT) if parameter.grad_req != "null" or "weight" in key else int(Role.BUFFER)


# The document -------------------------------------------------------------------------------------------------


def settings_of(block: Any) -> dict[str, Any]:
    """Returns the numbers and words among a block's settings, also under the names that torch gives them."""
    found: dict[str, Any] = {}
    for key, value in [*list(vars(block).items())[:256], *(getattr(block, "_kwargs", None) or {}).items()]:
        key = key.lstrip("_")
        plain = _plain(value)
        if plain is not None and key not in _OF_BLOCKS:
            found[key] = plain
    if isinstance(block, gluon.nn.Dropout):
        found["p"] = found.get("rate", 0)
    elif isinstance(block, gluon.nn.Embedding):
        found["num_embeddings"], found["embedding_dim"] = found.get("input_dim"), found.get("output_dim")
    elif isinstance(block, gluon.rnn.rnn_layer._RNNLayer):
        found["batch_first"] = found.get("layout", "").startswith("N")
    return found


def _dtype(dtype: Any) -> str:
    try:
        return str(np.dtype(dtype).name)
    except TypeError:  # names that only MXNet knows
        return str(dtype)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    if isinstance(value, str):
        return value[:200]
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, tuple | list) and len(value) <= 16:
        items = [_plain(item) for item in value]
        return None if any(item is None for item in items) else items
    return None


def describe(models: Models, optimizers: Iterable[tuple[int, str, Any]], losses: dict[str, Any]) -> str:
    """Returns the document as JSON.

    Parameters
    ----------
    optimizers
        Tuples (number, name, trainer).
    losses
        Losses by name.
    """
    held: dict[int, str] = {}
    described = []
    for number, name, trainer in optimizers:
        for parameter in trainer._params:
            held.setdefault(id(parameter), name)
        described.append(
            {
                "number": number,
                "name": name,
                "type": type(trainer._optimizer).__name__,
                "defaults": {
                    key: _plain(value)
                    for key, value in vars(trainer._optimizer).items()
                    if _plain(value) is not None
                },
                "groups": [{"settings": {}, "parameters": len(trainer._params)}],
                "foreign": sum(id(p) not in models.parameters for p in trainer._params),
            }
        )
    document: dict[str, Any] = {
        "framework": "mxnet",
        "models": [],
        "optimizers": described,
        "schedulers": [],
        "losses": [
            {"type": torch_name(block), "mxnet_type": type(block).__name__, "settings": settings_of(block)}
            for block in losses.values()
        ],
    }
    for root in models.living():
        modules, parameters, buffers = [], [], []
        for path, block in blocks_of(root):
            entry = {
                "path": path,
                "type": torch_name(block),
                "mxnet_type": type(block).__name__,
                "name": block.name,
                "number": models.numbers.get(block),
                "settings": settings_of(block),
                "hybridized": bool(getattr(block, "_active", False)),
            }
            if type(block).__module__.startswith("mxnet.gluon."):
                entry["builtin"] = True
            modules.append(entry)
            for key, parameter in block._reg_params.items():
                known = models.parameters.get(id(parameter))
                if known is None or known.owner != block.name:
                    continue
                shape = [int(n) for n in parameter.shape] if parameter.shape else None
                record = {"path": f"{path}.{key}" if path else key, "name": known.name, "shape": shape}
                record["dtype"] = _dtype(parameter.dtype)
                if known.role == int(Role.BUFFER):
                    buffers.append(record)
                    continue
                record["requires_grad"] = parameter.grad_req != "null"
                record["grad_req"] = parameter.grad_req
                record["optimizer"] = held.get(id(parameter))
                record["group"] = 0 if id(parameter) in held else None
                parameters.append(record)
        document["models"].append(
            {
                "name": root.name,
                "type": type(root).__name__,
                "modules": modules,
                "parameters": parameters,
                "buffers": buffers,
            }
        )
    return json.dumps(document, default=str)
