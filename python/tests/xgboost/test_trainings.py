"""All ways to train with XGBoost: estimators, cross-validation, early stopping, continued and parallel trainings."""

from __future__ import annotations

import copy
import pickle
import threading

import luff
import luff.xgboost
import numpy as np
import pytest
import xgboost as xgb

BASE = {"nthread": 1, "verbosity": 0, "max_depth": 3, "objective": "binary:logistic"}


def test_estimator(data, tmp_path):
    pytest.importorskip("sklearn")
    x, y = data
    with luff.xgboost.Callback(tmp_path / "run", collections=["feature_importance"], save_interval=1) as hook:
        model = xgb.XGBClassifier(n_estimators=9, max_depth=3, n_jobs=1, callbacks=[hook])
        model.fit(x[:800], y[:800], eval_set=[(x[800:], y[800:])], verbose=False)
    trial = luff.open_trial(tmp_path / "run")
    assert (
        trial.scalars("validation_0-logloss")["value"].tolist()
        == model.evals_result()["validation_0"]["logloss"]
    )
    training = trial.document("boosting")["trainings"][0]
    assert training["rounds_planned"] == 9
    (evaluation,) = training["evaluations"]
    assert evaluation.pop("data")["labels"]["count"] == 400
    assert evaluation == {"name": "validation_0", "training": False, "rows": 400}
    assert trial.collections().keys() >= {"metrics", "feature_importance"}


def test_early_stopping_records_its_last_round(sets, tmp_path):
    dtrain, dval = sets
    with luff.xgboost.Callback(tmp_path / "run") as hook:
        result = {}
        xgb.train(
            {**BASE, "max_depth": 8, "eta": 1.0}, dtrain, 200, evals=[(dval, "validation")], verbose_eval=False,
            early_stopping_rounds=2, callbacks=[hook], evals_result=result,
        )  # fmt: skip
    told = luff.open_trial(tmp_path / "run").scalars("validation-logloss", "TRAIN")["value"].tolist()
    assert told == result["validation"]["logloss"] and len(told) < 200


def test_cross_validation(sets, tmp_path):
    bare = xgb.cv(BASE, sets[0], 6, nfold=3, seed=1, as_pandas=False)
    with luff.xgboost.Callback(tmp_path / "run", collections=["trees"], save_interval=1) as hook:
        result = xgb.cv(BASE, sets[0], 6, nfold=3, seed=1, as_pandas=False, callbacks=[hook])
    assert result == bare
    assert hook.guard.first == {}
    trial = luff.open_trial(tmp_path / "run")
    assert trial.scalars("test-logloss", "TRAIN")["value"].tolist() == result["test-logloss-mean"]
    assert trial.scalars("test-logloss-std", "TRAIN")["value"].tolist() == result["test-logloss-std"]
    assert trial.tensor("train-logloss").role == "loss"
    assert trial.document("boosting")["trainings"][0]["folds"] == 3


def test_going_on_with_a_model(sets, tmp_path):
    dtrain, dval = sets
    evals = [(dtrain, "train"), (dval, "validation")]
    with luff.xgboost.Callback(tmp_path / "run", collections=["feature_importance"], save_interval=1) as hook:
        first = xgb.train(BASE, dtrain, 4, evals=evals, verbose_eval=False, callbacks=[hook])
        model = xgb.train(BASE, dtrain, 3, evals=evals, verbose_eval=False, callbacks=[hook], xgb_model=first)
    trial = luff.open_trial(tmp_path / "run")
    assert len(trial.scalars("train-logloss", "TRAIN")["value"]) == 7
    assert [trial.step_info(s, "TRAIN")["update"] for s in trial.steps("TRAIN")] == list(range(7))
    scores = model.get_score(importance_type="total_gain")
    share = trial.scalars("feature_importance/total_gain/f0", "TRAIN")["value"][-1]
    assert share == pytest.approx(scores["f0"] / sum(scores.values()), rel=1e-5)
    trainings = trial.document("boosting")["trainings"]
    assert [t["rounds_before"] for t in trainings] == [0, 4]
    assert [t["prefix"] for t in trainings] == ["", ""]


def test_a_second_training_has_names_of_its_own(sets, tmp_path):
    dtrain, _ = sets
    with luff.xgboost.Callback(tmp_path / "run") as hook:
        for _ in range(3):
            xgb.train(BASE, dtrain, 2, evals=[(dtrain, "train")], verbose_eval=False, callbacks=[hook])
    trial = luff.open_trial(tmp_path / "run")
    assert trial.tensors() == ["fit2/train-logloss", "fit3/train-logloss", "train-logloss"]
    assert trial.steps("TRAIN") == list(range(6))


