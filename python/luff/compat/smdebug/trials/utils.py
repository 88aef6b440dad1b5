"""Opens trials."""

from __future__ import annotations

import os
from typing import Any

from luff.compat.smdebug.core.access_layer.s3 import no_s3
from luff.compat.smdebug.trials.local_trial import LocalTrial
from luff.compat.smdebug.trials.luff_trial import LuffTrial
from luff.compat.smdebug.trials.profiler_trial import ProfilerTrial

__all__ = ["create_trial"]


def create_trial(
    path: str,
    name: str | None = None,
    profiler: bool = False,
    output_dir: str | None = None,
    **kwargs: Any,
) -> Any:
    """Opens what a hook wrote, or a run that Luff recorded.

    Parameters
    ----------
    path
        Directory of the trial.
    name
        Name of the trial; by default the last part of the path.
    profiler
        Opens what a profiler recorded of a job, as a `ProfilerTrial`, for the profiler's rules.
    output_dir
        Of the profiler: where its rules write reports; by default nowhere.
    **kwargs
        ``range_steps=(start, end)``: global steps, half open. ``cache=True``: keep values in memory.
    """
    path = os.path.expanduser(os.fspath(path).strip())
    if path.startswith("s3://"):
        no_s3(path)
    name = name or os.path.basename(path.rstrip("/"))
    if profiler:
        return ProfilerTrial(name, path, output_dir)
    if os.path.exists(os.path.join(path, "run.json")):
        return LuffTrial(name, path, **kwargs)
    return LocalTrial(name, path, **kwargs)
