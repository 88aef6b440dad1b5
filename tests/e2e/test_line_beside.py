"""A line through the captured rows does better than a model, in trainings that no other rule needs to name."""

from __future__ import annotations

import pytest

from .conftest import Luff


@pytest.mark.parametrize(("wrong", "cause"), [("held_back", "model"), ("mirrored", "evaluation_data")])
def test_the_half_of_the_fault_is_named(luff: Luff, wrong: str, cause: str) -> None:
    job = luff.run("line_beside.py", arguments=(wrong,))
    found = {f["cause"] for f in job.findings if f["rule"] == "WorseThanSimple" and not f["healed"]}
    assert found == {cause}
