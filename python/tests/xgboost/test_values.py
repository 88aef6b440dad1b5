"""Recorded values are those that XGBoost itself reports."""

from __future__ import annotations

import luff
import luff.xgboost
import numpy as np
import pytest
import xgboost as xgb
from luff.xgboost import _hook

BASE = {"nthread": 1, "verbosity": 0, "max_depth": 4, "objective": "binary:logistic"}


def run(path, sets, rounds=15, parameters=None, **arguments):
    dtrain, dval = sets
    with luff.xgboost.Callback(path, save_interval=1, **arguments) as hook:
        model = xgb.train(
            {**BASE, **(parameters or {})}, dtrain, rounds, verbose_eval=False, callbacks=[hook],
            evals=[(dtrain, "train"), (dval, "validation")],
        )  # fmt: skip
    assert hook.guard.first == {}
    return model, luff.open_trial(path)


@pytest.mark.parametrize(
    "more",
    [{}, {"num_parallel_tree": 2, "subsample": 0.7}, {"objective": "multi:softprob", "num_class": 2},
     {"gamma": 2.0, "tree_method": "exact"}, {"booster": "dart", "rate_drop": 0.3}],
)  # fmt: skip
def test_trees_are_those_of_the_model(sets, tmp_path, more):
    pandas = pytest.importorskip("pandas")
    model, trial = run(tmp_path / "run", sets, parameters=more, collections=["trees"])
    found = pandas.concat(
        [pandas.DataFrame(luff.xgboost.trees(trial, step)) for step in trial.steps("TRAIN")]
    )
    said = model.trees_to_dataframe().reset_index(drop=True)
    found = found.reset_index(drop=True)[list(said.columns)]
    assert len(found) == len(said) > 30
    for name in ("Tree", "Node", "ID", "Feature"):
        assert found[name].tolist() == said[name].tolist()
    for name in ("Yes", "No", "Missing"):
        assert found[name].fillna("").tolist() == said[name].fillna("").tolist()
    for name in ("Split", "Gain", "Cover"):
        np.testing.assert_allclose(found[name].astype(float), said[name].astype(float), rtol=1e-5)
    depth = trial.tensor("trees/Depth").value(0, "TRAIN")
    assert depth.max() == 4 and depth[0] == 0


def test_categories(tmp_path):
    pandas = pytest.importorskip("pandas")
    random = np.random.RandomState(0)
    colour = random.randint(0, 8, 600)
    frame = pandas.DataFrame({"colour": pandas.Categorical(colour), "x": random.rand(600)})
    dtrain = xgb.DMatrix(frame, label=np.isin(colour, [1, 4, 6]).astype(int), enable_categorical=True)
    parameters = {"tree_method": "hist", "max_cat_to_onehot": 1}
    model, trial = run(tmp_path / "run", (dtrain, dtrain), 3, parameters, collections=["trees"])
    found = luff.xgboost.trees(trial, 0)
    said = model.trees_to_dataframe()
    said = said[said.Tree == 0].reset_index(drop=True)
    assert found["Feature"] == said["Feature"].tolist()
    assert found["Yes"][0] == said["Yes"][0] and found["No"][0] == said["No"][0]
    assert sorted(map(int, found["Category"][0])) == sorted(map(int, said["Category"][0]))


@pytest.mark.parametrize("interval", [1, 4])
def test_importance_is_that_of_the_model_so_far(sets, tmp_path, interval):
    dtrain, dval = sets
    said = {}

    class Listen(xgb.callback.TrainingCallback):
        def after_iteration(self, model, epoch, evals_log):
            said[epoch] = {
                kind: model.get_score(importance_type=kind)
                for kind in ("weight", "gain", "cover", "total_gain", "total_cover")
            }
            return False

    with luff.xgboost.Callback(
        tmp_path / "run", collections=["feature_importance"], save_interval=interval
    ) as hook:
        xgb.train(
            BASE, dtrain, 13, verbose_eval=False, callbacks=[Listen(), hook], evals=[(dval, "validation")]
        )
    trial = luff.open_trial(tmp_path / "run")
    for epoch in range(0, 13, interval):
        for kind, scores in said[epoch].items():
            total = sum(scores.values())
            for feature, score in scores.items():
                found = trial.scalars(f"feature_importance/{kind}/{feature}", "TRAIN")
                value = found["value"][found["mode_step"].tolist().index(epoch)]
                assert value == pytest.approx(score / total, rel=1e-5)


