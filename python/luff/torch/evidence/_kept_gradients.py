"""Detects gradients that were not cleared: an update uses again what the previous one has used.

When an update ends, a few gradients are remembered: the tensor, its version, a hash of its first bytes. If a backward
pass finds the same gradients and adds to them, and the next update uses the sum, they were kept. Gradients that are
cleared, replaced or set in between do not count. So neither accumulation over several backward passes counts, nor
gradients left by another model's loss that are cleared before their own backward pass.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

from luff._hook import Session
from luff.torch.capture._memory import address_of, is_readable
from luff.torch.capture._recorder import OptimizerRecord

__all__ = ["KeptGradients"]

_PARAMETERS = 8  # of each optimizer
_HASHED = 4096  # bytes of each gradient that are hashed
_ALWAYS = 64  # updates examined from the start
_EVERY = 16  # and then every 16th
_OPTIMIZERS = 64
_ZEROS = bytes(_HASHED)


class _Gradient:
    """One gradient, as it was when it was last examined."""

    __slots__ = ("added", "address", "content", "gradient", "owner", "size", "version")

    def __init__(self, owner: Any, gradient: Any, content: int, size: int) -> None:
        self.owner = owner  # weak reference to the parameter
        self.gradient = weakref.ref(gradient)
        self.version = gradient._version
        self.address = gradient.data_ptr()
        self.content = content
        self.size = size
        self.added = False  # whether a backward pass has added to it

    def now(self) -> Any:
        """Returns the parameter's gradient if it is still the same tensor, else None."""
        parameter = self.owner()
        gradient = None if parameter is None else parameter.grad
        return gradient if gradient is not None and gradient is self.gradient() else None


class _Optimizer:
    """What is examined of one optimizer."""

    __slots__ = ("gradients", "held", "owners", "updates")

    def __init__(self) -> None:
        self.held = -1
        self.owners: list[Any] = []
        self.gradients: list[_Gradient] = []
        self.updates = 0


class KeptGradients:
    """Examines the gradients of a hook's optimizers, under its lock and guard."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._optimizers: dict[int, _Optimizer] = {}  # by number
        self.marked: dict[int, _Optimizer] = {}  # optimizers whose gradients may be kept
        self._intact: list[_Gradient] = []  # gradients found unchanged when the current backward pass began

    def update_ended(self, record: OptimizerRecord, optimizer: Any) -> None:
        """Remembers gradients that an optimizer has used."""
        watched = self._optimizers.get(record.number)
        if watched is None:
            if len(self._optimizers) >= _OPTIMIZERS:
                return
            watched = self._optimizers[record.number] = _Optimizer()
        watched.updates += 1
        if watched.updates > _ALWAYS and watched.updates % _EVERY:
            return
        if watched.held != record.held or not watched.owners:
            self._choose(watched, record, optimizer)
        watched.gradients = []
        for reference in watched.owners:
            parameter = reference()
            gradient = None if parameter is None else parameter.grad
            if gradient is not None:
                self._remember(watched, reference, gradient)
        if watched.gradients:
            self.marked[record.number] = watched

    def backward_begins(self) -> None:
        """Finds the gradients that are unchanged when a backward pass begins."""
        if self._intact:
            self._intact = []
        for number, watched in list(self.marked.items()):
            kept = []
            for known in watched.gradients:
                gradient = known.now()
                if (
                    gradient is not None
                    and gradient._version == known.version
                    and gradient.data_ptr() == known.address
                    and (known.added or self._session.hash(known.address, known.size) == known.content)
                ):
                    kept.append(known)
            watched.gradients = kept
            self._intact.extend(kept)
            if not kept:
                del self.marked[number]

    def backward_ended(self) -> None:
        """Finds the gradients to which a backward pass has added."""
        for known in self._intact:
            gradient = known.now()
            if gradient is not None and gradient._version != known.version:
                known.version = gradient._version
                known.added = True
        self._intact = []

    def update_begins(self, record: OptimizerRecord) -> int:
        """Returns how many kept gradients an optimizer is about to use; counted once for each examined update."""
        watched = self.marked.pop(record.number, None)
        if watched is None:
            return 0
        count = sum(1 for known in watched.gradients if known.added and known.now() is not None)
        watched.gradients = []
        return count

    # Inside ----------------------------------------------------------------------------------------------------

    def _choose(self, watched: _Optimizer, record: OptimizerRecord, optimizer: Any) -> None:
        """Chooses a few parameters that have a gradient, spread evenly over all."""
        having = [
            parameter
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None and _usable(parameter.grad)
        ]
        count = min(len(having), _PARAMETERS)
        watched.owners = [weakref.ref(having[index * len(having) // count]) for index in range(count)]
        watched.held = record.held

    def _remember(self, watched: _Optimizer, owner: Any, gradient: Any) -> None:
        if not _usable(gradient):
            return
        address, size = gradient.data_ptr(), min(gradient.nbytes, _HASHED)
        if ctypes.string_at(address, size) != _ZEROS[:size]:  # zeros may have been cleared
            content = self._session.hash(address, size)
            watched.gradients.append(_Gradient(owner, gradient, content, size))


def _usable(gradient: Any) -> bool:
    return bool(
        is_readable(gradient) and gradient.nbytes and gradient.is_contiguous() and address_of(gradient)
    )
