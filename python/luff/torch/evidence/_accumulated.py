"""Gradient accumulation: the factor by which the loss of each backward pass of an update was multiplied.

Without accumulation it costs one count per backward pass: after `_ALONE` updates of a single pass, the factor of an
update's first pass is only determined again once several passes were seen.
"""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from types import CodeType, FrameType, FunctionType
from typing import Any
from zlib import crc32

import numpy as np
import torch

from luff.torch.capture._memory import address_of, gradient_of, is_readable
from luff.torch.evidence import _loss_graph
from luff.torch.evidence._events import WaitingEvents
from luff.torch.evidence._losses import Losses
from luff.torch.evidence._step import Step

__all__ = ["Accumulated", "first_bytes", "is_multiple"]

_PASSES = 256  # in one update
_WINDOWS = 4  # updates recorded from the start; after them only those at powers of two
_LOOK = 512  # elements of a gradient, or of a loss's target, that are compared
_TOLD = 16  # passes of an update whose factors and targets are told
_PENDING = 8
_ALONE = 64
_FRAMES, _FUNCTIONS = 16, 256  # around an update, and of a script, that are looked at
_PARALLEL = 1e-6  # of a squared cosine
_KINDS = {torch.float32: np.float32, torch.float64: np.float64}


class Accumulated(WaitingEvents):
    """Follows backward passes between updates, under the hook's lock and guard."""

    def __init__(self) -> None:
        super().__init__()
        self.weighted = False  # the current backward pass was given a gradient of the loss
        self._factors: list[float | None] = []
        #: Of each pass but the process's first, whether others follow is known: a hash of the loss's target, its size.
        self._targets: list[tuple[int, int] | None] = []
        self.count = 0
        self._added = True  # whether each pass found the gradient of the previous one
        self._last = b""  # bytes of a gradient after the last backward pass
        self._weights = b""  # and of weights
        self._moved = False  # these were others at the next pass, or at the update
        self._windows = 0
        self._alone = 0  # number of consecutive updates with a single pass
        self._watched: Any = None  # a parameter
        self._models: Any = None  # returns the models

    def backward_begins(self, step: Step | None, roots: list[Any], losses: Losses, models: Any) -> None:
        """Called when a backward pass begins; its graph still exists."""
        self.count += 1
        if self.count == 1 and self._alone >= _ALONE:
            self._factors.append(None)
            return
        if self.count > _PASSES or not self._due():
            return
        factor = None
        if not self.weighted:
            factor = self._factor(step, roots, losses.last_scaled, losses.readable(step))
        self._factors.append(factor)
        if self.count > 1 or self._windows:
            target = None if factor is None else _target(roots[0])
            # The last one takes the place of those before.
            self._targets = [*self._targets[: _TOLD - 1], target]
        self._models = models
        if self.count > 1:
            if self._watched is None:
                self._watched = _first_matrix(models())
            gradient = first_bytes(getattr(self._watched, "grad", None))
            self._added = self._added and bool(gradient) and any(gradient)
            self._moved = self._moved or self._weights != self._read_weights()

    def backward_ended(self) -> None:
        """Called when a backward pass has ended."""
        if not 1 < self.count <= _PASSES or not self._due():
            return
        if self._watched is None and self._models is not None:  # gradients were cleared before the pass
            self._watched = _first_matrix(self._models())
        if self._watched is not None:
            self._last = first_bytes(self._watched.grad)
            self._weights = self._read_weights(anew=True)

    def update_begins(self, number: int) -> None:
        """Called when an optimizer is about to use the accumulated gradients."""
        if self.count > 1 and self._due() and self.count <= _PASSES and len(self.waiting) < _PENDING:
            gradient = getattr(self._watched, "grad", None)
            now = first_bytes(gradient)
            self._moved = self._moved or self._weights != self._read_weights()
            untouched = bool(self._last) and self._last == now
            if len(self._targets) < min(self.count, _TOLD):
                self._targets.insert(0, None)
            multiple = untouched or is_multiple(self._last, now, getattr(gradient, "dtype", None))
            self.waiting.append(
                {
                    "kind": "accumulation",
                    "optimizer": number,
                    "passes": self.count,
                    "factors": self._factors[:_TOLD],
                    "targets": [None if one is None else one[0] for one in self._targets],
                    "sizes": [None if one is None else one[1] for one in self._targets],
                    "added": self._added,
                    "untouched": untouched,
                    "multiple": multiple,
                    "moved": self._moved,
                    "reads": _reads_gradients(sys._getframe(1)),
                }
            )

    def update_ended(self) -> None:
        """Called when the optimizer has used them."""
        if self.count > 1:
            self._windows += 1
            self._alone = 0
            self._added, self._last, self._watched = True, b"", None
            self._targets = []
            self._weights, self._moved = b"", False
        else:
            self._alone += 1
        self.count = 0
        self._factors.clear()

    def _read_weights(self, anew: bool = False) -> bytes:
        """Returns bytes of the first matrix and of the last parameter, of which steps by hand move one at least."""
        if not anew and not self._weights:
            return b""
        models = () if self._models is None else self._models()
        last = deque((parameter for model in models for parameter in model.parameters()), maxlen=1)
        return first_bytes(self._watched) + b"".join(map(first_bytes, last))

    def _due(self) -> bool:
        return self._windows < _WINDOWS or not self._windows & (self._windows - 1)

    @staticmethod
    def _factor(step: Step | None, roots: list[Any], last_scaled: Any, saved_ok: bool) -> float | None:
        """Returns what the loss was multiplied by before the backward pass; None if unknown."""
        if len(roots) != 1 or not saved_ok or step is None:
            return None
        root = roots[0]
        if not isinstance(root, torch.Tensor) or root.numel() != 1:
            return None
        if last_scaled is not None and last_scaled[0]() is root:
            return None  # multiplied by a gradient scaler
        outputs = [reference() for reference in step.loss_outputs]
        outputs += [loss.output() for loss in step.function_losses]
        if any(output is root for output in outputs):
            return 1.0
        node = _loss_graph.analyse(root, saved_ok, False)
        made = {id(output.grad_fn) for output in outputs if output is not None}
        if node.base is not None and (node.kind or id(node.base) in made):
            if node.factor == 1.0:
                return 1.0
            return node.factor * (node.count or 1.0)  # a sum over targets counts as their mean
        return None


