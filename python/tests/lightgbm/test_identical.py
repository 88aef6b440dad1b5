"""Models and metrics are bit by bit the same as without Luff, whatever is recorded."""

from __future__ import annotations

import lightgbm as lgb
import luff
import luff.lightgbm
import numpy as np
import pytest

ALL = [
    "feature_importance", "trees", "predictions", "labels", "average_shap", "full_shap", "hyperparameters",
]  # fmt: skip
BASE = {"num_threads": 1, "seed": 3, "verbosity": -1, "num_leaves": 9}


def squares(predictions, data):
    """A custom objective."""
    return predictions - data.get_label(), np.ones_like(predictions)


def spread(predictions, data):
    """A custom metric."""
    return "spread", float(np.abs(predictions - data.get_label()).max()), False


CASES = {
    "plain": ({"objective": "binary", "metric": ["binary_logloss", "auc"], "num_threads": 2}, {}),
    "subsampled": (
        {"objective": "binary", "bagging_fraction": 0.6, "bagging_freq": 1, "feature_fraction": 0.5},
        {},
    ),
    "goss": ({"objective": "binary", "data_sample_strategy": "goss", "learning_rate": 0.5}, {}),
    "dart": ({"objective": "binary", "boosting": "dart", "drop_rate": 0.5, "skip_drop": 0.0}, {}),
    "forest": ({"objective": "binary", "boosting": "rf", "bagging_fraction": 0.6, "bagging_freq": 1}, {}),
    "classes": ({"objective": "multiclass", "num_class": 3}, {}),
    "ranks": ({"objective": "lambdarank", "eval_at": [3, 5]}, {}),
    "regression": ({"objective": "quantile", "alpha": 0.7, "linear_tree": False}, {}),
    "linear": ({"objective": "regression", "linear_tree": True}, {}),
    "own": ({"objective": squares, "metric": "None"}, {"feval": spread}),
    "early": ({"objective": "binary", "learning_rate": 0.8, "early_stopping_round": 2}, {}),
}


def train(case, data, callbacks, rounds=12):
    x, y = data
    parameters, arguments = CASES[case]
    y = (x[:, 2] * 3).astype(int) if case in ("classes", "ranks") else y
    groups = {"group": [20] * 40} if case == "ranks" else {}
    dtrain = lgb.Dataset(x[:800], y[:800], **groups)
    dval = lgb.Dataset(x[800:], y[800:], reference=dtrain, **({"group": [20] * 20} if groups else {}))
    result = {}
    booster = lgb.train(
        {**BASE, **parameters}, dtrain, rounds, valid_sets=[dtrain, dval], valid_names=["train", "validation"],
        callbacks=[lgb.record_evaluation(result), *callbacks], **arguments,
    )  # fmt: skip
    return booster, result, booster.predict(x[800:])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("interval", [1, 5])
def test_model_metrics_and_predictions(case, interval, data, tmp_path):
    bare, bare_result, bare_predictions = train(case, data, [])
    with luff.lightgbm.Callback(tmp_path / "run", collections=ALL, save_interval=interval) as hook:
        model, result, predictions = train(case, data, [hook])
    assert model.model_to_string() == bare.model_to_string()
    assert result == bare_result
    assert predictions.tobytes() == bare_predictions.tobytes()
    assert hook.guard.first == {}
    trial = luff.open_trial(tmp_path / "run")
    assert len(trial.steps("TRAIN")) == len(next(iter(next(iter(result.values())).values())))
    for name, values in ((f"{s}-{m}", v) for s, metrics in result.items() for m, v in metrics.items()):
        assert trial.scalars(name, "TRAIN")["value"].tolist() == values


@pytest.mark.parametrize("kind", ["LGBMClassifier", "LGBMRegressor", "LGBMRanker"])
def test_estimators(kind, data, tmp_path):
    x, y = data

    def fit(callbacks):
        model = getattr(lgb, kind)(n_estimators=8, num_leaves=7, n_jobs=1, verbosity=-1, subsample=0.8,
                                   subsample_freq=2)  # fmt: skip
        groups = {"group": [40] * 20, "eval_group": [[40] * 10]} if kind == "LGBMRanker" else {}
        return model.fit(
            x[:800], y[:800], eval_X=x[800:], eval_y=y[800:], callbacks=callbacks, **groups
        )  # fmt: skip

    bare = fit([])
    with luff.lightgbm.Callback(tmp_path / "run", collections=ALL, save_interval=2) as hook:
        model = fit([hook])
    assert model.booster_.model_to_string() == bare.booster_.model_to_string()
    assert model.evals_result_ == bare.evals_result_
    assert hook.guard.first == {}


@pytest.mark.parametrize(
    ("owner", "name", "place"),
    [("hook", "read_rounds", "trees"), ("hook", "parameters_of", "describe"), ("hook", "_copy_of", "predict"),
     ("recorder", "metrics", "record"), ("recorder", "array", "record"), ("recorder", "shap", "record")],
)  # fmt: skip
def test_an_error_inside_luff_harms_nothing(owner, name, place, data, tmp_path, monkeypatch):
    bare, bare_result, _ = train("plain", data, [])
    from luff._boosting import _recorder
    from luff.lightgbm import _hook

    def fail(*_args, **_kwargs):
        raise RuntimeError("on purpose")

    monkeypatch.setattr(_hook if owner == "hook" else _recorder.Recorder, name, fail)
    with luff.lightgbm.Callback(tmp_path / "run", collections=ALL, save_interval=1) as hook:
        model, result, _ = train("plain", data, [hook])
    assert model.model_to_string() == bare.model_to_string()
    assert result == bare_result
    assert place in hook.guard.first
    trial = luff.open_trial(tmp_path / "run")
    assert len(trial.steps("TRAIN")) == 12
    assert any(gap["reason"] == "hook error" for gap in trial.gaps())


def test_the_whole_hook_failing_harms_nothing(data, tmp_path, monkeypatch):
    bare, bare_result, _ = train("plain", data, [])
    from luff._boosting import _trainings
    from luff.lightgbm import _hook

    for owner, names in (
        (_hook.Callback, ("_begins", "_raw_data")),
        (_trainings.Trainings, ("_round", "_end", "publish")),
    ):
        for name in names:
            monkeypatch.setattr(owner, name, lambda *_: 1 / 0)
    with luff.lightgbm.Callback(tmp_path / "run", collections=ALL) as hook:
        model, result, _ = train("plain", data, [hook])
    assert model.model_to_string() == bare.model_to_string()
    assert result == bare_result
    assert "begin" in hook.guard.first
