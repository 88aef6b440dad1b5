"""Parts of losses and of models that cannot be meant, under ``luff run``."""

from __future__ import annotations

import pytest

from .conftest import Luff

WRONG = {
    "deviation_unlike": "LossFormula",
    "surrogate_upside_down": "LossFormula",
    "same_view": "ContrastivePairs",
    "softmax_between": "MissingActivation",
}


@pytest.mark.parametrize("cause", WRONG)
def test_each_is_named(luff: Luff, cause: str) -> None:
    found = luff.train("formula_parts.py", arguments=(cause,)).findings
    assert (WRONG[cause], cause) in {(f["rule"], f["cause"]) for f in found}


@pytest.mark.parametrize("cause", WRONG)
def test_what_is_meant_is_silent(luff: Luff, cause: str) -> None:
    found = luff.train("formula_parts.py", arguments=(f"no_{cause}",)).findings
    assert not {(f["rule"], f["cause"]) for f in found} & {(rule, name) for name, rule in WRONG.items()}
