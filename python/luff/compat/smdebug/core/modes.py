"""Modes of the training."""

from __future__ import annotations

import enum

__all__ = ["ALLOWED_MODES", "ALLOWED_MODE_NAMES", "ModeKeys"]


class ModeKeys(enum.Enum):
    """What a step is for; GLOBAL counts the steps of all modes."""

    TRAIN = 1
    EVAL = 2
    PREDICT = 3
    GLOBAL = 4


ALLOWED_MODES = list(ModeKeys)
ALLOWED_MODE_NAMES = [mode.name for mode in ModeKeys]
