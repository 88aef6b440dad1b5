"""`luff run` on scripts that never mention Luff: what is recorded, what is reported, what is ignored."""

from __future__ import annotations

import luff
import pytest

DATA = """
import numpy as np, lightgbm as lgb
random = np.random.RandomState(0)
x = random.rand(1500, 12); y = (x[:, 0] + x[:, 1] * x[:, 2] + 0.2 * random.randn(1500) > 0.9).astype(int)
parameters = dict(objective="binary", num_threads=1, verbosity=-1)
def sets():
    train = lgb.Dataset(x[:1000], y[:1000])
    return train, lgb.Dataset(x[1000:], y[1000:], reference=train)
train, validation = sets()
both = dict(valid_sets=[train, validation], valid_names=["train", "validation"])
"""


def test_native(luff_findings):
    done, _, trial = luff_findings(DATA + "lgb.train(parameters, train, 20, **both)\n")
    assert "no findings" in done.stderr
    assert trial.steps("TRAIN") == list(range(20))
    assert trial.tensor("train-binary_logloss").module == ("train", "training")
    assert trial.tensor("validation-binary_logloss").module == ("validation", "evaluation")
    assert trial.outcome == "completed"


def test_estimator_cross_validation_and_names_taken_before(luff_findings):
    _, _, trial = luff_findings(
        DATA + "from lightgbm import train as fit, LGBMRegressor\n"
        "LGBMRegressor(n_estimators=5, n_jobs=1, verbosity=-1).fit(x, y, eval_X=x, eval_y=y)\n"
        "lgb.cv(parameters, train, 4, nfold=2)\n"
        "fit(parameters, sets()[0], 3)\n"
    )
    assert len(trial.steps("TRAIN")) == 12
    assert {"training-l2", "fit2/valid-binary_logloss"} <= set(trial.tensors())


def test_a_hook_of_the_script_is_taken_instead(luff_findings):
    _, _, trial = luff_findings(
        DATA + "import luff.lightgbm\n"
        "hook = luff.lightgbm.Callback(collections=['average_shap'], save_interval=2)\n"
        "lgb.train(parameters, train, 6, callbacks=[hook], **both)\n"
    )
    assert len(trial.workers()) == 1
    assert trial.scalars("average_shap/Column_1", "TRAIN")["mode_step"].tolist() == [0, 2, 4]


@pytest.mark.thorough
def test_what_imports_it_and_trains_nothing_is_no_worker(luff_findings):
    pytest.importorskip("torch")
    _, _, trial = luff_findings(
        "import torch\n" + DATA + "model = torch.nn.Linear(8, 1)\n"
        "o = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for _ in range(3):\n"
        "    o.zero_grad(); model(torch.zeros(4, 8)).sum().backward(); o.step()\n"
    )
    assert len(trial.workers()) == 1


@pytest.mark.thorough
def test_forked_children_have_runs_of_their_own(luff_findings):
    _, _, trial = luff_findings(
        DATA + "import multiprocessing\n"
        "def one(seed):\n"
        "    d = lgb.Dataset(x, y)\n"
        "    lgb.train({**parameters, 'seed': seed}, d, 3, valid_sets=[d])\n"
        "jobs = [multiprocessing.get_context('fork').Process(target=one, args=(s,)) for s in (1, 2)]\n"
        "[job.start() for job in jobs]; [job.join() for job in jobs]\n"
        "assert all(job.exitcode == 0 for job in jobs)\n"
    )
    with luff.open_trial(f"{trial.path}-2") as other:
        for one in (trial, other):
            assert one.tensor("training-binary_logloss").workers(2, "TRAIN") == [0]


