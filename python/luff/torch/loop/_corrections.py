"""Implements ``lower_lr=True`` for PyTorch trainings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

__all__ = ["lower_lr"]

_STARTS = ("initial_lr", "max_lr", "min_lr")  # values in a group from which schedulers compute rates


def _scaled(holder: Any, key: Any, factor: float, seen: set[int]) -> None:
    value = holder[key]
    if isinstance(value, torch.Tensor):
        if id(value) not in seen:  # a scheduler may hold the same tensor as the group
            seen.add(id(value))
            with torch.no_grad():
                value.mul_(factor)
    elif isinstance(value, int | float):
        holder[key] = value * factor


def lower_lr(optimizers: Iterable[Any], schedulers: Iterable[Any], factor: float) -> None:
    """Multiplies all learning rates by `factor`, and the values from which schedulers compute them.

    Otherwise the next step of a scheduler that computes rates from their initial values (LambdaLR, OneCycleLR) would
    restore the old rates.
    """
    done = 0
    seen: set[int] = set()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if "lr" in group:
                _scaled(group, "lr", factor, seen)
                done += 1
            for key in _STARTS:
                if key in group:
                    _scaled(group, key, factor, seen)
    for scheduler in schedulers:
        _lower_scheduler(scheduler, factor, seen)
    if not done:
        raise LookupError("Luff knows no optimizer with a learning rate")


def _lower_scheduler(scheduler: Any, factor: float, seen: set[int]) -> None:
    if id(scheduler) in seen:
        return
    seen.add(id(scheduler))
    for name in ("base_lrs", "max_lrs", "min_lrs", "_last_lr"):
        values = getattr(scheduler, name, None)
        if isinstance(values, list):
            for i in range(len(values)):
                _scaled(values, i, factor, seen)
    least = getattr(scheduler, "eta_min", None)
    if isinstance(least, int | float):
        scheduler.eta_min = least * factor
    for inner in getattr(scheduler, "_schedulers", None) or ():
        _lower_scheduler(inner, factor, seen)
