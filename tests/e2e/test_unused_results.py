"""Lines of a training that do nothing are named with their place; the same training without them is silent."""

from __future__ import annotations

import pytest

from .conftest import Luff

CAUSES = {
    "dropped": ("dropped", "self.noise(h)"),
    "clipped": ("dropped", "parameter.grad.data.clamp(-0.1, 0.1)"),
    "last": ("last_alone", "loss = F.cross_entropy(model(xb), yb)"),
    "replaced": ("overwritten", "loss = F.cross_entropy(scores, yb)"),
    "named": ("not_called", "optimizer.zero_grad  #"),
}


@pytest.mark.parametrize("wrong", CAUSES)
def test_each_is_named(luff: Luff, wrong: str) -> None:
    job = luff.train("unused_lines.py", arguments=(wrong,))
    told = [f for f in job.findings if f["rule"] == "UnusedResult"]
    cause, text = CAUSES[wrong]
    assert [f["cause"] for f in told] == [cause]
    assert text in told[0]["why"]
    assert "unused_lines.py:" in told[0]["what"]
    assert not told[0]["leader"]


def test_a_training_without_them_is_silent(luff: Luff) -> None:
    assert [
        f for f in luff.train("unused_lines.py", arguments=("none",)).findings if f["severity"] != "note"
    ] == []
