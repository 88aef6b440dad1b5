"""What `luff report` has on boosted models: each kind has its parts, and their numbers."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys

import luff.xgboost
import numpy as np
import pytest
import xgboost as xgb

from tests.browser import Browser
from tests.browser import executable as browser_executable
from tests.report import Report, skip_without_page

COLLECTIONS = ["feature_importance", "predictions", "labels"]
IMPORTANCE = ["weight", "gain", "cover", "total_gain", "total_cover"]


@pytest.fixture
def report(tmp_path):
    """Returns a function that trains, writes the report, and returns model, evaluation data and what is reported."""
    executable = os.environ.get("LUFF_EXECUTABLE") or shutil.which("luff")
    if executable is None:
        pytest.skip("no luff on PATH")

    def make(parameters, y, rounds=12, collections=COLLECTIONS):
        x = np.random.RandomState(0).rand(600, 5)
        labels = y(x)
        dtrain, dval = xgb.DMatrix(x[:400], label=labels[:400]), xgb.DMatrix(x[400:], label=labels[400:])
        with luff.xgboost.Callback(tmp_path / "run", collections=collections, save_interval=1) as hook:
            model = xgb.train(
                {"nthread": 1, "verbosity": 0, "max_depth": 3, **parameters}, dtrain, rounds,
                evals=[(dtrain, "train"), (dval, "<b>validation</b>")], verbose_eval=False, callbacks=[hook],
            )  # fmt: skip
        page = tmp_path / "report.html"
        command = [executable, "report", str(tmp_path / "run"), "-o", str(page)]
        done = subprocess.run(command, check=False, capture_output=True, timeout=60, text=True)
        skip_without_page(done.stderr)
        assert done.returncode == 0, done.stderr
        (training,) = Report(page.read_text()).json("boosting")["trainings"]
        return model, dval, training

    return make


def test_two_classes(report, tmp_path):
    metrics = pytest.importorskip("sklearn.metrics")
    model, dval, told = report(
        {"objective": "binary:logistic"}, lambda x: (x[:, 0] + x[:, 1] ** 2 > 0.9).astype(int)
    )
    truth, score = dval.get_label(), model.predict(dval)
    assert told["objective"] == "binary:logistic"
    assert told["labels"]["classes"] == [{"label": c, "rows": int((truth == c).sum())} for c in (0, 1)]
    (metric,) = told["metrics"]
    assert (metric["name"], [curve["name"] for curve in metric["curves"]]) == (
        "logloss",
        ["train", "<b>validation</b>"],
    )
    assert [at for at, _ in metric["curves"][0]["points"]] == list(range(12))
    assert metric["curves"][1]["points"][-1][1] == pytest.approx(metrics.log_loss(truth, score), rel=1e-4)
    assert [one["type"] for one in told["importance"]] == IMPORTANCE
    for one in told["importance"]:
        assert one["all"] == len(one["features"])
        assert sum(feature["value"] for feature in one["features"]) == pytest.approx(1, abs=1e-3)
    classes = told["classes"]
    assert (classes["round"], classes["rows"]) == (11, 200)
    assert classes["roc"]["area"] == pytest.approx(metrics.roc_auc_score(truth, score))
    assert (classes["roc"]["points"][0], classes["roc"]["points"][-1]) == ([0, 0], [1, 1])
    for average in ("macro", "weighted", "micro"):
        said = metrics.precision_recall_fscore_support(truth, score > 0.5, average=average)[:3]
        found = classes["scores"][average]
        assert [found["precision"], found["recall"], found["f1"]] == pytest.approx(said)
    assert classes["scores"]["accuracy"] == pytest.approx(metrics.accuracy_score(truth, score > 0.5))
    assert [len(curve["points"]) for curve in classes["recall"]] == [12, 12]
    assert "<b>" not in (tmp_path / "report.html").read_text()  # the file holds no name as markup


@pytest.mark.parametrize("objective", ["multi:softprob", "multi:softmax"])
def test_several_classes(report, objective):
    metrics = pytest.importorskip("sklearn.metrics")
    model, dval, told = report({"objective": objective, "num_class": 4}, lambda x: (4 * x[:, 2]).astype(int))
    predictions = model.predict(dval)
    guess = predictions.argmax(axis=1) if predictions.ndim == 2 else predictions
    matrix = metrics.confusion_matrix(dval.get_label(), guess, labels=range(4))
    assert told["classes"]["matrix"] == matrix.tolist()
    assert "roc" not in told["classes"]
    assert "regression" not in told


def test_regression(report):
    model, dval, told = report({"objective": "reg:squarederror"}, lambda x: 10 * x[:, 0] + x[:, 1])
    truth, guess = dval.get_label(), model.predict(dval)
    found = told["regression"]
    assert found["root_mean_square"] == pytest.approx(np.sqrt(np.mean((truth - guess) ** 2)), rel=1e-4)
    assert found["mean_absolute"] == pytest.approx(np.mean(np.abs(truth - guess)), rel=1e-4)
    assert sum(found["residuals"]["counts"]) == sum(told["labels"]["bins"]["counts"]) == 200
    assert len(found["errors"]) == 10
    assert "classes" not in told


@pytest.mark.parametrize(
    ("parameters", "labels", "expected"),
    [
        ({"objective": "binary:logistic"}, lambda x: (x[:, 0] > 0.5).astype(int),
         ["Confusion matrix", "Precision, recall and F1", "Accuracy of each class over the rounds", "ROC curve"]),
        ({"objective": "reg:squarederror"}, lambda x: 10 * x[:, 0] + x[:, 1],
         ["Distribution of residuals", "Absolute validation error by label, over the rounds"]),
    ],
    ids=["binary", "regression"],
)  # fmt: skip
def test_a_browser_shows_every_section(report, tmp_path, parameters, labels, expected):
    browser_executable()
    report(parameters, labels)
    with contextlib.closing(Browser(tmp_path / "profile")) as browser:
        browser.open(f"{(tmp_path / 'report.html').as_uri()}#/?view=boosting")
        browser.until("document.querySelectorAll('main h2').length > 2")
        found = browser.evaluate("[...document.querySelectorAll('main h2')].map(h => h.textContent)")
        assert found == ["True labels", "Loss and metrics over the rounds", "Feature importance", *expected]
        assert browser.evaluate("document.querySelectorAll('main figure svg path.line').length") >= 4
        shown = browser.evaluate("document.querySelector('main').innerText")
        assert "<b>validation</b>" in shown


def test_what_was_not_recorded_is_said(report, tmp_path):
    browser_executable()
    _, _, told = report(
        {"objective": "binary:logistic"}, lambda x: (x[:, 0] > 0.5).astype(int), collections=[]
    )
    assert not told["predicted"]
    assert told["importance"] == []
    assert "labels" not in told
    with contextlib.closing(Browser(tmp_path / "profile")) as browser:
        browser.open(f"{(tmp_path / 'report.html').as_uri()}#/?view=boosting")
        browser.until(
            "(document.body?.innerText ?? '').includes('need the collections predictions and labels')"
        )


def test_a_job_of_sagemaker_asks_for_it(tmp_path):
    """An unchanged script under `luff run --config job.json`: its rules run, and the report is written."""
    from luff.compat.sagemaker import DebuggerHookConfig, Job, Rule, rule_configs

    executable = os.environ.get("LUFF_EXECUTABLE") or shutil.which("luff")
    if executable is None:
        pytest.skip("no luff on PATH")
    script = tmp_path / "train.py"
    script.write_text(
        "import numpy as np, xgboost as xgb\n"
        "x = np.random.RandomState(0).rand(400, 4)\n"
        "y = (x[:, 0] > 0.5).astype(int)\n"
        "train, val = xgb.DMatrix(x[:300], label=y[:300]), xgb.DMatrix(x[300:], label=y[300:])\n"
        "xgb.train({'objective': 'binary:logistic', 'nthread': 1}, train, 20,\n"
        "          evals=[(train, 'train'), (val, 'validation')], verbose_eval=False)\n"
    )
    rules = [Rule.sagemaker(rule_configs.create_xgboost_report()), Rule.sagemaker(rule_configs.overfit())]
    Job(DebuggerHookConfig(), rules).write(tmp_path / "job.json")
    done = subprocess.run(
        [executable, "run", "--config", "job.json", "--run", "run", "--", sys.executable, str(script)],
        capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path,
        env={**os.environ, "LUFF_PYTHON": sys.executable},
    )  # fmt: skip
    page = tmp_path / "CreateXgboostReport" / "xgboost_report.html"
    assert done.returncode == 0, done.stderr
    assert "1 rule" in done.stderr
    skip_without_page(done.stderr)
    assert f"luff: report: {page}" in done.stderr
    (training,) = Report(page.read_text()).json("boosting")["trainings"]
    assert training["labels"]["rows"] == 100
    assert training["classes"]["roc"]["area"] > 0.9
