"""All ways to train with LightGBM: estimators, cross-validation, early stopping, continued and parallel trainings."""

from __future__ import annotations

import copy
import pickle
import threading

import lightgbm as lgb
import luff
import luff.lightgbm
import pytest

BASE = {"num_threads": 1, "verbosity": -1, "num_leaves": 7, "objective": "binary"}
LOSS = "training-binary_logloss"


def test_estimator(data, tmp_path):
    x, y = data
    with luff.lightgbm.Callback(
        tmp_path / "run", collections=["feature_importance"], save_interval=1
    ) as hook:
        model = lgb.LGBMClassifier(n_estimators=9, num_leaves=7, n_jobs=1, verbosity=-1)
        model.fit(x[:800], y[:800], eval_X=x[800:], eval_y=y[800:], callbacks=[hook])
    trial = luff.open_trial(tmp_path / "run")
    told = trial.scalars("valid_0-binary_logloss")["value"].tolist()
    assert told == model.evals_result_["valid_0"]["binary_logloss"]
    training = trial.document("boosting")["trainings"][0]
    assert training["rounds_planned"] == 9
    (evaluation,) = training["evaluations"]
    assert evaluation.pop("data")["labels"]["count"] == 400
    assert evaluation == {"name": "valid_0", "training": False, "rows": 400}
    assert trial.collections().keys() >= {"metrics", "feature_importance"}


def test_early_stopping_records_its_last_round(sets, tmp_path):
    result = {}
    dtrain, dval = sets()
    with luff.lightgbm.Callback(tmp_path / "run") as hook:
        model = lgb.train(
            {**BASE, "learning_rate": 0.9}, dtrain, 200, valid_sets=[dval],
            callbacks=[hook, lgb.early_stopping(2, verbose=False), lgb.record_evaluation(result)],
        )  # fmt: skip
        goes_on = lgb.train(BASE, sets()[0], 3, init_model=model, callbacks=[hook])
    trial = luff.open_trial(tmp_path / "run")
    told = trial.scalars("valid_0-binary_logloss", "TRAIN")["value"].tolist()
    assert told == result["valid_0"]["binary_logloss"] and len(told) == model.best_iteration + 2
    trainings = trial.document("boosting")["trainings"]
    assert [t["prefix"] for t in trainings] == ["", ""]  # the second training continues the kept model
    assert trainings[1]["rounds_before"] == model.best_iteration
    assert goes_on.current_iteration() == model.best_iteration + 3


def test_cross_validation(sets, tmp_path):
    arguments = {"nfold": 3, "seed": 1, "eval_train_metric": True}
    bare = lgb.cv(BASE, sets()[0], 6, **arguments)
    with luff.lightgbm.Callback(tmp_path / "run", collections=["trees"], save_interval=1) as hook:
        result = lgb.cv(BASE, sets()[0], 6, **arguments, callbacks=[hook])
    assert result == bare
    assert hook.guard.first == {}
    trial = luff.open_trial(tmp_path / "run")
    found = trial.scalars("valid-binary_logloss", "TRAIN")["value"].tolist()
    assert found == result["valid binary_logloss-mean"]
    found = trial.scalars("valid-binary_logloss-std", "TRAIN")["value"].tolist()
    assert found == result["valid binary_logloss-stdv"]
    assert trial.tensor("train-binary_logloss").role == "loss"
    assert trial.document("boosting")["trainings"][0]["folds"] == 3


def test_going_on_with_a_model(sets, tmp_path):
    dtrain, dval = sets(free_raw_data=False)
    with luff.lightgbm.Callback(
        tmp_path / "run", collections=["feature_importance"], save_interval=1
    ) as hook:
        first = lgb.train(BASE, dtrain, 4, valid_sets=[dtrain, dval], callbacks=[hook])
        model = lgb.train(BASE, sets()[0], 3, init_model=first, callbacks=[hook])
    trial = luff.open_trial(tmp_path / "run")
    assert [trial.step_info(s, "TRAIN")["update"] for s in trial.steps("TRAIN")] == list(range(7))
    gains = model.feature_importance("gain")
    share = trial.scalars("feature_importance/total_gain/Column_0", "TRAIN")["value"][-1]
    assert share == pytest.approx(gains[0] / gains.sum(), rel=1e-5)
    trainings = trial.document("boosting")["trainings"]
    assert [t["rounds_before"] for t in trainings] == [0, 4]
    assert [t["prefix"] for t in trainings] == ["", ""]


