"""What only the phases of a step need: waits for data, checkpoints, collections of garbage.

Waits count in the thread that waits; in the processes that load data nothing is recorded.
"""

from __future__ import annotations

import gc
from typing import Any

import torch

from luff._codes import Phase
from luff._core import collecting, enter_phase, leave_phase
from luff._patch import Method, once, unseen, wrap
from luff.torch.patches._registry import hooks

__all__ = ["install"]

_DATA_WAIT, _DATA_START, _CHECKPOINT = (
    int(phase) for phase in (Phase.DATA_WAIT, Phase.DATA_START, Phase.CHECKPOINT)
)


@once
def install() -> None:
    """Wraps PyTorch's loaders and `torch.save`, and listens to the collector; once per process."""
    from torch.utils.data import dataloader

    wrap(dataloader._BaseDataLoaderIter, "__next__", _waiting)
    wrap(dataloader.DataLoader, "__iter__", _starting)
    wrap(torch.serialization, "save", _saving, also=(torch,))
    gc.callbacks.append(collecting)


def _waiting(original: Method) -> Method:
    def __next__(self: Any) -> Any:
        if not hooks:
            return original(self)
        enter_phase(_DATA_WAIT)
        try:
            return original(self)
        finally:
            leave_phase(_DATA_WAIT)

    return __next__


def _starting(original: Method) -> Method:
    def __iter__(self: Any) -> Any:
        if not hooks:
            return original(self)
        enter_phase(_DATA_START)
        try:
            iterator = original(self)
        finally:
            leave_phase(_DATA_START)
        hook = hooks.current()
        if hook is not None and hook.live and not hook.asleep:
            hook.guarded("loader", hook.machine.loaders.started, self)
        return iterator

    return __iter__


def _saving(original: Method) -> Method:
    def save(*args: Any, **kwargs: Any) -> Any:
        if not hooks:
            return original(*args, **kwargs)
        enter_phase(_CHECKPOINT)
        try:
            return original(*args, **kwargs)
        finally:
            leave_phase(_CHECKPOINT)

    return save


unseen(globals())
