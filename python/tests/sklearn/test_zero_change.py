"""`luff run` on scripts that never mention Luff: what is recorded, what is reported, what is ignored."""

from __future__ import annotations

import luff
import pytest

START = """
import warnings; warnings.simplefilter("ignore")
import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits
random = np.random.RandomState(0)
x, y = load_digits(return_X_y=True); x = x / 16
def batches(model, x, y, passes=3, size=50, shuffled=True, **classes):
    for _ in range(passes):
        order = random.permutation(len(y)) if shuffled else np.arange(len(y))
        for begin in range(0, len(y), size):
            part = order[begin : begin + size]
            model.partial_fit(x[part], y[part], **classes)
"""
NETWORK = START + "from sklearn.neural_network import MLPClassifier\n"
LINEAR = START + "from sklearn.linear_model import SGDClassifier\n"
BOOSTED = START + "from sklearn.ensemble import *\nx, y = load_breast_cancer(return_X_y=True)\n"


def test_everything_that_trains_step_by_step_is_one_worker(luff_findings):
    _, _, trial = luff_findings(
        NETWORK + "from sklearn.linear_model import SGDRegressor\n"
        "from sklearn.cluster import MiniBatchKMeans\n"
        "from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor\n"
        "MLPClassifier((16,), max_iter=3, random_state=0).fit(x, y)\n"
        "m = SGDRegressor(random_state=0); batches(m, x, y, passes=1)\n"
        "SGDRegressor(random_state=0).fit(x, y)\n"  # one call, one step: not recorded
        "RandomForestRegressor(5).fit(x, y)\n"  # not recorded either
        "MiniBatchKMeans(10, n_init=1, random_state=0).fit(x)\n"
        "GradientBoostingRegressor(n_estimators=4).fit(x, y)\n"
    )
    assert len(trial.workers()) == 1
    assert len(trial.tensor("NLLLoss_output_0").steps("TRAIN")) == 27
    assert len(trial.tensor("SGDRegressor.squared_error_output_0").steps("TRAIN")) == 36
    assert len(trial.tensor("train-squared_error").steps("TRAIN")) == 4
    assert "scalar/MiniBatchKMeans_inertia" in trial.tensors()
    assert not any("RandomForest" in name or "SGDRegressor_2" in name for name in trial.tensors())


def test_a_hook_of_the_script_is_taken_instead(luff_findings):
    _, _, trial = luff_findings(
        NETWORK + "import luff.sklearn\n"
        "m = MLPClassifier((16,), max_iter=3, random_state=0)\n"
        "hook = luff.sklearn.attach(m, collections=['weights'], save_interval=4)\n"
        "m.fit(x, y)\n"
    )
    assert len(trial.workers()) == 1
    assert trial.tensor("MLPClassifier_layer0.weight").value_steps("TRAIN")[:3] == [0, 4, 8]


@pytest.mark.thorough
def test_what_uses_it_beside_torch_is_no_worker(luff_findings):
    pytest.importorskip("torch")
    _, _, trial = luff_findings(
        "import torch\n" + LINEAR + "from sklearn.ensemble import RandomForestClassifier\n"
        "RandomForestClassifier(5).fit(x, y); SGDClassifier().fit(x, y)\n"
        "model = torch.nn.Linear(64, 10)\n"
        "o = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for _ in range(3):\n"
        "    o.zero_grad(); model(torch.zeros(4, 64)).sum().backward(); o.step()\n"
    )
    assert len(trial.workers()) == 1
    assert not any("SGDClassifier" in name for name in trial.tensors())


@pytest.mark.thorough
def test_cross_validation_in_processes(luff_findings):
    _, _, trial = luff_findings(
        NETWORK + "from sklearn.model_selection import cross_val_score\n"
        "if __name__ == '__main__':\n"
        "    m = MLPClassifier((8,), max_iter=3, random_state=0)\n"
        "    cross_val_score(m, x, y, cv=4, n_jobs=2, error_score='raise')\n"
    )
    with luff.open_trial(f"{trial.path}-2") as other:  # a run for each process
        for one in (trial, other):
            assert len(one.workers()) == 1
            assert "NLLLoss_output_0" in one.tensors()


