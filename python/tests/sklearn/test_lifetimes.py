"""Several trainings in one process: each run gets its own, and nothing is kept."""

from __future__ import annotations

import gc
import os
import signal
import threading
import warnings

import luff
import luff.sklearn
import numpy as np
from luff._patch import once
from luff.sklearn import _wraps
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
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: there are other threads
        child = os.fork()
    if child == 0:
        signal.alarm(60)
        _wraps.install()
        os._exit(0)
    end.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
