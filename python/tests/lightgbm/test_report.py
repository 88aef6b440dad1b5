"""What `luff report` has on boosted models of LightGBM: each kind has its parts."""

from __future__ import annotations

import os
import shutil
import subprocess

import lightgbm as lgb
import luff.lightgbm
import numpy as np
import pytest

from tests.report import Report, skip_without_page

COLLECTIONS = ["feature_importance", "predictions", "labels"]
KINDS = {
    "binary": ({"objective": "binary"}, lambda x: (x[:, 0] + x[:, 1] ** 2 > 0.9).astype(int), "classes"),
    "classes": ({"objective": "multiclass", "num_class": 4}, lambda x: (4 * x[:, 2]).astype(int), "classes"),
    "counts": ({"objective": "poisson"}, lambda x: (10 * x[:, 0]).astype(int), "regression"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_sections(kind, tmp_path):
    executable = os.environ.get("LUFF_EXECUTABLE") or shutil.which("luff")
    if executable is None:
        pytest.skip("no luff on PATH")
    parameters, target, part = KINDS[kind]
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
    done = subprocess.run(command, check=False, capture_output=True, timeout=60, text=True)
    skip_without_page(done.stderr)
    assert done.returncode == 0, done.stderr
    (told,) = Report(page.read_text()).json("boosting")["trainings"]
    assert told["labels"]["rows"] == 200
    assert told["metrics"]
    assert told["importance"]
    assert {"classes", "regression"} & set(told) == {part}
    assert ("roc" in told.get("classes", {})) == (kind == "binary")
    predictions = model.predict(x[400:])
    if kind == "classes":
        assert told["classes"]["scores"]["accuracy"] == pytest.approx(
            (predictions.argmax(axis=1) == y[400:]).mean()
        )
    if kind == "counts":
        error = np.sqrt(np.mean((y[400:] - predictions) ** 2))
        assert told["regression"]["root_mean_square"] == pytest.approx(error, rel=1e-3)
