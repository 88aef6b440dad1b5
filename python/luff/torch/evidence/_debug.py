"""Aids for finding faults that are on: the document ``debug``, looked at twice in a training."""

from __future__ import annotations

import json
import os
from typing import Any

import torch

from luff._hook import Session

__all__ = ["LOOKS", "DebugSettings"]

LOOKS = (20, 200)  # TRAIN steps of a training
#: Environment variables that slow a device, and the values that do.
_DEVICE = {
    "CUDA_LAUNCH_BLOCKING": ("1",),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": ("1",),
}
_PROFILING = getattr(torch._C._autograd, "_profiler_enabled", lambda: False)


class DebugSettings:
    """Tells the session what is on at each look; nothing where nothing ever was."""

    def __init__(self) -> None:
        self._looks: list[dict[str, Any]] = []

    def look(self, session: Session, step: int) -> None:
        """Looks, at a TRAIN step of the training."""
        on = _settings_on()
        self._looks.append({"step": step, "on": on})
        if any(look["on"] for look in self._looks):
            session.set_document("debug", json.dumps({"looks": self._looks}))


def _settings_on() -> list[str]:
    found = []
    if torch.is_anomaly_enabled():
        found.append("torch.autograd.set_detect_anomaly(True)")
    if _PROFILING():
        found.append("torch.profiler")
    environment = os.environ
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found += [
            f"{name}={environment[name]}" for name, slow in _DEVICE.items() if environment.get(name) in slow
        ]
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        level = environment.get("TORCH_DISTRIBUTED_DEBUG", "")
        if level.upper() == "DETAIL":
            found.append(f"TORCH_DISTRIBUTED_DEBUG={level}")
    return found
