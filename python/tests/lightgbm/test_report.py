"""`luff report` on boosted models of LightGBM: each kind has its sections."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import lightgbm as lgb
import luff.lightgbm
import numpy as np
import pytest

COLLECTIONS = ["feature_importance", "predictions", "labels"]
BOTH = ["True labels", "Loss and metrics over the rounds", "Feature importance"]
CLASSES = ["Confusion matrix", "Precision, recall and F1", "Accuracy of each class over the rounds"]
REGRESSION = ["Distribution of residuals", "Absolute validation error by label, over the rounds"]
KINDS = {
    "binary": ({"objective": "binary"}, lambda x: (x[:, 0] + x[:, 1] ** 2 > 0.9).astype(int),
               [*BOTH, *CLASSES, "ROC curve"]),
    "classes": ({"objective": "multiclass", "num_class": 4}, lambda x: (4 * x[:, 2]).astype(int),
                [*BOTH, *CLASSES]),
    "counts": ({"objective": "poisson"}, lambda x: (10 * x[:, 0]).astype(int), [*BOTH, *REGRESSION]),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_sections(kind, tmp_path):
    executable = os.environ.get("LUFF_EXECUTABLE") or shutil.which("luff")
    if executable is None:
        pytest.skip("no luff on PATH")
    parameters, target, sections = KINDS[kind]
    x = np.random.RandomState(0).rand(600, 5)
    y = target(x)
    train = lgb.Dataset(x[:400], y[:400])
    validation = lgb.Dataset(x[400:], y[400:], reference=train)
    with luff.lightgbm.Callback(tmp_path / "run", collections=COLLECTIONS, save_interval=1) as hook:
        model = lgb.train(
            {"num_threads": 1, "verbosity": -1, "num_leaves": 7, **parameters}, train, 12,
            valid_sets=[train, validation], callbacks=[hook],
        )  # fmt: skip
    page = tmp_path / "report.html"
    command = [executable, "report", str(tmp_path / "run"), "-o", str(page)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    text = page.read_text()
    assert re.findall(r"<h2>(.*?)</h2>", text) == sections
    predictions = model.predict(x[400:])
    if kind == "classes":
        found = float(re.search(r"<p>accuracy ([\d.]+)</p>", text).group(1))
        assert found == pytest.approx((predictions.argmax(axis=1) == y[400:]).mean(), abs=1e-4)
    if kind == "counts":
        error = np.sqrt(np.mean((y[400:] - predictions) ** 2))
        told = float(re.search(r"root mean square ([\d.e+-]+)", text).group(1))
        assert told == pytest.approx(error, rel=1e-3)
