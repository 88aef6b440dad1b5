"""Which program measures the machine beside a training."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from luff._hook import RunOptions

__all__ = ["sampler_of"]

# What the sampler needs of the environment: where libraries of drivers lie, and what tests put in their place.
_KEPT = ("PATH", "LD_LIBRARY_PATH", "LUFF_NVML", "LUFF_NVML_PLAN")


def sampler_of(options: RunOptions) -> tuple[str, list[str]]:
    """Returns the path of `luff`, which samples, and its environment; ``("", [])`` if nothing is to be started.

    Nothing is where a `luff run` on this machine has started one, where there is no `luff`, and with ``profile="off"``;
    never raises.
    """
    try:
        if options.config.get("profile") == "off" or _is_luff(options.supervisor):
            return "", []
        from luff._rules_beside import luff_command

        program = os.path.realpath(luff_command())
        return program, [f"{name}={os.environ[name]}" for name in _KEPT if name in os.environ]
    except Exception:  # no such program, or a configuration that is none: the session says so
        return "", []


def _is_luff(pid: int) -> bool:
    """Returns whether that `luff run` lives on this machine; on another one of a cluster it does not."""
    if pid <= 0:
        return False
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip() == "luff"
    except OSError:
        return False
