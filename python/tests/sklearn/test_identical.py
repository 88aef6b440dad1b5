"""Fitted estimators are bit by bit the same as without Luff, whatever is recorded, and whatever fails inside Luff."""

from __future__ import annotations

import copy
import pickle
import warnings

import luff
import luff.sklearn
import numpy as np
import pytest
from luff._boosting import _trainings
from sklearn.base import clone
from sklearn.cluster import MiniBatchKMeans
from sklearn.ensemble import (
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import Perceptron, SGDClassifier, SGDRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor

CLASSES = np.arange(10)


def fit(model, x, y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not converged
        return model.fit(x, y)


def batches(model, x, y):
    classes = (
        {"classes": CLASSES} if hasattr(model, "predict") and "Regressor" not in type(model).__name__ else {}
    )
    if isinstance(model, MiniBatchKMeans):
        classes = {}
    for begin in range(0, 900, 100):
        model.partial_fit(x[begin : begin + 100], y[begin : begin + 100], **classes)
    return model


def growing(model, x, y):
    for count in (3, 6, 9):
        fit(model.set_params(n_estimators=count), x, y)
    return model


CASES = {
    "network": (MLPClassifier((16, 8), max_iter=4, random_state=0), fit),
    "network, stopped early": (MLPClassifier((16,), max_iter=6, early_stopping=True, random_state=0), fit),
    "network, momentum": (
        MLPRegressor(
            hidden_layer_sizes=(16,), solver="sgd", learning_rate_init=0.01, max_iter=4, random_state=0
        ),
        fit,
    ),
    "network, lbfgs": (MLPClassifier((8,), solver="lbfgs", max_iter=6, random_state=0), fit),
    "network, batches": (MLPClassifier((16,), random_state=0), batches),
    "linear, batches": (SGDClassifier(loss="log_loss", random_state=0), batches),
    "linear, fit": (SGDClassifier(random_state=0, max_iter=5), fit),
    "regression, batches": (SGDRegressor(random_state=0), batches),
    "perceptron": (Perceptron(random_state=0), batches),
    "clusters": (MiniBatchKMeans(10, n_init=2, batch_size=100, random_state=0), fit),
    "clusters, batches": (MiniBatchKMeans(10, random_state=0), batches),
    "boosting": (GradientBoostingClassifier(n_estimators=4, subsample=0.7, random_state=0), fit),
    "boosting, stopped early": (
        GradientBoostingRegressor(n_estimators=9, n_iter_no_change=3, random_state=0),
        fit,
    ),
    "boosting, goes on": (GradientBoostingRegressor(warm_start=True, random_state=0), growing),
    "histograms": (HistGradientBoostingClassifier(max_iter=3, max_leaf_nodes=7, random_state=0), fit),
    "histograms, stopped early": (
        HistGradientBoostingClassifier(max_iter=3, max_leaf_nodes=7, early_stopping=True, random_state=0),
        fit,
    ),
    "forest": (
        RandomForestClassifier(warm_start=True, oob_score=True, bootstrap=True, random_state=0),
        growing,
    ),
    "trees": (ExtraTreesRegressor(warm_start=True, random_state=0), growing),
}
ALL = ["weights", "biases", "gradients", "outputs", "inputs", "feature_importance", "trees"]


def state(model, x):
    return pickle.dumps(model), model.predict(x).tobytes()


@pytest.fixture
def trained(digits, tmp_path):
    """Returns a function that trains a case without and with Luff and returns both models, the hook and the rows."""
    x, y = digits[0][:900], digits[1][:900]

    def run(case, **arguments):
        prototype, train = CASES[case]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # early out-of-bag scores
            bare = train(clone(prototype), x, y)
            model = clone(prototype)
            with luff.sklearn.attach(model, run=tmp_path / "run", **arguments) as hook:
                train(model, x, y)
        return bare, model, hook, x

    return run


def same(a, b):
    """Compares fitted state, value by value."""
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and (
            a.tobytes() == b.tobytes() if a.dtype != object else all(map(same, a.ravel(), b.ravel()))
        )
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if hasattr(a, "__getstate__") and type(a).__module__.startswith("sklearn.tree._tree"):
        return same(a.__getstate__(), b.__getstate__())
    if isinstance(a, (int, float, str, bool, np.generic, type(None))):
        return a == b or (a != a and b != b)
    return True


@pytest.mark.parametrize("case", CASES)
def test_what_is_fitted(case, trained):
    bare, model, hook, x = trained(case, collections=ALL, save_interval=1)
    assert hook.guard.first == {}
    assert vars(bare).keys() == vars(model).keys()
    for name in vars(bare):
        assert same(getattr(bare, name), getattr(model, name)), name
    assert bare.predict(x).tobytes() == model.predict(x).tobytes()
    assert len(luff.open_trial(hook.run).steps("TRAIN")) > 0


@pytest.mark.parametrize(
    "case", ["network, stopped early", "linear, batches", "clusters", "boosting", "histograms"]
)
def test_a_hook_that_fails_everywhere_harms_nothing(case, trained, monkeypatch):
    for owner, names in (
        (luff.sklearn.Hook, ("_enters", "_record", "_close_step", "_evaluation", "begin_rounds")),
        (_trainings.Trainings, ("_begin", "_round", "_end", "publish")),
    ):
        for name in names:
            monkeypatch.setattr(owner, name, lambda *_: 1 / 0)
    bare, model, hook, x = trained(case)
    assert bare.predict(x).tobytes() == model.predict(x).tobytes()
    assert hook.guard.count > 0


@pytest.mark.parametrize(
    ("case", "module"), [("network", "_mlp"), ("linear, batches", "_linear"), ("clusters", "_clusters")]
)
def test_an_error_in_a_step_is_a_gap(case, module, trained, monkeypatch):
    import importlib

    monkeypatch.setattr(importlib.import_module(f"luff.sklearn.{module}"), "_step", lambda *_: 1 / 0)
    bare, model, hook, x = trained(case)
    assert bare.predict(x).tobytes() == model.predict(x).tobytes()
    trial = luff.open_trial(hook.run)
    assert len(trial.steps("TRAIN")) > 1
    assert any(gap["reason"] == "hook error" for gap in trial.gaps())


def test_estimators_can_be_copied_cloned_and_pickled(digits, tmp_path):
    x, y = digits
    model = MLPClassifier((8,), max_iter=2, random_state=0)
    with luff.sklearn.attach(model, run=tmp_path / "run"):
        fit(model, x, y)
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert vars(other).keys() == vars(model).keys()
            fit(clone(other), x, y)  # a different estimator, which is not watched
    assert luff.open_trial(tmp_path / "run").tensor("NLLLoss_output_0").steps("TRAIN")[-1] == 17
