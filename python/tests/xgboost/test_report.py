"""`luff report` on boosted models: the sections of each kind, and their numbers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import luff.xgboost
import numpy as np
import pytest
import xgboost as xgb

COLLECTIONS = ["feature_importance", "predictions", "labels"]
BOTH = ["True labels", "Loss and metrics over the rounds", "Feature importance"]
CLASSES = ["Confusion matrix", "Precision, recall and F1", "Accuracy of each class over the rounds"]
REGRESSION = ["Distribution of residuals", "Absolute validation error by label, over the rounds"]


@pytest.fixture
def report(tmp_path):
    """Returns a function that trains, writes the report, and returns model, evaluation data and page."""
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
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        return model, dval, page.read_text()

    return make


def shown(path, profile):
    """Returns the page as a browser shows it after loading."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no browser; install chromium")
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--dump-dom",
         path.as_uri()],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-500:]
    return done.stdout


def sections(page):
    return re.findall(r"<h2>(.*?)</h2>", page)


def table(page, row):
    cells = re.search(rf"<tr><th>{row}</th>(.*?)</tr>", page.split("Precision, recall and F1</h2>")[1]).group(
        1
    )
    return [float(cell) for cell in re.findall(r"<td>(.*?)</td>", cells)]


def test_two_classes(report):
    metrics = pytest.importorskip("sklearn.metrics")
    model, dval, page = report(
        {"objective": "binary:logistic"}, lambda x: (x[:, 0] + x[:, 1] ** 2 > 0.9).astype(int)
    )
    assert sections(page) == [*BOTH, *CLASSES, "ROC curve"]
    truth, score = dval.get_label(), model.predict(dval)
    area = float(re.search(r"\(AUC\) <b>(.*?)</b>", page).group(1))
    assert area == pytest.approx(metrics.roc_auc_score(truth, score), abs=1e-4)
    for row, average in (
        ("macro average", "macro"),
        ("weighted average", "weighted"),
        ("micro average", "micro"),
    ):
        said = metrics.precision_recall_fscore_support(truth, score > 0.5, average=average)[:3]
        assert table(page, row)[:3] == pytest.approx(said, abs=1e-4)
    assert "<b>validation" not in page  # names are escaped
    assert "<script" not in page and "http" not in page.replace("http-equiv", "")


@pytest.mark.parametrize("objective", ["multi:softprob", "multi:softmax"])
def test_several_classes(report, objective):
    metrics = pytest.importorskip("sklearn.metrics")
    model, dval, page = report({"objective": objective, "num_class": 4}, lambda x: (4 * x[:, 2]).astype(int))
    assert sections(page) == [*BOTH, *CLASSES]
    predictions = model.predict(dval)
    guess = predictions.argmax(axis=1) if predictions.ndim == 2 else predictions
    matrix = metrics.confusion_matrix(dval.get_label(), guess, labels=range(4))
    rows = re.findall(r"<tr><th>\d</th>((?:<td style.*?</td>)+)</tr>", page)
    found = [[int(n) for n in re.findall(r">(\d+)</td>", row)] for row in rows]
    assert found == matrix.tolist()


def test_regression(report):
    model, dval, page = report({"objective": "reg:squarederror"}, lambda x: 10 * x[:, 0] + x[:, 1])
    assert sections(page) == [*BOTH, *REGRESSION]
    error = np.sqrt(np.mean((dval.get_label() - model.predict(dval)) ** 2))
    assert float(re.search(r"root mean square ([\d.e+-]+)", page).group(1)) == pytest.approx(error, rel=1e-3)


@pytest.mark.parametrize(
    ("parameters", "labels", "expected"),
    [
        ({"objective": "binary:logistic"}, lambda x: (x[:, 0] > 0.5).astype(int), [*CLASSES, "ROC curve"]),
        ({"objective": "multi:softprob", "num_class": 3}, lambda x: (3 * x[:, 1]).astype(int), CLASSES),
        ({"objective": "reg:squarederror"}, lambda x: 10 * x[:, 0] + x[:, 1], REGRESSION),
    ],
    ids=["binary", "several", "regression"],
)
def test_a_browser_shows_every_section(report, tmp_path, parameters, labels, expected):
    _, _, page = report(parameters, labels)
    seen = shown(tmp_path / "report.html", tmp_path / "profile")
    assert sections(seen) == [*BOTH, *expected]
    for element in ("<svg", "<path", "<polyline", "<rect", "<table", "<td"):
        assert seen.count(element) == page.count(element), element  # the browser repaired nothing
    assert seen.count("<svg") >= 4


def test_what_was_not_recorded_is_said(report):
    _, _, page = report(
        {"objective": "binary:logistic"}, lambda x: (x[:, 0] > 0.5).astype(int), collections=[]
    )
    assert sections(page) == ["Loss and metrics over the rounds"]
    assert "need the collections predictions and labels" in page


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
    assert f"luff: report: {page}" in done.stderr
    assert "1 rule" in done.stderr
    assert sections(page.read_text()) == [*BOTH, *CLASSES, "ROC curve"]
