"""Where the time of a round goes."""

from __future__ import annotations

SCRIPT = """
import numpy as np, lightgbm as lgb
random = np.random.RandomState(0)
x = random.rand(1500, 8); y = (x[:, 0] > 0.5).astype(int)
data = lgb.Dataset(x[:1200], label=y[:1200])
lgb.train(
    dict(objective="binary", num_threads=1, verbose=-1), data, 40, valid_sets=[data.create_valid(x[1200:], y[1200:])]
)
"""


def test_rounds_and_evaluations_are_told_apart(start_luff, phases_of):
    start_luff(SCRIPT)
    shown, lines = phases_of()
    assert shown["steps"] == 40
    assert lines["compute"]["steps"] == lines["eval"]["steps"] == 40
