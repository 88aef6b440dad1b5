"""What the document `boosting` says of the rows and labels of a training and of its evaluations."""

from __future__ import annotations

import json

import luff
import luff.xgboost
import numpy as np
import pytest
import xgboost as xgb
from luff._boosting import _data
from luff._boosting._data import Table, describe_data

BASE = {"objective": "binary:logistic", "nthread": 1, "max_depth": 2}


@pytest.fixture
def described(tmp_path):
    """Trains three rounds; returns the training's description."""

    def train(dtrain, *evals, parameters=BASE):
        with luff.xgboost.Callback(tmp_path / "run") as hook:
            xgb.train(parameters, dtrain, 3, evals=list(evals), callbacks=[hook], verbose_eval=False)
        assert hook.guard.first == {}
        with luff.open_trial(tmp_path / "run") as trial:
            return trial.document("boosting")["trainings"][0]

    return train


def test_rows_that_are_in_both(described, data):
    x, y = data
    dtrain = xgb.DMatrix(x[:800], y[:800])
    mixed = xgb.DMatrix(np.concatenate([x[800:], x[:100]]), np.concatenate([y[800:], y[:100]]))
    found = described(dtrain, (dtrain, "train"), (mixed, "valid"))
    own, other = (one["data"] for one in found["evaluations"])
    assert own == {}  # it is the training, as `training` says
    assert other["looked"] == 500
    assert other["known"] == 100
    assert found["data"]["looked"] == 800
    assert found["data"]["repeated"] == 0
    assert found["data"]["columns"]["means"] == pytest.approx(x[:800].mean(axis=0), rel=1e-5)
    assert other["labels"]["count"] == 500
    assert other["labels"]["mean"] == pytest.approx(np.concatenate([y[800:], y[:100]]).mean(), rel=1e-5)


def test_quantised_rows_are_compared_as_bins(described, data):
    x, y = data
    dtrain = xgb.QuantileDMatrix(x[:800], y[:800], max_bin=64)
    other = xgb.QuantileDMatrix(x[800:], y[800:], ref=dtrain, max_bin=64)
    found = described(dtrain, (other, "valid"), parameters=BASE | {"max_bin": 64})
    assert found["evaluations"][0]["data"]["known"] < 20
    assert found["data"]["repeated"] < 20


def test_large_data_are_not_read(described, data, monkeypatch):
    x, y = data
    monkeypatch.setattr("luff.xgboost._describe.MAX_VALUES", 100)
    monkeypatch.setattr(xgb.DMatrix, "get_data", lambda self: pytest.fail("it was read"))
    dtrain = xgb.DMatrix(x, y)
    found = described(dtrain, (xgb.DMatrix(x[:50], y[:50]), "valid"))
    assert set(found["data"]) == {"labels"}
    assert set(found["evaluations"][0]["data"]) == {"labels"}


def test_folds_have_none(tmp_path, data):
    with luff.xgboost.Callback(tmp_path / "run") as hook:
        xgb.cv(BASE, xgb.DMatrix(*data), 3, nfold=2, callbacks=[hook])
    with luff.open_trial(tmp_path / "run") as trial:
        assert "data" not in trial.document("boosting")["trainings"][0]


def test_what_is_no_table_of_numbers_is_left_out():
    rows = np.arange(12.0).reshape(6, 2)
    for odd in (None, "file.csv", [[1, 2]], np.array([["a", "b"]]), np.zeros(3), np.zeros((0, 2))):
        own, (other,) = describe_data(Table(rows, np.ones(6)), [Table(odd, None)])
        assert "known" not in other
        assert own["labels"]["deviation"] == 0
        own, (other,) = describe_data(Table(odd, np.array(["a"])), [Table(rows, np.array([1.0, np.nan]))])
        assert (own, other) == ({}, {})


