"""Kinds of training that are well and were taken for a mistake: published programs nobody had seen."""

from __future__ import annotations

import pytest

from .conftest import Luff

ONCE_TOLD = {
    "even_keys": {("VanishingGradient", "ratio")},
    "bags": {("LabelNoise", "unrelated")},
}


@pytest.mark.parametrize("name", ONCE_TOLD)
def test_what_they_were_taken_for_is_not_told(luff: Luff, name: str) -> None:
    told = {(f["rule"], f["cause"]) for f in luff.train("well_by_nature.py", arguments=(name,)).findings}
    assert not told & ONCE_TOLD[name]
