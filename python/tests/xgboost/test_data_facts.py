"""What the document `boosting` says of the rows and labels of a training and of its evaluations."""

from __future__ import annotations

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
    rows = np.random.default_rng(0).normal(size=(500, 3))
    other = rows[:40].copy()
    other[20:, 2] += 1
    other[0, 0] = np.nan
    own, (facts,) = describe_data(Table(np.concatenate([rows, rows[:5]])), [Table(other)])
    assert facts["known"] == 19
    assert own["repeated"] == 10
    zeros, (facts,) = describe_data(Table(np.zeros((4, 1))), [Table(-np.zeros((3, 1)))])
    assert facts["known"] == 3
    assert zeros["repeated"] == 4
    assert _data._short(1 / 3) == 0.3333333
