"""scikit-learn's own call-backs: each iteration of LogisticRegression is a step."""

from __future__ import annotations

import pickle
import threading
import warnings

import luff
import luff.sklearn
import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

pytest.importorskip("sklearn.callback", reason="scikit-learn 1.9 has call-backs")


@pytest.fixture
def data():
    x, y = load_iris(return_X_y=True)
    return x, np.array(["setosa", "versicolor", "virginica"])[y]


def test_iterations_are_steps_and_the_model_is_the_same(data, tmp_path):
    alone = LogisticRegression(max_iter=1000).fit(*data)
    callback = luff.sklearn.Callback(tmp_path / "run", save_interval=1, collections=["weights"])
    with callback.hook:
        watched = LogisticRegression(max_iter=1000).set_callbacks(callback).fit(*data)
        assert callback.hook.health()["hook_errors"] == 0
    assert watched.coef_.tobytes() == alone.coef_.tobytes()
    with luff.open_trial(tmp_path / "run") as trial:
        last = int(watched.n_iter_[0]) - 1
        assert trial.steps("TRAIN") == list(range(last + 1))
        weights = trial.tensor("LogisticRegression_weight")
        assert weights.role == "weight"
        np.testing.assert_array_equal(weights.value(last, mode="TRAIN"), watched.coef_)
        losses = trial.scalars("log_loss_output_0", "TRAIN")["value"]
        assert losses[-1] == pytest.approx(log_loss(data[1], watched.predict_proba(data[0])))
        assert losses[0] > losses[-1]
        assert trial.gaps() == []


def test_a_finding_stops_the_fit(data, tmp_path):
    callback = luff.sklearn.Callback(tmp_path / "run")
    session = callback.hook.session

    class Stopping:
        """A session that reports a stop after step 3."""

        def __getattr__(self, name):
            return getattr(session, name)

        def stop_state(self):
            return 1

        def at_step_boundary(self, step):
            return 2 if step >= 3 else 0

        def stop_reason(self):
            return "on purpose"

    callback.hook.steps.session = Stopping()
    with pytest.raises(luff.StopTraining):
        LogisticRegression(max_iter=1000).set_callbacks(callback).fit(*data)
    with luff.open_trial(tmp_path / "run") as trial:
        assert trial.outcome == "stopped"
        assert trial.steps("TRAIN") == [0, 1, 2]


def test_a_copy_in_another_process_records_nothing(data, tmp_path):
    callback = luff.sklearn.Callback(tmp_path / "run")
    copy = pickle.loads(pickle.dumps(callback))
    assert copy.hook is None
    LogisticRegression(max_iter=1000).set_callbacks(copy).fit(*data)
    callback.hook.close()
    with luff.open_trial(tmp_path / "run") as trial:
        assert trial.steps() == []


def test_threads_that_share_a_call_back_do_not_block_later_fits(data, tmp_path):
    callback = luff.sklearn.Callback(tmp_path / "run")
    inside, done = threading.Event(), threading.Event()

    class Waiting(luff.sklearn.Callback):
        """A call-back that stays in a fit until another thread's has ended."""

        def on_fit_task_end(self, estimator, context, *, X=None, y=None, fitted_estimator=None):
            if not inside.is_set():
                inside.set()
                done.wait(60)
            super().on_fit_task_end(estimator, context, X=X, y=y, fitted_estimator=fitted_estimator)

    callback.__class__ = Waiting
    first = threading.Thread(target=LogisticRegression(max_iter=1000).set_callbacks(callback).fit, args=data)
    with callback.hook:
        first.start()
        assert inside.wait(60)
        other = LogisticRegression(max_iter=1000).set_callbacks(callback)
        second = threading.Thread(target=other.fit, args=data)
        second.start()
        second.join(60)
        done.set()
        first.join(60)
        before = len(luff.open_trial(tmp_path / "run").steps("TRAIN"))
        LogisticRegression(max_iter=1000).set_callbacks(callback).fit(*data)
        assert callback.hook.health()["hook_errors"] == 0
    assert len(luff.open_trial(tmp_path / "run").steps("TRAIN")) > before > 0


def test_a_pipeline_adds_no_step_and_nothing_warns(tmp_path):
    x = np.linspace(-1, 1, 40).reshape(-1, 1) * [1e4, 1.0]
    y = (x[:, 0] > 0).astype(int)
    callback = luff.sklearn.Callback(tmp_path / "run")
    pipeline = make_pipeline(FunctionTransformer(), LogisticRegression(C=1e6).set_callbacks(callback))
    with callback.hook, warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("error", RuntimeWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        pipeline.fit(x, y)
        assert callback.hook.health()["hook_errors"] == 0
    steps = luff.open_trial(tmp_path / "run").steps("TRAIN")
    assert len(steps) == pipeline[-1].n_iter_[0]
