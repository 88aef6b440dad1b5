"""Boosting beyond the fault bench: programs that no rule's limits were tuned on.

Healthy ones have no findings, whatever their shape; faults are named by one of the rules made for them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import luff.xgboost
import numpy as np
import pytest
import xgboost as xgb

datasets = pytest.importorskip("sklearn.datasets")

BINARY = {"objective": "binary:logistic"}
REGRESSION = {"objective": "reg:squarederror"}


def cancer(random):
    return datasets.load_breast_cancer(return_X_y=True)


def diabetes(random):
    return datasets.load_diabetes(return_X_y=True)


def classes(count):
    return {"objective": "multi:softprob", "num_class": count}


def friedman(random):
    return datasets.make_friedman1(3000, noise=1, random_state=random)


def one_feature(random):
    x = random.rand(3000, 10)
    return x, 3 * x[:, 0] + 0.5 * random.randn(3000)


def one_feature_of_classes(random):
    x = random.randn(3000, 12)
    return x, (random.rand(3000) < 1 / (1 + np.exp(-3 * x[:, 0]))).astype(int)


def made(random, rows=3000, **more):
    return datasets.make_classification(rows, 20, n_informative=8, random_state=random, **more)


def noisy(random, rows=1000, noise=0.8):
    x = random.rand(rows, 10)
    return x, (x[:, 0] + noise * random.randn(rows) > 0.5).astype(int)


def noisy_regression(random):
    x = random.rand(800, 10)
    return x, x[:, 0] + 0.5 * random.randn(800)


def counts(random):
    x = random.rand(2000, 6)
    return x, random.poisson(np.exp(x[:, 0] + x[:, 1]))


def shuffled(random):
    x, y = cancer(random)
    return x, random.permutation(y)


def leaking(noise):
    def data(random):
        x, y = cancer(random)
        return np.column_stack([x, y + noise * random.randn(len(y))]), y

    return data


def leaking_regression(random):
    x, y = diabetes(random)
    return np.column_stack([x, 2 * y + 1 + random.randn(len(y))]), y


#: Name: data, parameters, rounds, further arguments of xgb.train.
HEALTHY = {
    "defaults": (cancer, BINARY, 100, {}),
    "slow": (cancer, {**BINARY, "eta": 0.01, "max_depth": 3}, 300, {}),
    "dart": (cancer, {**BINARY, "booster": "dart", "rate_drop": 0.2, "max_depth": 3}, 50, {}),
    "digits": (lambda _: datasets.load_digits(return_X_y=True), {**classes(10), "max_depth": 4}, 40, {}),
    "wine": (lambda _: datasets.load_wine(return_X_y=True), {**classes(3), "max_depth": 3}, 40, {}),
    "iris": (lambda _: datasets.load_iris(return_X_y=True), {**classes(3), "max_depth": 3}, 30, {}),
    "regression": (diabetes, {**REGRESSION, "eta": 0.05, "max_depth": 2, "subsample": 0.7}, 80, {}),
    "friedman": (friedman, {**REGRESSION, "eta": 0.1, "max_depth": 5}, 80, {}),
    "one feature": (one_feature, {**REGRESSION, "eta": 0.1, "max_depth": 3}, 60, {}),
    "one feature of classes": (one_feature_of_classes, {**BINARY, "eta": 0.1, "max_depth": 2}, 60, {}),
    "forest": (made, {**BINARY, "num_parallel_tree": 20, "subsample": 0.6, "max_depth": 14, "eta": 1}, 3, {}),
    "deep": (lambda r: made(r, 6000, class_sep=1.5), {**BINARY, "max_depth": 12, "eta": 0.05}, 60, {}),
    "rare": (lambda r: made(r, 5000, weights=[0.97]), {**BINARY, "eta": 0.1, "max_depth": 4}, 50, {}),
    "early": (noisy, {**BINARY, "eta": 0.1, "max_depth": 3}, 200, {"early_stopping_rounds": 10}),
    "counts": (counts, {"objective": "count:poisson", "max_depth": 3}, 60, {}),
}
#: Name: data, parameters, rounds, rules of which one must report first.
FAULTY = {
    "shuffled": (shuffled, {**BINARY, "eta": 0.1, "max_depth": 4}, 80, {"Overfit"}),
    "eta 5": (cancer, {**BINARY, "eta": 5, "max_depth": 3}, 60, {"LossNotDecreasing"}),
    "eta 2.5": (diabetes, {**REGRESSION, "eta": 2.5, "max_depth": 3}, 60, {"LossNotDecreasing"}),
    "eta 1e-5": (friedman, {**REGRESSION, "eta": 1e-5, "max_depth": 5}, 80, {"LossNotDecreasing"}),
    "no split": (cancer, {**BINARY, "gamma": 1e6}, 60, {"LossNotDecreasing"}),
    "leak": (leaking(0.2), {**BINARY, "eta": 0.2, "max_depth": 3}, 60, {"FeatureImportanceOverweight"}),
    "leak of a number": (
        leaking_regression, {**REGRESSION, "eta": 0.2, "max_depth": 4}, 60, {"FeatureImportanceOverweight"},
    ),
    "deep": (
        noisy_regression, {**REGRESSION, "max_depth": 30, "min_child_weight": 0, "lambda": 0}, 60, {"TreeDepth"},
    ),
    "deep numbers": (diabetes, {**REGRESSION, "max_depth": 25, "min_child_weight": 0}, 60, {"TreeDepth"}),
    "overfit": (lambda r: noisy(r, 400, 0.5), {**BINARY, "max_depth": 6}, 150, {"Overfit", "Overtraining"}),
}  # fmt: skip


@pytest.fixture(scope="module")
def luff_command():
    executable = os.environ.get("LUFF_EXECUTABLE") or shutil.which("luff")
    if executable is None:
        pytest.skip("no luff on PATH")

    def call(*arguments):
        done = subprocess.run(
            [executable, *arguments], capture_output=True, text=True, timeout=120, check=False
        )
        return done.stdout

    return call


def findings(luff_command, tmp_path, data, parameters, rounds, more, seed=0):
    """Returns the names of the rules that lead, in order."""
    random = np.random.RandomState(seed)
    x, y = data(random)
    order = random.permutation(len(y))
    cut = len(y) * 7 // 10
    train, validation = order[:cut], order[cut:]
    dtrain, dval = xgb.DMatrix(x[train], label=y[train]), xgb.DMatrix(x[validation], label=y[validation])
    wanted = json.loads(luff_command("rules", "--capture"))["collections"]
    with luff.xgboost.Callback(tmp_path / "run", collections=wanted) as hook:
        xgb.train(
            {"nthread": 1, "verbosity": 0, **parameters}, dtrain, rounds, verbose_eval=False, callbacks=[hook],
            evals=[(dtrain, "train"), (dval, "validation")], **more,
        )  # fmt: skip
    assert hook.guard.first == {}
    lines = [json.loads(line) for line in luff_command("check", str(tmp_path / "run"), "--json").splitlines()]
    return [line["rule"] for line in lines if not line["leader"]]


@pytest.mark.parametrize("program", HEALTHY)
def test_healthy_program_is_silent(luff_command, tmp_path, program):
    assert findings(luff_command, tmp_path, *HEALTHY[program]) == []


@pytest.mark.parametrize("program", FAULTY)
def test_fault_is_named(luff_command, tmp_path, program):
    data, parameters, rounds, rules = FAULTY[program]
    found = findings(luff_command, tmp_path, data, parameters, rounds, {})
    assert found and found[0] in rules, found
