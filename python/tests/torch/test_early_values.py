"""Values that are kept before the session is open: memory that is not there, bounds."""

from __future__ import annotations

import torch
from luff._codes import GapReason
from luff.torch.capture import _early
from torch import nn


def reasons(kept: _early.EarlyValues) -> list[int]:
    return [value.reason for _, _, values in kept._calls for value, _ in values]


def test_memory_that_is_not_there_is_a_gap() -> None:
    freed = torch.ones(1000)
    freed.untyped_storage().resize_(0)
    part = torch.ones(1000)[500:]
    part.untyped_storage().resize_(0)
    kept = _early.EarlyValues()
    kept.before(nn.Identity(), (torch._efficientzerotensor((4, 4)), freed, part, torch.ones(3)), {})
    unsupported = int(GapReason.UNSUPPORTED)
    assert reasons(kept) == [unsupported, unsupported, unsupported, int(GapReason.NONE)]


def test_a_tensor_that_is_kept_twice_is_copied_once_until_it_changes() -> None:
    module, x = nn.Identity(), torch.ones(1000)
    kept = _early.EarlyValues()
    for _ in range(3):
        kept.before(module, (x,), {})
    assert kept._bytes == 4000
    x.add_(1)
    kept.before(module, (x,), {})
    assert kept._bytes == 8000


def test_what_is_dropped_is_counted(monkeypatch) -> None:
    monkeypatch.setattr(_early, "_MAX_VALUES", 2)
    kept = _early.EarlyValues()
    module = nn.Identity()
    for _ in range(5):
        kept.before(module, (torch.ones(3),), {})
    assert kept._dropped == 3
