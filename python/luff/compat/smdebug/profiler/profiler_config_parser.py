"""The profiler's configuration: nothing is profiled."""

from __future__ import annotations

__all__ = ["ProfilerConfigParser"]


class ProfilerConfigParser:
    """Says that profiling is off."""

    profiling_enabled = False

    def load_config(self) -> None:
        """Without meaning."""
