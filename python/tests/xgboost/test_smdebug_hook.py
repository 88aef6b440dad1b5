"""smdebug's hook for XGBoost, on Luff: names, rounds, values; models do not change."""

from __future__ import annotations

import json
from pathlib import Path

import luff.compat.smdebug.xgboost as smd
import numpy as np
import pytest
import xgboost as xgb
from luff.compat.smdebug.exceptions import SMDebugError
from luff.compat.smdebug.xgboost.utils import parse_tree_model

PARAMETERS = {"objective": "binary:logistic", "eval_metric": ["logloss", "auc"], "max_depth": 3, "seed": 1}


@pytest.fixture(autouse=True)
def _no_hook():
    yield
    hook = smd.get_hook(create_if_not_exists=False)
    if hook is not None:
        hook.close()
    smd.del_hook()


def train(sets, hook=None, rounds=12, **options):
    dtrain, dtest = sets
    return xgb.train(
        PARAMETERS, dtrain, rounds, evals=[(dtrain, "train"), (dtest, "test")], verbose_eval=False,
        callbacks=[hook] if hook is not None else [], **options,
    )  # fmt: skip


def every(tmp_path: Path, **options):
    options.setdefault("save_config", smd.SaveConfig(save_interval=1))
    return smd.Hook(out_dir=str(tmp_path / "t"), **options)


def finished(hook, tmp_path: Path):
    hook.close()
    return smd.create_trial(str(tmp_path / "t"))


def test_metrics_are_saved_every_tenth_round_without_configuration(sets, tmp_path: Path):
    hook = smd.Hook(out_dir=str(tmp_path / "t"))
    log: dict = {}
    train(sets, hook, evals_result=log)
    trial = finished(hook, tmp_path)
    assert trial.steps() == [0, 10]
    assert trial.tensor_names() == ["test-auc", "test-logloss", "train-auc", "train-logloss"]
    assert trial.tensor("test-logloss").value(10) == log["test"]["logloss"][10]
    assert trial.tensor_names(collection="losses") == ["test-logloss", "train-logloss"]


def test_models_are_bit_by_bit_the_same(sets, tmp_path: Path):
    bare = train(sets)
    hook = every(
        tmp_path, save_all=True, train_data=sets[0], validation_data=sets[1], hyperparameters=PARAMETERS
    )
    assert train(sets, hook).save_raw() == bare.save_raw()


def test_importance_is_what_the_model_says(sets, tmp_path: Path):
    hook = every(tmp_path, include_collections=["feature_importance"])
    model = train(sets, hook)
    trial = finished(hook, tmp_path)
    for kind in ("weight", "gain", "cover", "total_gain", "total_cover"):
        score = model.get_score(importance_type=kind)
        total = sum(score.values())
        for feature, value in score.items():
            saved = trial.tensor(f"feature_importance/{kind}/{feature}").value(11)[0]
            assert saved == pytest.approx(value / total, rel=1e-4)


def test_trees_are_those_of_the_data_frame(sets, tmp_path: Path):
    pytest.importorskip("pandas")
    hook = every(tmp_path, include_collections=["trees"])
    model = train(sets, hook)
    trial = finished(hook, tmp_path)
    frame = model.trees_to_dataframe()
    for step in (0, 7):
        rows = frame[frame["Tree"] == step]
        for column in ("Node", "Gain", "Cover", "Split"):
            saved = trial.tensor(f"trees/{column}").value(step)
            np.testing.assert_allclose(saved, rows[column].to_numpy(float), rtol=1e-5)
        assert trial.tensor("trees/Feature").value(step).tolist() == rows["Feature"].tolist()
        assert trial.tensor("trees/ID").value(step).tolist() == rows["ID"].tolist()
    assert set(parse_tree_model(model, 3)) >= {"Yes", "No", "Missing", "Category"}


def test_shap_predictions_labels_and_parameters(sets, tmp_path: Path):
    hook = every(
        tmp_path,
        include_collections=["average_shap", "full_shap", "predictions", "labels", "hyperparameters"],
        train_data=sets[0],
        validation_data=sets[1],
        hyperparameters={"eta": 0.3, "objective": "binary:logistic"},
    )
    model = train(sets, hook, rounds=3)
    trial = finished(hook, tmp_path)
    shap = model.predict(sets[0], pred_contribs=True)
    np.testing.assert_allclose(trial.tensor("full_shap/f2").value(2), shap)
    np.testing.assert_allclose(trial.tensor("average_shap/f2").value(2)[0], shap[:, 2].mean(), rtol=1e-5)
    assert not trial.tensor_names(regex="/bias$")
    np.testing.assert_array_equal(trial.tensor("predictions").value(2), model.predict(sets[1]))
    np.testing.assert_array_equal(trial.tensor("labels").value(0), sets[1].get_label())
    assert trial.tensor("hyperparameters/eta").value(0)[0] == 0.3
    assert trial.tensor("hyperparameters/objective").value(0)[0] == "binary:logistic"


def test_scalars_go_with_their_round_and_those_after_the_end_after_it(sets, tmp_path: Path):
    hook = every(tmp_path)
    hook.save_scalar("before", 1)
    train(sets, hook, rounds=3)
    hook.save_scalar("after", 2)
    trial = finished(hook, tmp_path)
    assert trial.tensor("scalar/before").steps() == [0]
    assert trial.tensor("scalar/after").steps() == [3]
    assert trial.tensor("test-auc").steps() == [0, 1, 2]


def test_a_json_file_with_the_default_interval(sets, tmp_path: Path):
    path = tmp_path / "hook.json"
    listed = [{"CollectionName": "feature_importance"}]
    path.write_text(json.dumps({"LocalPath": str(tmp_path / "t"), "CollectionConfigurations": listed}))
    hook = smd.get_hook(str(path))
    train(sets, hook)
    trial = finished(hook, tmp_path)
    assert trial.steps() == [0, 10]
    assert trial.tensor_names(collection="feature_importance")


def test_cross_validation_saves_its_metrics(sets, tmp_path: Path):
    hook = every(tmp_path, save_all=True)
    xgb.cv(PARAMETERS, sets[0], 3, nfold=2, callbacks=[hook])
    assert finished(hook, tmp_path).tensor("test-logloss").steps() == [0, 1, 2]


def test_data_that_is_none_is_told(tmp_path: Path):
    with pytest.raises(SMDebugError, match="expected a DMatrix"):
        every(tmp_path, train_data=5)
