"""Several trainings in one process: each run gets its own, and nothing is kept."""

from __future__ import annotations

import gc
import os
import signal
import threading
import warnings
import weakref

import luff
import luff.sklearn
import numpy as np
from luff._patch import once
from luff.sklearn import _wraps
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.linear_model import SGDClassifier


def train(estimator):
    x = np.arange(40.0).reshape(20, 2)
    for _ in range(3):
        estimator.partial_fit(x, x[:, 0] > 20, classes=[False, True])


def told(path):
    with luff.open_trial(path) as trial:
        return len(trial.steps("TRAIN")), trial.outcome, "a newer hook" in trial.outcome_reason


def test_a_newer_hook_takes_the_place_and_an_estimator_takes_its_hook_along(tmp_path):
    estimator = SGDClassifier(random_state=0)
    for name in ("first", "second"):
        luff.sklearn.attach(estimator, tmp_path / name)
        train(estimator)
        luff.sklearn.save_scalar("mine", 1)
    del estimator
    gc.collect()
    assert luff.sklearn.get_hook() is None
    assert [told(tmp_path / "first")[1:], told(tmp_path / "second")[1:]] == [
        ("completed", True),
        ("completed", False),
    ]
    for name in ("first", "second"):
        with luff.open_trial(tmp_path / name) as trial:
            assert len(trial.steps("TRAIN")) == 3
            assert trial.has_tensor("scalar/mine")


def boost(estimator, monitor=None):
    x = np.arange(40.0).reshape(20, 2)
    return estimator.fit(x, x[:, 0], monitor=monitor)


def test_an_estimator_that_boosts_takes_its_hook_along(tmp_path):
    estimator = GradientBoostingRegressor(n_estimators=4)
    hook = weakref.ref(luff.sklearn.attach(estimator, tmp_path / "run", collections=["trees"]))
    boost(estimator)
    assert hook() is not None
    del estimator
    gc.collect()
    assert hook() is None
    assert told(tmp_path / "run") == (4, "completed", False)


def test_a_child_that_is_forked_between_rounds_drops_those_of_its_parent(tmp_path):
    estimator = GradientBoostingRegressor(n_estimators=4)
    hook = luff.sklearn.attach(estimator, tmp_path / "run")
    children = []

    def fork(stage, *_):
        if stage != 2:
            return
        children.append(os.fork())
        if children[-1] == 0:
            signal.alarm(60)
            try:
                parents = hook.trainings.thread
                boost(estimator)
                hook.close()
                os._exit(0 if parents is None and not hook.guard.first else 2)
            finally:
                os._exit(1)
        assert os.waitpid(children[-1], 0)[1] == 0

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns about other threads
        boost(estimator, fork)
    hook.close()
    assert len(children) == 1 and hook.guard.first == {}
    with luff.open_trial(tmp_path / "run") as trial:
        for worker, name in enumerate(["train-squared_error", "fit2/train-squared_error"]):
            assert trial.scalars(name, "TRAIN", worker)["mode_step"].tolist() == [0, 1, 2, 3]
            assert len(trial.scalars(name, "TRAIN", 1 - worker)["value"]) == 0


def test_a_child_that_is_forked_while_a_thread_installs_does_not_wait_for_it(monkeypatch):
    begun, end = threading.Event(), threading.Event()
    here = os.getpid()

    @once
    def install(_):
        if os.getpid() == here:
            begun.set()
            end.wait(60)

    monkeypatch.setattr(_wraps, "_patches", lambda: [_wraps.Patch("sklearn", (), install)])
    thread = threading.Thread(target=_wraps.install)
    thread.start()
    assert begun.wait(60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns about other threads
        child = os.fork()
    if child == 0:
        signal.alarm(60)
        _wraps.install()
        os._exit(0)
    end.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
