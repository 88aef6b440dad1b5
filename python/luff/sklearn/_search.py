"""Estimators of a search whose fits are trials of a sweep: `luff.sklearn.search`."""

from __future__ import annotations

import functools
import itertools
import os
from typing import Any

from luff._trial_run import check_options, trial_run
from luff.errors import InvalidArgumentError

__all__ = ["search"]

_numbers = itertools.count()


def search(estimator: Any, sweep: str = "", **options: Any) -> Any:
    """Makes each ``fit`` of an estimator a trial of a sweep, for a search over its parameters.

    ::

        search = GridSearchCV(luff.sklearn.search(MLPClassifier()), {"learning_rate_init": [0.001, 10.0]})

    A fit that a finding stops raises `luff.TrialStopped`, for which a search writes ``error_score`` (NaN) and goes on.
    Each fit has a run of its own, with the estimator's parameters, also in the processes of ``n_jobs``. What it fits
    must train in a framework that Luff watches: scikit-learn's own estimators that train step by step, PyTorch, Keras,
    boosting.

    Parameters
    ----------
    estimator
        Any estimator of scikit-learn's kind; it is copied, as a search copies it.
    sweep
        Name of the sweep; by default the estimator's class.
    **options
        As for `luff.trial_run`: ``rules``, ``on_finding``, ``collections`` and settings of capture.

    Returns
    -------
    Any
        An estimator of the same parameters whose class derives from the given one.

    Raises
    ------
    InvalidArgumentError
        If it is no estimator, or an option is wrong.
    """
    if isinstance(estimator, type) or not (hasattr(estimator, "fit") and hasattr(estimator, "get_params")):
        raise InvalidArgumentError(
            f"estimator is {estimator!r}; expected an estimator with fit and get_params"
        )
    kind = type(estimator)
    sweep = sweep or kind.__name__
    check_options(options, sweep, "luff.sklearn.search")
    copied = _empty(kind, sweep, options)
    copied.__dict__.update(estimator.__dict__)
    return copied


def _empty(kind: type, sweep: str, options: dict[str, Any]) -> Any:
    """Makes an estimator without a state; also what a pickled one is made by."""
    made: Any = _watched(kind, sweep, options)
    return made.__new__(made)


def _watched(kind: type, sweep: str, options: dict[str, Any]) -> type:
    """Returns a class that derives from `kind`, whose fits are trials."""

    @functools.wraps(kind.fit)  # type: ignore[attr-defined]
    def fit(self: Any, *arguments: Any, **named: Any) -> Any:
        with trial_run(f"fit-{os.getpid()}-{next(_numbers)}", self.get_params(), sweep, **options):
            kind.fit(self, *arguments, **named)  # type: ignore[attr-defined]
        return self

    def reduced(self: Any, protocol: Any) -> Any:
        own = object.__reduce_ex__(self, max(2, int(protocol)))  # with the class's own ways to keep its state
        return _empty, (kind, sweep, options), own[2] if len(own) > 2 else None

    return type(
        kind.__name__,
        (kind,),
        {"fit": fit, "__reduce_ex__": reduced, "__module__": kind.__module__, "__doc__": kind.__doc__},
    )