def test_a_finding_stops_the_training_after_a_round(luff_findings):
    done, rules, trial = luff_findings(
        DATA + "import luff, time\n"
        "@luff.on_stop\n"
        "def save():\n"
        "    print('saved')\n"
        "lgb.train({**parameters, 'learning_rate': 1e-8}, train, 6000, callbacks=[lambda e: time.sleep(0.005)],\n"
        "          **both)\n",
        "--on-finding",
        "stop",
        expect=76,
    )
    assert rules == ["LossNotDecreasing"]
    assert "saved" in done.stdout
    assert trial.outcome == "stopped"
    assert 19 < len(trial.steps("TRAIN")) < 6000


HEALTHY = {
    "default": "lgb.train(parameters, train, 60, **both)",
    "many rounds, stopped early": "lgb.train({**parameters, 'early_stopping_round': 10}, train, 400, **both)",
    "regression": (
        "z = 3 * x[:, 0] + np.sin(6 * x[:, 1]) + 0.1 * random.randn(1500)\n"
        "d = lgb.Dataset(x[:1000], z[:1000]); v = lgb.Dataset(x[1000:], z[1000:], reference=d)\n"
        "lgb.train({**parameters, 'objective': 'regression'}, d, 100, valid_sets=[d, v])"
    ),
    "deep, and the data bear it": (
        "x = random.rand(20000, 12); y = (np.sin(9 * x[:, 0]) + np.sin(7 * x[:, 1]) > 0).astype(int)\n"
        "d = lgb.Dataset(x[:16000], y[:16000]); v = lgb.Dataset(x[16000:], y[16000:], reference=d)\n"
        "lgb.train({**parameters, 'num_leaves': 127}, d, 40, valid_sets=[d, v])"
    ),
    "dart": "lgb.train({**parameters, 'boosting': 'dart'}, train, 40, **both)",
    "ranks": (
        "r = (4 * x[:, 0] + 0.5 * random.randn(1500)).clip(0, 4).astype(int)\n"
        "d = lgb.Dataset(x[:1000], r[:1000], group=[20] * 50)\n"
        "v = lgb.Dataset(x[1000:], r[1000:], group=[20] * 25, reference=d)\n"
        "lgb.train({**parameters, 'objective': 'lambdarank'}, d, 40, valid_sets=[d, v])"
    ),
}


@pytest.mark.parametrize(
    "program", ["default", *(pytest.param(p, marks=pytest.mark.thorough) for p in list(HEALTHY)[1:])]
)
def test_healthy_program_is_silent(luff_findings, program):
    _, rules, _ = luff_findings(DATA + HEALTHY[program] + "\n")
    assert rules == []


FAULTS = {
    "a column that is filled after the outcome": (
        "FeatureImportanceOverweight",
        "x[:, 7] = y + 0.05 * random.randn(1500)\n"
        "d = lgb.Dataset(x[:1000], y[:1000]); v = lgb.Dataset(x[1000:], y[1000:], reference=d)\n"
        "lgb.train(parameters, d, 60, valid_sets=[d, v])",
    ),
    "trees that learn single rows": (
        "TreeDepth",
        "more = {'num_leaves': 1000, 'min_data_in_leaf': 1, 'min_sum_hessian_in_leaf': 0}\n"
        "lgb.train({**parameters, **more}, train, 60, **both)",
    ),
    "labels shuffled apart from their rows": (
        "Overfit",
        "random.shuffle(y)\n"
        "d = lgb.Dataset(x[:1000], y[:1000]); v = lgb.Dataset(x[1000:], y[1000:], reference=d)\n"
        "lgb.train({**parameters, 'num_leaves': 15}, d, 80, valid_sets=[d, v])",
    ),
    "steps that are far too small": (
        "LossNotDecreasing",
        "lgb.train({**parameters, 'learning_rate': 1e-6}, train, 60, **both)",
    ),
}


@pytest.mark.parametrize(
    "program",
    [*list(FAULTS)[:2], *(pytest.param(p, marks=pytest.mark.thorough) for p in list(FAULTS)[2:])],
)
def test_fault_is_named_first(luff_findings, program):
    rule, script = FAULTS[program]
    _, rules, _ = luff_findings(DATA + script + "\n")
    assert rules and rules[0] == rule, rules
