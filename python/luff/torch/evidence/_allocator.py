"""What PyTorch's allocator of a device has done so far: the document ``allocator``, every 64 TRAIN steps."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

import torch

from luff._hook import Session

__all__ = ["EVERY", "AllocatorLooks"]

EVERY = 64  # TRAIN steps of a training
_MOST = 16  # looks that the document holds
_COUNTS = {"retries": "num_alloc_retries", "ooms": "num_ooms"}
_BYTES = {"reserved": "reserved_bytes", "active": "active_bytes"}


class AllocatorLooks:
    """Reads the counters of the device that is current. Nothing on a CPU.

    A look takes the allocator's lock, makes no call of the driver, and waits for no kernel.
    """

    def __init__(self) -> None:
        self._looks: deque[dict[str, int]] = deque(maxlen=_MOST)
        self._count = 0
        self._failed = self._broken = False

    def look(self, session: Session, step: int) -> None:
        """Looks, at a TRAIN step of the training. Written while allocations fail, else ever more seldom."""
        if self._broken:
            return
        try:
            counters = _counters()
            if counters is None:
                return
            one = {"step": step, **counters}
        except Exception:  # another allocator, or another version of torch
            self._broken = True
            return
        before = self._looks[-1] if self._looks else None
        self._looks.append(one)
        self._count += 1
        failed, ended = (
            before is not None and any(one[name] != before[name] for name in _COUNTS),
            self._failed,
        )
        self._failed = failed
        if failed or ended or self._count & (self._count - 1) == 0:
            session.set_document("allocator", json.dumps({"looks": list(self._looks)}))


def _counters() -> dict[str, int] | None:
    """Returns the counters of the current device; None where there is none."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    device = torch.cuda.current_device()
    told: dict[str, Any] = torch.cuda.memory_stats_as_nested_dict(device)
    found = {"device": int(device)}
    found |= {name: int(told[key]) for name, key in _COUNTS.items()}
    return found | {name: int(told[key]["all"]["current"]) for name, key in _BYTES.items()}
