"""Trainings of XGBoost that follow each other in one process, under `luff run`: each has a run of its own."""

from __future__ import annotations

import luff

START = """
import hashlib
import numpy as np, xgboost as xgb
random = np.random.RandomState(0)
x = random.rand(1500, 8); y = (x[:, 0] + x[:, 1] * x[:, 2] + 0.2 * random.randn(1500) > 0.9).astype(int)
parameters = dict(objective="binary:logistic", nthread=1, max_depth=3)
def sets(fold):
    held = np.arange(1500) % 5 == fold
    return xgb.DMatrix(x[~held], label=y[~held]), xgb.DMatrix(x[held], label=y[held])
def train(rounds, fold=0, **more):
    data, other = sets(fold)
    booster = xgb.train(
        parameters, data, rounds, evals=[(data, "train"), (other, "test")], verbose_eval=False, **more
    )
    print(hashlib.sha256(booster.save_raw("ubj")).hexdigest())
    return booster
"""


def test_each_fold_has_a_run(luff_trainings, tmp_path):
    said, steps = luff_trainings(START + "for fold in range(3): train(40, fold)\n", same=True)
    assert steps == [40, 40, 40]
    assert "luff: training 2 of the job has a run of its own" in said
    for name in ("run", "run-2", "run-3"):
        with luff.open_trial(tmp_path / name) as trial:
            assert not any(name.startswith("fit") for name in trial.tensors())
            assert trial.scalars("train-logloss", "TRAIN")["value"][0] > 0.4  # from the start


def test_what_belongs_together_shares_a_run(luff_trainings, tmp_path):
    _, steps = luff_trainings(
        START + "booster = train(40)\n"
        "for _ in range(2): booster = train(30, xgb_model=booster)\n"
        "xgb.cv(parameters, sets(0)[0], 30, nfold=3)\n"  # its folds take turns
        "for fold in range(80): train(4, fold % 5)\n"  # a search of short trainings
    )
    assert steps == [100, 30, 64 * 4]
    with luff.open_trial(tmp_path / "run-3") as trial:
        missed = sum(gap["count"] for gap in trial.gaps() if gap["reason"] == "too many")
    assert 32 <= missed <= 16 * 4
