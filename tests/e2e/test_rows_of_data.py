"""What datasets and loops do to rows and cannot be meant, under ``luff run``."""

from __future__ import annotations

import pytest

from .conftest import Luff

WRONG = {
    "in_place": "TrainValSkew",
    "drawn_in_evaluations": "TrainValSkew",
    "other_rows": "TrainValSkew",
    "erased": "TrainValSkew",
    "moved_apart": "LabelNoise",
    "one_row": "RepeatedBatch",
}


@pytest.mark.parametrize("cause", WRONG)
def test_each_is_named(luff: Luff, cause: str) -> None:
    found = luff.train("rows_of_data.py", arguments=(cause,)).findings
    assert (WRONG[cause], cause) in {(f["rule"], f["cause"]) for f in found}


@pytest.mark.parametrize("cause", WRONG)
def test_what_is_meant_is_silent(luff: Luff, cause: str) -> None:
    found = luff.train("rows_of_data.py", arguments=(f"no_{cause}",)).findings
    assert not {(f["rule"], f["cause"]) for f in found} & {(rule, name) for name, rule in WRONG.items()}