def test_a_second_training_has_names_of_its_own(sets, tmp_path):
    with luff.lightgbm.Callback(tmp_path / "run") as hook:
        for _ in range(3):
            dtrain, _ = sets()
            lgb.train(BASE, dtrain, 2, valid_sets=[dtrain], callbacks=[hook])
    trial = luff.open_trial(tmp_path / "run")
    assert trial.tensors() == [f"fit2/{LOSS}", f"fit3/{LOSS}", LOSS]
    assert trial.steps("TRAIN") == list(range(6))


def test_resumed_run_goes_on_counting(sets, tmp_path):
    for resume in (False, True):
        dtrain, _ = sets()
        with luff.lightgbm.Callback(tmp_path / "run", resume=resume) as hook:
            lgb.train(BASE, dtrain, 4, valid_sets=[dtrain], callbacks=[hook])
    trial = luff.open_trial(tmp_path / "run")
    assert trial.steps("TRAIN") == list(range(8))
    assert [trial.step_info(s, "TRAIN")["update"] for s in trial.steps("TRAIN")] == list(range(8))


def test_a_training_in_another_thread_is_counted_as_not_seen(sets, tmp_path):
    inner_done = []
    dtrain, _ = sets()

    def inner(env):
        if env.iteration == 1:
            other = sets()[0]
            thread = threading.Thread(
                target=lambda: inner_done.append(lgb.train(BASE, other, 2, callbacks=[hook]))
            )
            thread.start()
            thread.join()

    with luff.lightgbm.Callback(tmp_path / "run") as hook:
        lgb.train(BASE, dtrain, 4, valid_sets=[dtrain], callbacks=[inner, hook])
    assert len(inner_done) == 1
    trial = luff.open_trial(tmp_path / "run")
    assert len(trial.scalars(LOSS, "TRAIN")["value"]) == 4
    assert [gap["reason"] for gap in trial.gaps()] == ["not seen"]


def test_a_training_that_raises_leaves_its_rounds(sets, tmp_path):
    dtrain, dval = sets()

    def fails(env):
        if env.iteration == 3:
            raise KeyError("of the user's")

    fails.order = 40
    with luff.lightgbm.Callback(tmp_path / "run") as hook:
        with pytest.raises(KeyError, match="of the user's"):
            lgb.train(BASE, dtrain, 9, valid_sets=[dval], callbacks=[hook, fails])
        assert hook.flush()
        assert len(luff.open_trial(tmp_path / "run").steps("TRAIN")) == 4


def test_hook_can_be_copied_and_pickled(tmp_path):
    with luff.lightgbm.Callback(tmp_path / "run") as hook:
        assert copy.deepcopy(hook) is hook
        assert pickle.loads(pickle.dumps(hook)) is None


def test_the_learning_rate_can_be_lowered(sets, tmp_path):
    dtrain, _ = sets()
    rates = []

    def lower(env):
        if env.iteration == 2:
            hook._lower_lr(0.5)
        rates.append(float(luff.lightgbm._hook.parameters_of(env.model)["learning_rate"]))

    lower.order = 40
    with luff.lightgbm.Callback(tmp_path / "run") as hook:
        lgb.train({**BASE, "learning_rate": 0.2}, dtrain, 4, callbacks=[hook, lower])
    assert rates == [0.2, 0.2, 0.1, 0.1]


def test_callbacks_of_the_user_keep_their_order(sets, monkeypatch):
    """A callback without an order keeps its place, even if ``luff run`` adds one."""
    from luff.lightgbm._hook import hooks

    seen = []

    class Named:
        def __init__(self, name, order=None):
            self.name = name
            if order is not None:
                self.order = order

        def __call__(self, env):
            seen.append(self.name)

    class Listening(luff.lightgbm.Callback):
        def __init__(self):
            pass

        def __call__(self, env):
            pass

        def raw_data(self, data):
            return None

        def describe(self, data, others):
            return None

        def call_ended(self, call, result):
            pass

    monkeypatch.setattr(hooks, "default", Listening())
    lgb.train(BASE, sets()[0], 1, callbacks=[Named("a"), Named("b", -1.5), Named("c")])
    assert seen == ["a", "b", "c"]
