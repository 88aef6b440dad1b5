"""Writes the steps of a PyTorch training, and the tensors that its user saves."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch

from luff._arrays import Arrays, dtype_code
from luff._codes import GapReason, Role
from luff._hook import Session
from luff._step_writer import StepWriter
from luff.torch.capture._device import DeviceRows, Unchanged, is_on_device
from luff.torch.capture._memory import Layouts, address_of, bytes_spanned, is_readable, local_part

__all__ = ["TensorWriter"]

_SCALAR, _CUSTOM = int(Role.SCALAR), int(Role.CUSTOM)


class _Memory:
    """The memory of a tensor or an array. `holder` keeps it alive."""

    def __init__(self, layout: int, address: int, nbytes: int, holder: Any) -> None:
        self.layout = layout
        self.address = address
        self.nbytes = nbytes
        self._holder = holder

    def copy(self) -> _Memory:
        """Returns a copy of the values in memory that nothing else writes to."""
        copied = np.frombuffer(ctypes.string_at(self.address, self.nbytes), dtype=np.uint8)
        return _Memory(self.layout, int(copied.__array_interface__["data"][0]), self.nbytes, copied)


class _Elsewhere:
    """A tensor on an accelerator. Nothing of it is copied: a step that begins later reads it if it is still there."""

    def __init__(self, layout: int, tensor: Any) -> None:
        self.layout = layout
        self.nbytes = 0  # that it holds
        self.tensor = tensor  # None: kept for later
        self._later = Unchanged(tensor)

    def copy(self) -> _Elsewhere:
        """Returns what keeps neither the tensor nor its memory."""
        self.tensor = None
        return self

    def now(self) -> Any:
        """Returns the tensor; None if it is gone or was changed."""
        return self._later() if self.tensor is None else self.tensor


class _Memories(Arrays):
    """Captures memory with a known layout.

    Attributes
    ----------
    layouts
        Layouts of tensors.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.layouts = Layouts(session)

    def of(self, value: Any) -> _Memory | _Elsewhere:
        """Returns the memory of a tensor or an array.

        Raises
        ------
        TypeError
            If it cannot be read, or its dtype is not captured.
        """
        if isinstance(value, torch.Tensor):
            local, _ = local_part(value)
            if local is not None and is_on_device(local) and (address_of(local) or not local.numel()):
                if not self.session.reads_accelerators:
                    raise TypeError("a tensor on a GPU, which Luff reads only with accelerators=True")
                layout = self.layouts.find(local)
                if layout >= 0:
                    return _Elsewhere(layout, local)
            if local is None or not is_readable(local.data if local.requires_grad else local):
                raise TypeError("a tensor that is not dense memory of the CPU or of a GPU that Luff reads")
            address = address_of(local)
            if not address and local.numel():
                raise TypeError("a tensor without memory, or whose memory was given back")
            found = _Memory(self.layouts.find(local), address, bytes_spanned(local), local)
        else:
            array = np.ascontiguousarray(value)
            code = dtype_code(array.dtype)
            if code is None:
                raise TypeError(f"dtype {array.dtype} is not captured")
            layout, address = self.layout(code, array.shape), int(array.__array_interface__["data"][0])
            found = _Memory(layout, address, array.nbytes, array)
        if found.layout < 0:
            raise TypeError("a dtype that is not captured")
        return found

    def array(self, number: int, value: _Memory | _Elsewhere, dtype: int | None = None) -> bool:  # noqa: ARG002
        """Captures the due forms of a value."""
        if isinstance(value, _Elsewhere):
            tensor = value.now()
            if tensor is None:
                self.session.gap(number, int(GapReason.NOT_SEEN), self.session.due_tensor(number), 1)
            else:
                DeviceRows(self.session).one(number, value.layout, tensor)
            return True
        self.session.capture_one(number, value.layout, value.address)
        return True


class TensorWriter(StepWriter):
    """Writes steps. Saving a value opens the session, so that its name is known even if no step follows."""

    memories: _Memories

    def opened(self, session: Session) -> None:
        """Called when the session is open."""
        self.session = session
        self.arrays = self.memories = _Memories(session)

    def save_scalar(self, name: str, value: float) -> None:
        """Records a number in this step, or the next."""
        if self.session or self.open():
            super().save_scalar(name, value)
            self.number(f"scalar/{name}", _SCALAR)

    def save_array(self, name: str, value: Any) -> None:
        """Records a tensor or an array in this step, or the next."""
        if self.session or self.open():
            super().save_array(name, value)
            self.number(name, _CUSTOM)

    def readable(self, value: Any) -> _Memory | _Elsewhere:
        """Returns the memory of a tensor or an array; raises TypeError if it has none that can be captured."""
        return self.memories.of(value)