def test_a_finding_stops_the_training(luff_findings):
    done, rules, trial = luff_findings(
        NETWORK + "import luff\n"
        "luff.on_stop(lambda: print('saved'))\n"
        "m = MLPClassifier((64,), learning_rate_init=1.0, max_iter=3000, n_iter_no_change=3000, random_state=0)\n"
        "m.fit(x, y)\n",
        "--on-finding",
        "stop",
        expect=76,
    )
    assert rules[0] == "WeightUpdateRatio"
    assert "saved" in done.stdout
    assert trial.outcome == "stopped"
    assert 30 < len(trial.steps("TRAIN")) < 9 * 3000


HEALTHY = {
    "network": NETWORK + "MLPClassifier((64,), max_iter=60, random_state=0).fit(x, y)",
    "linear model": LINEAR + "m = SGDClassifier(loss='log_loss', random_state=0)\n"
    "batches(m, x, y, classes=np.arange(10))",
    "network, lbfgs": NETWORK + "MLPClassifier((32,), solver='lbfgs', random_state=0).fit(x, y)",
    "boosting": BOOSTED + "GradientBoostingClassifier(n_iter_no_change=10, random_state=0).fit(x, y)\n"
    "HistGradientBoostingClassifier(early_stopping=True, random_state=0).fit(x, y)",
    "cross-validation": NETWORK + "from sklearn.model_selection import cross_val_score\n"
    "cross_val_score(MLPClassifier((32,), max_iter=20, random_state=0), x, y, cv=4)",
}


@pytest.mark.parametrize(
    "program", ["network", *(pytest.param(p, marks=pytest.mark.thorough) for p in list(HEALTHY)[1:])]
)
def test_healthy_program_is_silent(luff_findings, program):
    _, rules, _ = luff_findings(HEALTHY[program] + "\n")
    assert rules == []


FAULTS = {
    "features that are not scaled": (
        "InputScale",
        NETWORK + "MLPClassifier((64,), max_iter=20, random_state=0).fit(16000 * x, y)",
    ),
    "a column that is filled after the outcome": (
        "FeatureImportanceOverweight",
        BOOSTED + "x[:, 3] = y + 0.05 * random.randn(len(y))\n"
        "GradientBoostingClassifier(n_estimators=50, random_state=0).fit(x, y)",
    ),
    "data that come class by class": (
        "BatchOrder",
        NETWORK + "o = np.argsort(y, kind='stable')\n"
        "m = MLPClassifier((64,), max_iter=10, shuffle=False, batch_size=32, random_state=0)\n"
        "m.fit(x[o], y[o])",
    ),
    "a learning rate that is far too high": (
        "WeightUpdateRatio",
        NETWORK + "MLPClassifier((64,), learning_rate_init=1.0, max_iter=40, random_state=0).fit(x, y)",
    ),
    "rounds that are far too small": (
        "LossNotDecreasing",
        BOOSTED + "GradientBoostingClassifier(learning_rate=1e-6, random_state=0).fit(x, y)",
    ),
    "trees that learn single rows": (
        "TreeDepth",
        "import numpy as np\nfrom sklearn.ensemble import HistGradientBoostingClassifier\n"
        "random = np.random.RandomState(0)\n"
        "x = random.rand(1500, 12); y = (x[:, 0] + 0.4 * random.randn(1500) > 0.5).astype(int)\n"
        "HistGradientBoostingClassifier(max_leaf_nodes=None, min_samples_leaf=1, max_iter=40).fit(x, y)",
    ),
}


@pytest.mark.parametrize(
    "program",
    [*list(FAULTS)[:2], *(pytest.param(p, marks=pytest.mark.thorough) for p in list(FAULTS)[2:])],
)
def test_fault_is_named_first(luff_findings, program):
    rule, script = FAULTS[program]
    _, rules, _ = luff_findings(script + "\n")
    assert rules and rules[0] == rule, rules