def test_only_new_trees_are_read_and_each_once(sets, tmp_path, monkeypatch):
    read = []
    original = _hook.read_rounds

    def counting(booster, begin, end):
        read.extend(range(begin, end))
        return original(booster, begin, end)

    monkeypatch.setattr(_hook, "read_rounds", counting)
    run(tmp_path / "run", sets, 70, collections=["feature_importance", "trees"])
    assert read == list(range(70))


def test_predictions_labels_and_shap(sets, tmp_path):
    dtrain, dval = sets
    names = ["predictions", "labels", "average_shap", "full_shap", "hyperparameters"]
    model, trial = run(tmp_path / "run", sets, 6, collections=names)
    last = trial.steps("TRAIN")[-1]
    np.testing.assert_array_equal(trial.tensor("predictions").value(last, "TRAIN"), model.predict(dval))
    np.testing.assert_array_equal(trial.tensor("labels").value(0, "TRAIN"), dval.get_label())
    shap = model.predict(dtrain, pred_contribs=True)
    np.testing.assert_array_equal(trial.tensor("full_shap/f3").value(last, "TRAIN"), shap[:, 3])
    average = trial.scalars("average_shap/f3", "TRAIN")["value"][-1]
    assert average == pytest.approx(float(shap[:, 3].mean()), rel=1e-4, abs=1e-7)
    assert trial.tensor("hyperparameters/objective").value(0, "TRAIN") == "binary:logistic"
    assert trial.scalars("hyperparameters/max_depth", "TRAIN")["value"][0] == 4
    assert "full_shap/bias" not in trial.collections().get("full_shap", {}).get("tensors", [])


def test_data_from_files(data, tmp_path):
    x, y = data
    np.savetxt(tmp_path / "val.csv", np.column_stack([y, x])[:50], delimiter=",")
    dtrain = xgb.DMatrix(x, label=y)
    with luff.xgboost.Callback(
        tmp_path / "run", collections=["labels", "predictions"],
        validation_data=(str(tmp_path / "val.csv"), "text/csv"),
    ) as hook:  # fmt: skip
        xgb.train(BASE, dtrain, 2, callbacks=[hook])
    assert hook.guard.first == {}
    trial = luff.open_trial(tmp_path / "run")
    np.testing.assert_array_equal(trial.tensor("labels").value(0, "TRAIN"), y[:50])
    for wrong in ((str(tmp_path / "no.csv"), "csv"), (str(tmp_path / "val.csv"), "parquet"), 3):
        with pytest.raises(luff.errors.InvalidArgumentError):
            luff.xgboost.Callback(tmp_path / "other", train_data=wrong)


def test_default_records_metrics_of_every_round_and_nothing_else(sets, tmp_path):
    dtrain, dval = sets
    with luff.xgboost.Callback(tmp_path / "run") as hook:
        xgb.train(BASE, dtrain, 12, verbose_eval=False, callbacks=[hook], evals=[(dval, "validation")])
    trial = luff.open_trial(tmp_path / "run")
    assert trial.tensors() == ["validation-logloss"]
    assert len(trial.scalars("validation-logloss", "TRAIN")["value"]) == 12
    assert trial.gaps() == []
    training = trial.document("boosting")["trainings"][0]
    assert training["rounds_planned"] == 12 and training["rows"] == 800
    assert training["parameters"]["max_depth"] == 4


def test_missing_evaluation_data_is_a_gap(sets, tmp_path):
    with luff.xgboost.Callback(tmp_path / "run", collections=["predictions"], save_interval=1) as hook:
        xgb.train(BASE, sets[0], 3, callbacks=[hook])
    gaps = luff.open_trial(tmp_path / "run").gaps()
    assert [(g["tensor"], g["reason"], g["count"]) for g in gaps] == [("predictions", "not seen", 3)]


def test_scalars_of_the_user(sets, tmp_path):
    with luff.xgboost.Callback(tmp_path / "run") as hook:
        hook.save_scalar("mine", 4.5)
        xgb.train(BASE, sets[0], 2, callbacks=[hook])
    assert luff.open_trial(tmp_path / "run").scalars("scalar/mine")["value"].tolist() == [4.5]


def test_wrong_settings_are_told_at_once(tmp_path):
    with pytest.raises(luff.LuffError, match="save_intervall"):
        luff.xgboost.Callback(tmp_path / "run", save_intervall=3)
    luff.xgboost.Callback(tmp_path / "run").close()
    with pytest.warns(UserWarning, match=r"holds a run already; this one is recorded into .*run-2"):
        luff.xgboost.Callback(tmp_path / "run").close()
