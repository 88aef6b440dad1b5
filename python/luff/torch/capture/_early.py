"""Keeps what modules and losses take and return before the session is open.

Under ``luff run`` the first backward pass opens the session, since only then is it clear that the process trains. By
then the tensors of the forward pass before it are gone or were changed in place. They are copied, up to a bound, and
captured as soon as the session is open.
"""

from __future__ import annotations

import ctypes
import json
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from luff._codes import NO_ID, GapReason
from luff.torch.capture._gradients import Watch
from luff.torch.capture._memory import bytes_spanned, is_readable
from luff.torch.capture._modules import ModuleCapture, tensors_in
from luff.torch.capture._names import topmost
from luff.torch.capture._places import Places
from luff.torch.capture._recorder import Recorder

__all__ = ["EarlyValues", "KeptValue", "asks_for_attention", "asks_for_gradients", "asks_for_values"]

_MAX_BYTES = 64 << 20  # of all copies
_MAX_VALUES = 4096
_WORDS = (
    "input", "inputs", "output", "outputs", "predictions", "label", "labels", "loss_input", "all", "include",
    "include_regex", "tensor_names",
)  # fmt: skip


def asks_for_values(config: Mapping[str, Any]) -> bool:
    """Returns False if no collection of the configuration can take inputs, outputs or labels."""
    text = json.dumps(config, default=str)
    return bool(config.get("save_all")) or any(f'"{word}"' in text for word in _WORDS)


def asks_for_gradients(config: Mapping[str, Any]) -> bool:
    """Returns False if no collection of the configuration can take gradients of inputs or outputs."""
    text = json.dumps(config, default=str)
    return any(word in text for word in ("put_gradient", '"gradient/'))


def asks_for_attention(config: Mapping[str, Any]) -> bool:
    """Returns False if no collection of the configuration can take weights of attention."""
    text = json.dumps(config, default=str)
    return '"attention"' in text or '"attention/' in text


class KeptValue:
    """A copy of a tensor's memory, or the reason why there is none."""

    __slots__ = ("address", "data", "dtype", "reason", "shape", "strides")

    def __init__(self, tensor: Any, size: int, reason: GapReason = GapReason.NONE) -> None:
        self.reason = int(reason)
        if reason is GapReason.NONE:
            self.dtype, self.shape, self.strides = tensor.dtype, tensor.shape, tensor.stride()
            self.data = np.frombuffer(ctypes.string_at(tensor.data_ptr(), size), np.uint8) if size else None
            self.address = 0 if self.data is None else int(self.data.__array_interface__["data"][0])


class EarlyValues:
    """The values of one step. Takes the place of a `ModuleCapture` until the session is open.

    Parameters
    ----------
    values, gradients
        Whether values are kept, and whether gradients are watched.
    """

    captures = True
    times = None

    def __init__(self, values: bool = True, gradients: bool = False) -> None:
        self._of_values, self._of_gradients = values, gradients
        self._calls: list[tuple[Any, int, list[tuple[KeptValue | None, Watch | None]]]] = []
        self._places = Places()
        self._losses: list[tuple[str, int, str, KeptValue]] = []
        self._hidden: set[GapReason] = set()
        self._alive: dict[int, tuple[Any, int, KeptValue]] = {}
        self._bytes = 0
        self._values = self._dropped = 0
        self.forwards = 0  # outermost calls

    def __del__(self) -> None:
        self._let_go()

    def before(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outermost: bool = False
    ) -> None:
        """Called when a module is about to run; `outermost` if no other module calls it."""
        self._places.before(module)
        gradients = self._of_gradients and (outermost or topmost(module) is module)
        tensors = tensors_in((args, kwargs), -1) if kwargs else tensors_in(args)
        self._keep_all(module, tensors, 0, gradients)

    def after(self, module: Any, output: Any) -> None:
        """Called when a module has returned."""
        self._places.after(module)
        self._keep_all(module, tensors_in(output), 1, self._of_gradients)

    def hidden(self, reason: GapReason) -> None:
        """Called when modules inside a compiled or scripted graph are not visible."""
        self._hidden.add(reason)

    def loss(self, name: str, role: int, kind: str, tensor: Any) -> None:
        """Keeps what a loss takes; `name`, `role` and `kind` as for `Recorder.number`."""
        if not self._of_values:
            return
        if self._values < _MAX_VALUES:
            self._losses.append((name, role, kind, self._keep(tensor)))
        else:
            self._dropped += 1

    def capture(self, modules: ModuleCapture, recorder: Recorder, roles: int) -> None:
        """Captures what is due in the step that the session has begun, and lets go of everything. `roles`: as
        `ModuleCapture.begin_step` takes them.
        """
        due = modules.begin_step(roles)
        for reason in self._hidden:
            modules.hidden(reason)
        modules.places = self._places
        if due:
            for reference, side, values in self._calls:
                module = reference()
                if module is not None:
                    modules.capture_kept(module, values, side)
        for name, role, kind, value in self._losses:
            modules.kept(recorder.number(name, role, "", kind), value)
        if self._dropped:
            recorder.session.gap(NO_ID, int(GapReason.NOT_SEEN), 0, self._dropped)
        self._let_go()

    def _let_go(self) -> None:
        for _, _, values in self._calls:
            for _, watch in values:
                if watch is not None and watch.owner is None:
                    watch.end()
        self._calls.clear()
        self._losses.clear()
        self._alive.clear()

    # Inside ----------------------------------------------------------------------------------------------------

    def _keep_all(self, module: Any, tensors: Iterator[Any], side: int, gradients: bool) -> None:
        if not (gradients or self._of_values):
            return
        if self._values >= _MAX_VALUES:
            self._dropped += 1
            return
        values = [
            (self._keep(tensor) if self._of_values else None, self._watch(tensor) if gradients else None)
            for tensor in tensors
        ]
        if values:
            self._calls.append((weakref.ref(module), side, values))

    def _watch(self, tensor: Any) -> Watch:
        self._values += 1
        return Watch(tensor)

    def _keep(self, tensor: Any) -> KeptValue:
        self._values += 1
        try:
            if is_readable(tensor) and not tensor.is_neg() and not tensor.is_conj():
                return self._copied(tensor)
        except RuntimeError:  # a tensor inside a transform (vmap, grad) has no memory
            pass
        return KeptValue(tensor, 0, GapReason.UNSUPPORTED)

    def _copied(self, tensor: Any) -> KeptValue:
        version = -1 if tensor.is_inference() else tensor._version
        known = self._alive.get(id(tensor))
        if known is not None and known[0]() is tensor and known[1] == version >= 0:
            return known[2]
        size = bytes_spanned(tensor)
        first = tensor.storage_offset() * tensor.element_size()
        if size and (not tensor.data_ptr() or tensor.untyped_storage().nbytes() < first + size):
            return KeptValue(
                tensor, 0, GapReason.UNSUPPORTED
            )  # zeros without memory, or memory that was given back
        if self._bytes + size > _MAX_BYTES:
            return KeptValue(tensor, 0, GapReason.NOT_SEEN)
        kept = KeptValue(tensor, size)
        self._bytes += size
        self._alive[id(tensor)] = (weakref.ref(tensor), version, kept)
        return kept
