"""Where the time of an iteration goes."""

from __future__ import annotations

SCRIPT = """
import time
import numpy as np
from sklearn.linear_model import SGDClassifier
random = np.random.RandomState(0)
x = random.rand(200, 8); y = (x[:, 0] > 0.5).astype(int)
model = SGDClassifier()
for _ in range(20):
    model.partial_fit(x, y, classes=[0, 1])
    time.sleep(0.002)
"""


def test_calls_that_train_are_told_from_what_is_between(start_luff, phases_of):
    start_luff(SCRIPT)
    shown, lines = phases_of()
    assert lines["compute"]["steps"] == shown["steps"] == 20
    assert lines["other"]["seconds"] >= 0.002 * 18
