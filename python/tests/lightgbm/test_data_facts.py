"""What the document `boosting` says of LightGBM's rows and labels, which it drops once they are binned."""

from __future__ import annotations

import lightgbm as lgb
import luff
import luff.lightgbm
import numpy as np
import pytest

BASE = {"num_threads": 1, "verbosity": -1, "objective": "binary"}


@pytest.fixture
def described(tmp_path):
    """Trains three rounds; returns the training's description."""

    def train(data, *others, **arguments):
        with luff.lightgbm.Callback(tmp_path / "run") as hook:
            lgb.train(BASE, data, 3, valid_sets=list(others), callbacks=[hook], **arguments)
        assert hook.guard.first == {}
        with luff.open_trial(tmp_path / "run") as trial:
            return trial.document("boosting")["trainings"][0]

    return train


def test_rows_that_are_in_both(described, data):
    x, y = data
    train = lgb.Dataset(x[:800], y[:800])
    mixed = lgb.Dataset(
        np.concatenate([x[800:], x[:100]]), np.concatenate([y[800:], y[:100]]), reference=train
    )
    found = described(train, mixed, train, valid_names=["valid", "train"])
    by_name = {one["name"]: one["data"] for one in found["evaluations"]}
    assert by_name["train"] == {}
    assert by_name["valid"]["looked"] == 500
    assert by_name["valid"]["known"] == 100
    assert found["data"]["repeated"] == 0
    assert found["data"]["labels"]["mean"] == pytest.approx(y[:800].mean(), rel=1e-5)


def test_sets_that_were_binned_before_tell_nothing_of_their_rows(described, data):
    x, y = data
    train = lgb.Dataset(x[:800], y[:800]).construct()
    found = described(train, train.create_valid(x[800:], y[800:]))
    assert "looked" not in found["data"]
    assert "known" not in found["evaluations"][0]["data"]