def test_resumed_run_goes_on_counting(sets, tmp_path):
    dtrain, _ = sets
    evals = [(dtrain, "train")]
    with luff.xgboost.Callback(tmp_path / "run") as hook:
        first = xgb.train(BASE, dtrain, 4, evals=evals, verbose_eval=False, callbacks=[hook])
    with luff.xgboost.Callback(tmp_path / "run", resume=True) as hook:
        xgb.train(BASE, dtrain, 3, evals=evals, verbose_eval=False, callbacks=[hook], xgb_model=first)
    trial = luff.open_trial(tmp_path / "run")
    assert trial.steps("TRAIN") == list(range(7))
    assert len(trial.scalars("train-logloss", "TRAIN")["value"]) == 7
    assert [trial.step_info(s, "TRAIN")["update"] for s in trial.steps("TRAIN")] == list(range(7))


def test_a_training_in_another_thread_is_counted_as_not_seen(sets, tmp_path):
    dtrain, _ = sets
    inner_done = []

    class Inner(xgb.callback.TrainingCallback):
        def after_iteration(self, model, epoch, evals_log):
            if epoch == 1:
                thread = threading.Thread(
                    target=lambda: inner_done.append(xgb.train(BASE, dtrain, 2, callbacks=[hook]))
                )
                thread.start()
                thread.join()
            return False

    with luff.xgboost.Callback(tmp_path / "run") as hook:
        xgb.train(BASE, dtrain, 4, evals=[(dtrain, "train")], verbose_eval=False, callbacks=[Inner(), hook])
    assert len(inner_done) == 1
    trial = luff.open_trial(tmp_path / "run")
    assert len(trial.scalars("train-logloss", "TRAIN")["value"]) == 4
    assert [gap["reason"] for gap in trial.gaps()] == ["not seen"]


def test_hook_can_be_copied_and_pickled(tmp_path):
    with luff.xgboost.Callback(tmp_path / "run") as hook:
        assert copy.deepcopy(hook) is hook
        assert isinstance(pickle.loads(pickle.dumps(hook)), xgb.callback.TrainingCallback)


def test_stop_leaves_with_an_exit_code_after_the_call_back(sets, tmp_path, monkeypatch):
    dtrain, _ = sets
    saved = []

    class Told:
        """A session that reports a stop after round 3."""

        def __init__(self, session):
            self._session = session
            self._rounds = 0

        def __getattr__(self, name):
            return getattr(self._session, name)

        def stop_state(self):
            self._rounds += 1
            return 2 if self._rounds >= 3 else 0

        def at_step_boundary(self, step):
            assert step == 3
            return 2

        def stop_reason(self):
            return "on purpose"

    hook = luff.xgboost.Callback(
        tmp_path / "run", on_stop=lambda: saved.append(hook.booster.num_boosted_rounds())
    )
    hook.steps.session = Told(hook.steps.session)
    with pytest.raises(luff.StopTraining) as stopped:
        xgb.train(BASE, dtrain, 50, evals=[(dtrain, "train")], verbose_eval=False, callbacks=[hook])
    assert stopped.value.code == 76 and stopped.value.reason == "on purpose"
    assert saved == [3]
    trial = luff.open_trial(tmp_path / "run")
    assert trial.outcome == "stopped" and trial.steps("TRAIN") == [0, 1, 2]


def test_a_correction_lowers_the_rate_after_the_agreed_round(sets, tmp_path):
    dtrain, _ = sets
    done, rates = [], []

    class Corrected:
        """A session that requests a lower rate after round 2."""

        def __init__(self, session):
            self._session = session

        def __getattr__(self, name):
            return getattr(self._session, name)

        def stop_state(self):
            return 0 if done else 1

        def at_step_boundary(self, step):
            return 3 if step == 2 else 0

        def take_action(self):
            return 7, "lower_lr", '{"factor": 0.5}', "because"

        def action_done(self, control, carried_out):
            done.append((control, carried_out))

    class Rates(xgb.callback.TrainingCallback):
        def after_iteration(self, model, epoch, evals_log):
            rates.append(float(luff.xgboost._hook.parameters_of(model)[0]["eta"]))
            return False

    correct = luff.corrections.Corrections(lower_lr=True)
    with luff.xgboost.Callback(tmp_path / "run", correct=correct) as hook:
        hook.steps.session = Corrected(hook.steps.session)
        xgb.train({**BASE, "eta": 0.2}, dtrain, 4, callbacks=[hook, Rates()])
    assert done == [(7, True)]
    assert rates == pytest.approx([0.2, 0.2, 0.1, 0.1])


def test_numbers_of_features_without_names(tmp_path):
    x = np.random.RandomState(1).rand(200, 3)
    dtrain = xgb.DMatrix(x, label=x[:, 1], feature_names=["a b", "c/d", "é"])
    with luff.xgboost.Callback(tmp_path / "run", collections=["feature_importance"], save_interval=1) as hook:
        xgb.train({**BASE, "objective": "reg:squarederror"}, dtrain, 3, callbacks=[hook])
    assert "feature_importance/weight/c/d" in luff.open_trial(tmp_path / "run").tensors()
