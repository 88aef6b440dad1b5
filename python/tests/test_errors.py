"""Status codes of C++ become typed errors in Python."""

from __future__ import annotations

import pytest
from luff import _core, errors

CODES = {
    1: (errors.InvalidArgumentError, ValueError),
    2: (errors.NotFoundError, LookupError),
    3: (errors.AlreadyExistsError, FileExistsError),
    4: (errors.OutOfRangeError, IndexError),
    5: (errors.FailedPreconditionError, RuntimeError),
    6: (errors.CorruptionError, ValueError),
    7: (errors.UnsupportedVersionError, RuntimeError),
    8: (errors.IoError, OSError),
    9: (errors.ResourceExhaustedError, RuntimeError),
    10: (errors.UnavailableError, RuntimeError),
    11: (errors.DeadlineExceededError, TimeoutError),
    12: (errors.CancelledError, RuntimeError),
    13: (errors.InternalError, RuntimeError),
}


@pytest.mark.parametrize("code", CODES)
def test_each_code_raises_its_class_with_the_message(code: int) -> None:
    ours, builtin = CODES[code]
    with pytest.raises(ours) as caught:
        _core.raise_status(code, "2 found, 3 expected in /x/y")
    assert type(caught.value) is ours
    assert isinstance(caught.value, builtin)
    assert isinstance(caught.value, errors.LuffError)
    assert str(caught.value) == "2 found, 3 expected in /x/y"


def test_codes_have_distinct_names() -> None:
    names = [ours.code for ours, _ in CODES.values()]
    assert len(set(names)) == len(CODES)


def test_unknown_code_is_an_argument_error() -> None:
    for code in (0, 14, -1):
        with pytest.raises(errors.InvalidArgumentError, match="1 to 13"):
            _core.raise_status(code, "x")


def test_message_keeps_text_of_other_languages() -> None:
    with pytest.raises(errors.NotFoundError, match="größer"):
        _core.raise_status(2, "größer 重み")


def test_stop_training_passes_except_exception() -> None:
    def swallow() -> str:
        try:
            raise errors.StopTraining(76)
        except Exception:
            return "swallowed"

    with pytest.raises(SystemExit) as caught:
        swallow()
    assert caught.value.code == 76
