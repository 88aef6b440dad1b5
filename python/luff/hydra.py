"""Luff for multiruns of Hydra: each job has a run of its own, and a stop ends the job alone.

::

    @hydra.main(version_base=None, config_path=".", config_name="config")
    @luff.hydra.watch()
    def main(config):
        return train(config)

Without it a stop ends the multirun, and the jobs that were to come never run.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from luff._plain import shown
from luff._trial_run import check_options, trial_run
from luff.errors import InvalidArgumentError

__all__ = ["watch"]

Task = Callable[[DictConfig], Any]
_FOLDERS = 2  # of a multirun's directory: Hydra's default ends with DATE/TIME
# What all jobs of a multirun see alike. Hydra keeps the time of the first look.
_ALIKE = re.compile(r"\$\{(?:now:[^${}]*|oc\.env:[^${}]*|hydra\.job\.name)\}")


def watch(*, sweep: str = "", stopped: Any = math.nan, **options: Any) -> Callable[[Task], Task]:
    """Returns a decorator for a task function, which stands below ``hydra.main``.

    In a multirun each job is a trial: its parameters are the job's overrides, and one that a finding stops returns
    `stopped`; Hydra goes on with the next. A single run is left as it is: ``luff run`` watches it, or `attach`. So is
    a call with a configuration (``main(config)``).

    Parameters
    ----------
    sweep
        Name of the sweep; by default the job's (``hydra.job.name``) and the last folders of the multirun's directory
        (``hydra.sweep.dir``), which Hydra names after the time: one multirun is one sweep. Of a directory that
        depends on the job (``${hydra.job.override_dirname}``), only what stands above that.
    stopped
        What a stopped job returns; a sweeper that minimizes takes ``math.inf``.
    **options
        As for `luff.trial_run`: ``rules``, ``on_finding``, ``collections`` and settings of capture.

    Raises
    ------
    InvalidArgumentError
        If an option is wrong, or the decorated object is no function.
    """
    check_options(options, sweep, "luff.hydra.watch")

    def decorate(task: Task) -> Task:
        if not callable(task):
            raise InvalidArgumentError(
                f"luff.hydra.watch() decorates {shown(task)}; expected a task function"
            )

        @functools.wraps(task)
        def watched(config: DictConfig) -> Any:
            if not HydraConfig.initialized():  # called with a configuration, as tests do
                return task(config)
            job = HydraConfig.get()
            if job.mode != RunMode.MULTIRUN:
                return task(config)
            name = f"{job.job.name}-{job.job.num}"
            with trial_run(name, _overrides(config, job), sweep or _sweep(job), on_stop="return", **options):
                return task(config)
            return stopped  # a stop has ended the block

        return watched

    return decorate


def _sweep(job: Any) -> str:
    """Names the multirun of a job, alike for all of them, also where a sweeper launches them in turns."""
    written = str(OmegaConf.to_container(job.sweep, resolve=False)["dir"])
    folders = _folders(job.sweep.dir)
    # The first interpolation that may differ from job to job ends it, with the folder that it is in.
    other = _ALIKE.sub(lambda alike: "x" * len(alike[0]), written).find("${")
    if other >= 0:
        above = written[: written.rfind("/", 0, other) + 1]
        # Resolved anew, a time may be another one: it tells how many folders they are.
        anew = OmegaConf.create({"dir": above, "hydra": {"job": {"name": job.job.name}}})
        folders = folders[: len(_folders(anew.dir))]
    return "-".join([job.job.name, *folders[-_FOLDERS:]])


def _folders(path: object) -> list[str]:
    return [part for part in str(path).split("/") if part not in ("", ".", "..")]


def _overrides(config: DictConfig, job: Any) -> dict[str, Any]:
    """Returns what the job was told on its command line: numbers, truth values and texts by name."""
    told: dict[str, Any] = {}
    for text in job.overrides.task:
        name, _, value = str(text).partition("=")
        name = name.lstrip("+~")
        found = OmegaConf.select(config, name, default=None) if name and name.isascii() else None
        told[name] = found if isinstance(found, (bool, int, float, str)) else value
    return told
