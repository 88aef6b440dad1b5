"""A tracker for Accelerate: opens the run when the script's trackers begin, and watches what is trained."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from accelerate.tracking import GeneralTracker

from luff._base_hook import Collections, choose_run, make_config
from luff._hook import run_from_environment
from luff.torch import Hook
from luff.torch.patches import _functional, _wraps
from luff.torch.patches._registry import hooks

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from luff.config import CaptureOptions

__all__ = ["Tracker"]


class Tracker(GeneralTracker):  # type: ignore[misc, unused-ignore]
    """Passed to an `Accelerator` as ``log_with``; everything that the process trains from then on is watched.

    Values given to the accelerator's `log` become scalars of the run.

    Parameters
    ----------
    run
        Directory of the run, created by `init_trackers`. If it holds a run and `resume` is not set, a new one is
        made beside it: ``RUN-2``. None: a new one below ``$LUFF_HOME/runs``. Under ``luff run`` the supervisor's is
        used.
    collections, resume, **options
        As in `luff.torch.attach`.

    Raises
    ------
    LuffError
        When a setting is wrong; out of `init_trackers` when the run cannot be
        created.
    """

    name = "luff"
    requires_logging_directory = False
    main_process_only = False

    def __init__(
        self,
        run: str | os.PathLike[str] | None = None,
        *,
        collections: Collections = None,
        resume: bool = False,
        **options: Unpack[CaptureOptions],
    ) -> None:
        super().__init__()
        config = make_config(collections, options)
        self._options = choose_run(run, resume, config)
        self._hook: Hook | None = None

    @property
    def tracker(self) -> Hook | None:
        """The `luff.torch.Hook` that records, once `init_trackers` was called."""
        return self._hook

    def start(self) -> None:
        """Opens the run; all processes of the training know their ranks by now."""
        if self._hook is not None and self._hook.live:
            return
        if run_from_environment() is not None and hooks.default is not None:
            self._hook = hooks.default
            return
        hook = Hook(self._options)
        hook.open_now()
        hooks.add(hook, default=True)
        _wraps.install()
        _functional.install()
        self._hook = hook

    def store_init_configuration(self, values: Any) -> None:
        """Does nothing: the script's arguments are in the run's environment."""

    def log(self, values: Any, step: int | None = None, **kwargs: Any) -> None:
        """Does nothing: `Accelerator.log` itself is wrapped."""

    def finish(self) -> None:
        """Ends the run."""
        if self._hook is not None:
            self._hook.close()
