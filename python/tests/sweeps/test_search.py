"""A search of scikit-learn goes on when a finding stops one of its fits."""

from __future__ import annotations

import copy
import pickle
import warnings

import luff
import luff.sklearn
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sweep_scripts import run_script


def test_the_search_finds_what_it_finds_without_luff_and_each_fit_is_a_trial(tmp_path, monkeypatch):
    monkeypatch.setenv("LUFF_HOME", str(tmp_path))
    x = np.random.default_rng(0).normal(size=(60, 4))
    y = (x[:, 0] > 0).astype(int)
    grid = {"learning_rate_init": [0.01, 0.1]}
    net = MLPClassifier(hidden_layer_sizes=(4,), max_iter=8, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bare = GridSearchCV(net, grid, cv=2).fit(x, y)
        watched = GridSearchCV(
            luff.sklearn.search(net, "nets", rules=False, on_finding="warn"), grid, cv=2, error_score="raise"
        ).fit(x, y)
    assert np.array_equal(watched.cv_results_["mean_test_score"], bare.cv_results_["mean_test_score"])
    assert watched.best_params_ == bare.best_params_
    runs = sorted((tmp_path / "runs").iterdir())
    assert len(runs) == 5  # two settings, two folds, and the fit of the best
    assert all("-nets-fit-" in run.name for run in runs)
    assert isinstance(watched.best_estimator_, MLPClassifier)
    again = pickle.loads(pickle.dumps(watched.best_estimator_))
    assert np.array_equal(again.predict(x), watched.predict(x))
    assert type(again).__name__ == "MLPClassifier"
    assert clone(again).get_params() == again.get_params()


def test_a_pipeline_is_watched_too(tmp_path, monkeypatch):
    monkeypatch.setenv("LUFF_HOME", str(tmp_path))
    x = np.random.default_rng(0).normal(size=(40, 4))
    y = (x[:, 0] > 0).astype(int)
    pipeline = make_pipeline(
        StandardScaler(), MLPClassifier(hidden_layer_sizes=(4,), max_iter=4, random_state=0)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        luff.sklearn.search(pipeline, "lines", rules=False, on_finding="warn").fit(x, y)
    assert len(list((tmp_path / "runs").iterdir())) == 1


SEARCH = """
    import time, warnings
    import numpy as np
    import torch
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.model_selection import GridSearchCV
    import luff.sklearn

    class Net(ClassifierMixin, BaseEstimator):
        def __init__(self, lr=0.1):
            self.lr = lr

        def fit(self, x, y):
            self.classes_ = np.unique(y)
            torch.manual_seed(0)
            self.net_ = torch.nn.Linear(4, 2)
            optimizer = torch.optim.SGD(self.net_.parameters(), lr=self.lr)
            x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
            for _ in range(60):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(self.net_(x), y)
                if self.lr > 1:
                    loss = loss * float("nan")
                    time.sleep(0.1)
                loss.backward()
                optimizer.step()
            return self

        def predict(self, x):
            return self.net_(torch.tensor(x, dtype=torch.float32)).argmax(1).numpy()

    x = np.random.default_rng(0).normal(size=(60, 4))
    y = (x[:, 0] > 0).astype(int)
    warnings.simplefilter("ignore")
    net = luff.sklearn.search(Net(), "nets", rules="NonFinite")
    search = GridSearchCV(net, {"lr": [0.1, 9.0, 0.2]}, cv=2, error_score=float("nan")).fit(x, y)
    print(np.isnan(search.cv_results_["mean_test_score"]).tolist(), search.best_params_["lr"] < 1)
"""


def test_a_stopped_fit_has_no_score_and_the_search_goes_on(tmp_path):
    done = run_script(tmp_path, "search.py", SEARCH, timeout=240, HOME=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("]")[0] == "[False, True, False"
    assert done.stdout.rstrip().endswith("True")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [((3,), "expected an estimator"), ((MLPClassifier,), "expected an estimator")],
)
def test_what_is_no_estimator_is_named(arguments, said):
    with pytest.raises(luff.errors.InvalidArgumentError, match=said):
        luff.sklearn.search(*arguments)
    with pytest.raises(luff.errors.InvalidArgumentError, match="on_stop="):
        luff.sklearn.search(MLPClassifier(), on_stop="return")


class Keeper:
    """An estimator that is none of scikit-learn's, and keeps its state its own way."""

    learnt = None

    def get_params(self, deep: bool = True) -> dict:
        return {}

    def fit(self, X: object, y: object = None) -> Keeper:
        self.learnt = 1
        return self

    def __getstate__(self) -> dict:
        return {"kept": self.learnt}

    def __setstate__(self, state: dict) -> None:
        self.learnt = state["kept"]


class Bare:
    def get_params(self, deep: bool = True) -> dict:
        return {}

    def fit(self, X: object) -> None:
        pass


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))])
def test_copies_keep_what_the_class_keeps(copied) -> None:
    made = luff.sklearn.search(Keeper())
    made.learnt = 1
    assert copied(made).learnt == 1
    assert copied(luff.sklearn.search(Bare())).get_params() == {}
