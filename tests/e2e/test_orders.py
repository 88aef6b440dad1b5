"""Models whose answers depend on the order of the samples in the batch, and what looks like them."""

from __future__ import annotations

import pytest

from .conftest import Luff

WRONG = {"edges": "place", "vectors": "order", "first_step": "order", "mask": "mask"}
MEANT = ("experts", "domains", "members", "series")


@pytest.mark.parametrize("name", WRONG)
def test_answers_that_depend_on_the_order_are_named(luff: Luff, name: str) -> None:
    job = luff.train("orders.py", arguments=(name,))
    leaders = {(f["rule"], f["cause"]) for f in job.findings if not f["leader"]}
    assert ("SampleMixing", WRONG[name]) in leaders


@pytest.mark.parametrize("name", [*(f"no_{name}" for name in WRONG), *MEANT])
def test_what_is_right_or_meant_is_silent(luff: Luff, name: str) -> None:
    told = luff.train("orders.py", arguments=(name,)).findings
    assert not [f for f in told if f["rule"] == "SampleMixing"]