def test_rows_are_equal_where_all_values_are():
    generator = np.random.default_rng(0)
    rows, labels = generator.normal(size=(500, 3)), generator.normal(size=500)
    other = rows[:40].copy()
    other[20:, 2] += 1
    other[0, 0] = np.nan
    given = Table(np.concatenate([rows, rows[:5]]), np.concatenate([labels, labels[:5]]))
    own, (facts,) = describe_data(given, [Table(other, labels[:40])])
    assert facts["known"] == 19
    assert own["repeated"] == 10
    zeros, (facts,) = describe_data(
        Table(np.zeros((4, 1)), np.zeros(4)), [Table(-np.zeros((3, 1)), -np.zeros(3))]
    )
    assert facts["known"] == 3
    assert zeros["repeated"] == 4
    assert _data._short(1 / 3) == 0.3333333


def test_equal_rows_with_other_labels_are_other_rows():
    """The same customers a month later, or the same places a year later."""
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(500, 3))
    _, (facts,) = describe_data(
        Table(rows, generator.integers(0, 2, 500)), [Table(rows, generator.integers(0, 2, 500))]
    )
    assert facts["looked"] == 500
    assert facts["known"] == 0
    _, (facts,) = describe_data(Table(rows), [Table(rows)])  # without labels nothing is said
    assert "known" not in facts


def test_of_many_rows_some_are_compared():
    generator = np.random.default_rng(0)
    rows, labels = generator.normal(size=(1 << 18, 2)), generator.normal(size=1 << 18)
    mixed = Table(np.concatenate([rows[:3000], rows[:3000] + 100]), np.concatenate([labels[:3000]] * 2))
    own, (facts, *more) = describe_data(Table(rows, labels), [mixed] * 6)
    assert own["looked"] == 2048
    assert own["repeated"] == 0
    assert 1000 < facts["looked"] < 2000
    assert 0.4 < facts["known"] / facts["looked"] < 0.6
    assert [bool(one) for one in more] == [True] * 3 + [False] * 2


def test_numbers_too_large_for_their_squares(recwarn):
    rows = np.ones((60, 2))
    rows[3, 0], rows[:, 1] = np.finfo(np.float64).max, np.arange(60)
    labels = np.arange(60.0)
    labels[5] = 1e300
    own, (other,) = describe_data(Table(rows, labels), [Table(rows, labels)])
    assert "labels" not in own
    assert own["columns"]["deviations"][0] is None
    assert other["known"] == 60
    json.dumps([own, other], allow_nan=False)
    assert not recwarn.list


def logistic(margins, data):
    shares = 1 / (1 + np.exp(-margins))
    return shares - data.get_label(), shares * (1 - shares)


@pytest.mark.parametrize(
    ("objective", "parameters", "expected"),
    [
        (None, {"objective": "binary:logistic"}, ("binary:logistic", "logloss")),
        (logistic, {}, ("custom", "")),
        (logistic, {"eval_metric": "rmse"}, ("custom", "rmse")),
        (logistic, [("eval_metric", "mae"), ("eta", 0.3)], ("custom", "mae")),
    ],
)
def test_objectives_of_the_users_own(tmp_path, data, objective, parameters, expected):
    """What the booster names then is its default, and so is the metric, unless the user names one."""
    x, y = data
    dtrain = xgb.DMatrix(x[:800], y[:800])
    with luff.xgboost.Callback(tmp_path / "run") as hook:
        xgb.train(
            parameters,
            dtrain,
            3,
            obj=objective,
            evals=[(dtrain, "train")],
            callbacks=[hook],
            verbose_eval=False,
        )
    assert hook.guard.first == {}
    with luff.open_trial(tmp_path / "run") as trial:
        found = trial.document("boosting")["trainings"][0]["parameters"]
    assert (found["objective"], found["eval_metric"]) == expected


def test_an_own_objective_of_an_estimator(tmp_path, data):
    x, y = data
    with luff.xgboost.Callback(tmp_path / "run") as hook:
        xgb.XGBRegressor(
            n_estimators=3,
            objective=lambda labels, margins: (margins - labels, np.ones_like(margins)),
            callbacks=[hook],
        ).fit(x[:800], y[:800], eval_set=[(x[800:], y[800:])], verbose=False)
    assert hook.guard.first == {}
    with luff.open_trial(tmp_path / "run") as trial:
        assert trial.document("boosting")["trainings"][0]["parameters"]["objective"] == "custom"
