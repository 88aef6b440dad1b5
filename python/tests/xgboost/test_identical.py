"""Models and metrics are bit by bit the same as without Luff, whatever is recorded."""

from __future__ import annotations

import luff
import luff.xgboost
import numpy as np
import pytest
import xgboost as xgb

ALL = [
    "feature_importance", "trees", "predictions", "labels", "average_shap", "full_shap", "hyperparameters",
]  # fmt: skip
BASE = {"nthread": 2, "seed": 3, "verbosity": 0, "max_depth": 4}


def squares(predictions, matrix):
    """A custom objective."""
    return predictions - matrix.get_label(), np.ones_like(predictions)


def spread(predictions, matrix):
    """A custom metric."""
    return "spread", float(np.abs(predictions - matrix.get_label()).max())


CASES = {
    "plain": ({"objective": "binary:logistic", "eval_metric": ["logloss", "auc"]}, {}),
    "subsampled": ({"objective": "binary:logistic", "subsample": 0.6, "colsample_bytree": 0.5}, {}),
    "exact": ({"objective": "reg:squarederror", "tree_method": "exact"}, {}),
    "classes": ({"objective": "multi:softprob", "num_class": 3}, {}),
    "forest": ({"objective": "reg:squarederror", "num_parallel_tree": 3, "subsample": 0.5}, {}),
    "dart": ({"objective": "binary:logistic", "booster": "dart", "rate_drop": 0.4}, {}),
    "linear": (
        {
            "objective": "reg:squarederror",
            "booster": "gblinear",
            "updater": "coord_descent",
            "max_depth": None,
        },
        {},
    ),
    "lossguide": ({"objective": "binary:logistic", "grow_policy": "lossguide", "max_leaves": 9}, {}),
    "own": ({"disable_default_eval_metric": 1, "base_score": 0.5}, {"obj": squares, "custom_metric": spread}),
    "early": ({"objective": "binary:logistic"}, {"early_stopping_rounds": 2}),
}


def train(case, data, callbacks):
    x, y = data
    parameters, arguments = CASES[case]
    parameters = {k: v for k, v in {**BASE, **parameters}.items() if v is not None}
    y = (x[:, 2] * 3).astype(int) if case == "classes" else y
    dtrain, dval = xgb.DMatrix(x[:800], label=y[:800]), xgb.DMatrix(x[800:], label=y[800:])
    result = {}
    booster = xgb.train(
        parameters, dtrain, 12, evals=[(dtrain, "train"), (dval, "validation")], evals_result=result,
        verbose_eval=False, callbacks=callbacks, **arguments,
    )  # fmt: skip
    return booster, result, booster.predict(dval)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("interval", [1, 5])
def test_model_metrics_and_predictions(case, interval, data, tmp_path):
    bare, bare_result, bare_predictions = train(case, data, None)
    with luff.xgboost.Callback(tmp_path / "run", collections=ALL, save_interval=interval) as hook:
        model, result, predictions = train(case, data, [hook])
    assert model.save_raw("ubj") == bare.save_raw("ubj")
    assert result == bare_result
    assert np.array_equal(predictions, bare_predictions)
    places = set(hook.guard.first)
    assert places <= ({"trees"} if case == "linear" else set()), hook.guard.first
    trial = luff.open_trial(tmp_path / "run")
    assert len(trial.steps("TRAIN")) == len(next(iter(result["train"].values())))
    for name, values in (
        (f"{s}-{m}", values) for s, metrics in result.items() for m, values in metrics.items()
    ):
        assert trial.scalars(name, "TRAIN")["value"].tolist() == values


def test_a_hook_that_fails_everywhere_harms_nothing(data, tmp_path, monkeypatch):
    bare, bare_result, _ = train("plain", data, None)
    from luff._boosting import _recorder
    from luff.xgboost import _hook

    def fail(*_args, **_kwargs):
        raise RuntimeError("on purpose")

    for owner, name in (
        (_hook, "read_rounds"), (_hook, "parameters_of"), (_recorder.Recorder, "metrics"),
        (_recorder.Recorder, "array"), (_recorder.Recorder, "shap"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, fail)
    with luff.xgboost.Callback(tmp_path / "run", collections=ALL, save_interval=1) as hook:
        model, result, _ = train("plain", data, [hook])
    assert model.save_raw("ubj") == bare.save_raw("ubj")
    assert result == bare_result
    assert hook.guard.count > 0
    gaps = luff.open_trial(tmp_path / "run").gaps()
    assert any(gap["reason"] == "hook error" for gap in gaps), gaps


def test_the_whole_hook_failing_harms_nothing(data, tmp_path, monkeypatch):
    bare, bare_result, _ = train("plain", data, None)
    from luff._boosting import _trainings

    for name in ("_begin", "_round", "_end", "publish"):
        monkeypatch.setattr(_trainings.Trainings, name, lambda *_: 1 / 0)
    with luff.xgboost.Callback(tmp_path / "run", collections=ALL) as hook:
        model, result, _ = train("plain", data, [hook])
    assert model.save_raw("ubj") == bare.save_raw("ubj")
    assert result == bare_result
    assert "begin" in hook.guard.first
