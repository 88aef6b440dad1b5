"""Luff for Ray Tune: each trial has a run of its own, and a stop ends the trial for good.

::

    tuner = tune.Tuner(luff.ray.tune.watch(train), param_space={"lr": tune.loguniform(1e-4, 10)}, ...)

Without it a stop ends the worker's process, and Tune starts the trial again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ray import tune

from luff._plain import shown
from luff._trial_run import check_options, trial_run
from luff.errors import InvalidArgumentError, StopTraining

__all__ = ["watch"]


def watch(
    trainable: Callable[..., Any],
    *,
    sweep: str = "",
    stopped: Mapping[str, float] | None = None,
    **options: Any,
) -> Callable[[dict[str, Any]], Any]:
    """Returns a trainable that Luff watches; it calls the given one.

    A trial that a finding stops reports once more, with ``done``, and is TERMINATED: Tune goes on with the others, and
    starts it no second time. That report has the metrics of the trial's last one, those of `stopped`, and
    ``luff/finding``, ``luff/rule`` and ``luff/run``. Schedulers and searchers are as before. A trial that a scheduler
    ends has ended well.

    Parameters
    ----------
    trainable
        A function of the parameters that calls ``tune.report``. The framework that trains is imported outside of it.
        With ``tune.with_parameters``, watch the function first.
    sweep
        Name of the sweep; by default that of the experiment.
    stopped
        Metrics that a stopped trial reports at its end, e.g. ``{"loss": math.inf}`` for a searcher that would take the
        last value for the trial's. Trials that are stopped before their first report need what the tuner asks for.
    **options
        As for `luff.trial_run`: ``rules``, ``on_finding``, ``collections`` and settings of capture.

    Raises
    ------
    InvalidArgumentError
        If it is no function, or an option is wrong.
    """
    if isinstance(trainable, type) or not callable(trainable):
        raise InvalidArgumentError(f"trainable is {shown(trainable)}; expected a function of the parameters")
    if stopped is not None and not isinstance(stopped, Mapping):
        raise InvalidArgumentError(f"stopped is {shown(stopped)}; expected metrics by name")
    check_options(options, sweep, "luff.ray.tune.watch")
    at_the_end = dict(stopped or {})

    @functools.wraps(trainable)
    def watched(config: dict[str, Any], *more: Any, **named: Any) -> Any:
        context = tune.get_context()
        one = trial_run(
            context.get_trial_name() or "trial",
            dict(_flat(config)),
            sweep or context.get_experiment_name() or "tune",
            on_stop="return",
            **options,
        )
        value, ended, last = None, None, dict[str, Any]()
        with one, _reports(last):
            try:
                value = trainable(config, *more, **named)
            except StopTraining:
                raise
            except SystemExit as error:  # how Tune ends a trial that its scheduler has stopped
                if error.code not in (0, None):
                    raise
                ended = error
        if ended is not None:
            raise ended
        if one.stopped:
            tune.report(
                last
                | at_the_end
                | {"luff/finding": one.reason, "luff/rule": one.rule, "luff/run": one.run, "done": True}
            )
        return value

    return watched


def _flat(config: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yields settings of dictionaries in dictionaries by names with dots."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


@contextmanager
def _reports(last: dict[str, Any]) -> Iterator[None]:
    """Keeps the metrics that the trial reported last, by whichever of Ray's functions."""
    try:
        from ray.train._internal.session import get_session

        session: Any = get_session()
        report = session.report
    except Exception:  # another version of Ray: the last report has none of them
        yield
        return

    def remembering(metrics: dict[str, Any], *more: Any, **named: Any) -> Any:
        last.clear()
        last.update(metrics)
        return report(metrics, *more, **named)

    session.report = remembering
    try:
        yield
    finally:
        vars(session).pop("report", None)  # the class's own again
