"""Where the time of a round goes."""

from __future__ import annotations

SCRIPT = """
import numpy as np, xgboost as xgb
random = np.random.RandomState(0)
x = random.rand(1500, 8); y = (x[:, 0] > 0.5).astype(int)
data, other = xgb.DMatrix(x[:1200], label=y[:1200]), xgb.DMatrix(x[1200:], label=y[1200:])
booster = xgb.train(
    dict(objective="binary:logistic", nthread=1), data, 40, evals=[(other, "test")], verbose_eval=False
)
"""


def test_rounds_and_evaluations_are_told_apart(start_luff, phases_of):
    start_luff(SCRIPT)
    shown, lines = phases_of()
    assert shown["steps"] == 40
    assert lines["compute"]["steps"] == lines["eval"]["steps"] == 40
    assert lines["data_start"]["steps"] == 1  # before the first round
