"""`luff.wait`: the same batches, and as true as they are."""

from __future__ import annotations

import luff


def test_wait_is_as_true_as_what_it_iterates_over() -> None:
    assert luff.wait(number for number in range(2))  # has no length
    assert luff.wait([1, 2])
    assert not luff.wait([])


def test_wait_yields_what_it_is_given_each_time() -> None:
    batches = luff.wait([1, 2])
    assert (len(batches), list(batches), list(batches)) == (2, [1, 2], [1, 2])
    assert list(luff.wait(number for number in range(2))) == [0, 1]
