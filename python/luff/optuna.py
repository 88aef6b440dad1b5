"""Luff for studies of Optuna: each trial has a run of its own, and a stop prunes the trial.

::

    study.optimize(luff.optuna.watch(objective), n_trials=40)

The objective needs no change. What it trains, in any framework that Luff watches, is recorded and judged beside the
training; a finding of severity stop ends the trial as pruned, and the study goes on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import optuna

from luff._trial_run import check_options, trial_run
from luff.errors import InvalidArgumentError

__all__ = ["watch"]


def watch(objective: Callable[[optuna.Trial], Any], *, sweep: str = "", **options: Any) -> Callable[..., Any]:
    """Returns an objective that Luff watches; it calls the given one.

    The trial's user attributes are ``luff.run``, the directory of its run, and, if it was stopped, ``luff.rule`` and
    ``luff.finding``, the finding in words.

    With ``n_jobs`` above 1 Optuna uses threads, of which one at a time is watched. A trial that begins while another
    one is under way is not, so nothing stops it if it is bad: it warns, and its user attribute ``luff.watched`` is
    False. To have all trials watched, start several processes on one study.

    Parameters
    ----------
    objective
        Takes a trial, trains, and returns what the study optimizes.
    sweep
        Name of the sweep; by default that of the study.
    **options
        As for `luff.trial_run`: ``rules``, ``on_finding``, ``collections`` and settings of capture.

    Raises
    ------
    InvalidArgumentError
        If the objective cannot be called, or an option is wrong.
    """
    if not callable(objective):
        raise InvalidArgumentError(
            f"objective is a {type(objective).__name__}; expected a function of a trial"
        )
    check_options(options, sweep, "luff.optuna.watch")

    @functools.wraps(objective)
    def watched(trial: optuna.Trial, *more: Any, **named: Any) -> Any:
        one = trial_run(
            f"trial-{trial.number}",
            lambda: trial.params,
            sweep or trial.study.study_name,
            on_stop="return",
            **options,
        )
        value, pruned = None, None
        try:
            with one:
                try:
                    value = objective(trial, *more, **named)
                except optuna.TrialPruned as error:  # by the study's pruner: the training has ended well
                    pruned = error
        finally:
            if not one.watched:
                trial.set_user_attr("luff.watched", False)
            if one.run:
                trial.set_user_attr("luff.run", one.run)
            if one.stopped:
                trial.set_user_attr("luff.rule", one.rule)
                trial.set_user_attr("luff.finding", one.reason)
        if one.stopped:
            raise optuna.TrialPruned(f"stopped by {one.reason}")
        if pruned is not None:
            raise pruned
        return value

    return watched
