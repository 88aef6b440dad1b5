"""Luff must do no harm on a GPU. Skipped if PyTorch has no CUDA device; the same rows as in `./dev gpu`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

PARTS = Path(__file__).resolve().parents[3] / "tests/gpu"

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("part", ["identical", "harm"])
def test_a_training_is_as_without_luff(part, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(PARTS))
    monkeypatch.delitem(sys.modules, part, raising=False)
    rows = list(getattr(importlib.import_module(part), part)(tmp_path))
    assert rows
    assert [row for row in rows if row["status"] == "failed"] == []
