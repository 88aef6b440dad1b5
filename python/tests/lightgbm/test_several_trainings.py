"""Trainings of LightGBM that follow each other in one process, under `luff run`: each has a run of its own."""

from __future__ import annotations

import luff

START = """
import hashlib
import numpy as np, lightgbm as lgb
random = np.random.RandomState(0)
x = random.rand(1500, 8); y = (x[:, 0] + x[:, 1] * x[:, 2] + 0.2 * random.randn(1500) > 0.9).astype(int)
parameters = dict(objective="binary", num_threads=1, verbosity=-1, num_leaves=7, seed=0)
def sets(fold):
    held = np.arange(1500) % 5 == fold
    data = lgb.Dataset(x[~held], y[~held])
    return data, lgb.Dataset(x[held], y[held], reference=data)
def train(rounds, fold=0, **more):
    data, other = sets(fold)
    booster = lgb.train(parameters, data, rounds, valid_sets=[data, other], valid_names=["train", "test"], **more)
    print(hashlib.sha256(booster.model_to_string().encode()).hexdigest())
    return booster
"""


def test_each_fold_has_a_run(luff_trainings, tmp_path):
    _, steps = luff_trainings(START + "for fold in range(3): train(40, fold)\n", same=True)
    assert steps == [40, 40, 40]
    for name in ("run", "run-2", "run-3"):
        with luff.open_trial(tmp_path / name) as trial:
            assert not any(name.startswith("fit") for name in trial.tensors())


def test_what_belongs_together_shares_a_run(luff_trainings):
    _, steps = luff_trainings(
        START + "booster = train(40)\ntrain(30, init_model=booster)\n"
        "lgb.cv(parameters, sets(0)[0], 30, nfold=3)\n"  # its folds take turns
        "model = lgb.LGBMClassifier(n_estimators=25, n_jobs=1, verbosity=-1)\n"
        "for fold in range(2): model.fit(x[fold::2], y[fold::2], eval_X=x, eval_y=y)\n"  # from scratch
    )
    assert steps == [70, 30, 25, 25]
