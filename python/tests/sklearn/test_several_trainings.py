"""Trainings of scikit-learn that follow each other in one process, under `luff run`: each has a run of its own."""

from __future__ import annotations

import luff

START = """
import warnings; warnings.simplefilter("ignore")
import hashlib
import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import GradientBoostingRegressor, HistGradientBoostingClassifier
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import cross_val_score
from sklearn.neural_network import MLPClassifier
x, y = load_digits(return_X_y=True); x = x / 16
def network(**more): return MLPClassifier((16,), batch_size=100, random_state=0, **more)
def show(model): print(hashlib.sha256(np.ascontiguousarray(model.predict_proba(x))).hexdigest())
"""


def test_each_training_from_scratch_has_a_run(luff_trainings, tmp_path):
    _, steps = luff_trainings(
        START + "print(cross_val_score(network(max_iter=11), x[:1500], y[:1500], cv=3).tolist())\n"
        "model = network(max_iter=12)\n"
        "for fold in range(2): model.fit(x[fold:1000], y[fold:1000]); show(model)\n"
        "HistGradientBoostingClassifier(max_iter=25, max_leaf_nodes=4).fit(x[:300], y[:300] > 4)\n"
        "GradientBoostingRegressor(n_estimators=30).fit(x[:300], y[:300])\n",
        same=True,
    )
    assert steps == [110, 110, 110, 120, 120, 25, 30]
    with luff.open_trial(tmp_path / "run-3") as trial:
        assert "NLLLoss_output_0" in trial.tensors()
        assert not any("MLPClassifier_2" in name for name in trial.tensors())
    with luff.open_trial(tmp_path / "run-7") as trial:
        assert "train-squared_error" in trial.tensors()


def test_what_belongs_together_shares_a_run(luff_trainings):
    _, steps = luff_trainings(
        START + "def probe(*_): network(max_iter=1).fit(x[:100], y[:100])\n"  # inside of another training
        "GradientBoostingRegressor(n_estimators=60).fit(x[:300], y[:300], monitor=probe)\n"
        "model = network(max_iter=10, warm_start=True)\n"
        "for _ in range(3): model.fit(x[:1000], y[:1000])\n"
        "for _ in range(20): model.partial_fit(x[:200], y[:200])\n"
        "grown = GradientBoostingRegressor(n_estimators=30, warm_start=True).fit(x[:300], y[:300])\n"
        "grown.set_params(n_estimators=60).fit(x[:300], y[:300])\n"
        "models = [SGDClassifier(loss='log_loss', random_state=seed) for seed in (0, 1)]\n"
        "for _ in range(2):\n"  # they take turns
        "    for model in models:\n"
        "        for begin in range(0, 1100, 10):\n"
        "            model.partial_fit(x[begin:begin + 10], y[begin:begin + 10], classes=np.arange(10))\n"
        "network(max_iter=12).fit(x[:1000], y[:1000])\n"
    )
    assert steps == [60 + 60, 340, 60, 110, 330 + 120]