def _reads_gradients(frame: FrameType | None) -> bool:
    """Returns whether functions that lead to an update, or what they call by name in their module, speak of `.grad`.

    What is cleared may then have been looked at.
    """
    codes: list[CodeType] = []
    functions: dict[str, list[CodeType]] = {}
    for _ in range(_FRAMES):
        if frame is None:
            break
        name = frame.f_globals.get("__name__", "")
        library = "site-packages" in frame.f_code.co_filename
        if not library and isinstance(name, str) and name.partition(".")[0] not in ("luff", "torch"):
            if codes and frame.f_code.co_name == "<module>":
                break  # it names all that there is
            if not codes:
                functions = _functions_of(frame.f_globals, name)
            codes.append(frame.f_code)
        frame = frame.f_back
    for code in codes:  # grows during the loop
        if "grad" in code.co_names:
            return True
        codes += [inner for inner in code.co_consts if type(inner) is CodeType]
        for called in code.co_names:
            codes += functions.pop(called, ())
    return False


def _functions_of(scope: dict[str, Any], module: str) -> dict[str, list[CodeType]]:
    """Returns the code of a module's functions and methods by their names."""
    found: dict[str, list[CodeType]] = {}
    for one in list(scope.values())[:_FUNCTIONS]:
        own = vars(one).values() if isinstance(one, type) else (one,)
        for each in own:
            if type(each) is FunctionType and each.__module__ == module:
                found.setdefault(each.__name__, []).append(each.__code__)
    return found


def _target(root: Any) -> tuple[int, int] | None:
    """Returns a hash of the first elements of the target of a loss, and how many it has; None if it is not known."""
    node = _loss_graph.analyse(root, True, False)
    try:
        target = getattr(node.node, "_saved_target", None) if node.node is node.base else None
    except RuntimeError:  # changed in place since, or freed
        return None
    data = first_bytes(target)
    return (crc32(data), int(target.numel())) if target is not None and data else None


def is_multiple(one: bytes, other: bytes, dtype: Any) -> bool:
    """Returns whether two gradients have the same direction, as before and after clipping."""
    kind = _KINDS.get(dtype)
    if kind is None or not one or len(one) != len(other):
        return False
    a, b = (np.frombuffer(data, kind).astype(np.float64) for data in (one, other))
    with np.errstate(all="ignore"):  # infinite ones
        product, squares = float(a @ b), float(a @ a) * float(b @ b)
    return product > 0 and product * product >= (1 - _PARALLEL) * squares


def _first_matrix(models: Any) -> Any:
    for model in models:
        for parameter in model.parameters():
            gradient = gradient_of(parameter) if parameter.dim() >= 2 else None
            if gradient is not None and is_readable(gradient):
                return parameter
    return None


def first_bytes(gradient: Any) -> bytes:
    """Returns the memory of the first elements; empty if it cannot be read."""
    if gradient is None or not is_readable(gradient) or not gradient.is_contiguous():
        return b""
    size = min(int(gradient.nbytes), _LOOK * gradient.element_size())
    address = address_of(gradient)
    return ctypes.string_at(address, size) if size and address else b""
