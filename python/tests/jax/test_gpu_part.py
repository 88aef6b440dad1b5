"""The part of `./dev gpu` about frameworks, as far as it goes without a GPU: on the CPU in its place."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

PARTS = Path(__file__).resolve().parents[3] / "tests/gpu"


def frameworks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(PARTS))
    monkeypatch.delitem(sys.modules, "frameworks", raising=False)
    return importlib.import_module("frameworks")


@pytest.mark.parametrize(
    "name", ["jax", pytest.param("tensorflow", marks=pytest.mark.thorough)]
)  # TensorFlow is slow to begin
def test_a_framework_trains_as_without_luff(name, tmp_path, monkeypatch):
    rows = list(frameworks(monkeypatch).frameworks(tmp_path, "cpu", (name,)))
    assert [row["check"] for row in rows] == [
        f"{name}: same losses and weights",
        f"{name}: recorded as it was",
    ]
    assert [row["status"] for row in rows] == ["passed"] * 2, rows


def test_one_that_has_no_gpu_is_skipped(tmp_path, monkeypatch):
    part = frameworks(monkeypatch)
    (row,) = part.frameworks(tmp_path, "gpu", ("jax",))
    assert (row["status"], row["detail"]) == ("skipped", "jax trains on cpu")
    monkeypatch.setitem(part.SCRIPTS, "jax", "import no_such_framework")
    (row,) = part.frameworks(tmp_path, "gpu", ("jax",))
    assert row["status"] == "skipped"
    assert "No module named 'no_such_framework'" in row["detail"]
