"""Notices where Luff reads memory of a tensor that says it is on an accelerator as if it were the host's. On a GPU that
would end the process; tensors that only say so have memory that can be read.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import torch

__all__ = ["HostReads"]
#: Copies arrays of NumPy, whose addresses may once have been a tensor's.
LEFT_OUT = {"luff.torch.loop._writer"}


class HostReads:
    """Takes the place of what reads memory in the modules of Luff for PyTorch."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._elsewhere: dict[int, bool] = {}  # address -> whether the tensor that was asked for it says so

    def begin(self, replace: Any = setattr) -> None:
        """Looks from now on; `replace` sets an attribute."""
        address_of: Any = torch._C.TensorBase.data_ptr  # type: ignore[attr-defined]

        def data_ptr(tensor: Any) -> int:
            address = int(address_of(tensor))
            self._elsewhere[address] = bool(tensor.is_cuda)
            return address

        replace(torch.Tensor, "data_ptr", data_ptr)
        for name, module in list(sys.modules.items()):
            if not name.startswith("luff.torch.") or name in LEFT_OUT:
                continue
            if hasattr(module, "array_view"):
                replace(module, "array_view", self._checked(name, module.array_view))
            if getattr(module, "ctypes", None) is ctypes:
                replace(module, "ctypes", _Ctypes(self, name))

    def _checked(self, where: str, array_view: Any) -> Any:
        def view(tensor: Any, kind: Any) -> Any:
            if tensor.is_cuda and tensor.numel():
                self.found.append(f"{where} reads {tuple(tensor.shape)}")
            return array_view(tensor, kind)

        return view

    def reads(self, where: str, address: int, size: int) -> None:
        if size and self._elsewhere.get(address):
            self.found.append(f"{where} reads {size} bytes")


class _Ctypes:
    """The module `ctypes`, whose `string_at` is checked."""

    def __init__(self, reads: HostReads, where: str) -> None:
        self._reads, self._where = reads, where

    def string_at(self, address: int, size: int = -1) -> bytes:
        self._reads.reads(self._where, address, size)
        return ctypes.string_at(address, size)

    def __getattr__(self, name: str) -> Any:
        return getattr(ctypes, name)
