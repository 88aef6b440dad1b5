"""Luff for Ray: `luff.ray.tune` for trials of Ray Tune, `start` for processes of a cluster that judge all runs."""

from __future__ import annotations

from luff.ray._watch import Watch, start

__all__ = ["Watch", "start"]
