"""Counters of a device's allocator: read seldom, written when something happens, and never a trouble."""

from __future__ import annotations

import json
from typing import Any

import luff.torch
import pytest
import torch
from luff.torch.evidence import _allocator


class Session:
    """Keeps what is written of the document."""

    def __init__(self) -> None:
        self.written: list[list[dict[str, int]]] = []

    def set_document(self, name: str, text: str) -> None:
        assert name == "allocator"
        self.written.append(json.loads(text)["looks"])


def told(retries: int = 0) -> dict[str, Any]:
    """As torch.cuda.memory_stats_as_nested_dict says it, and more."""
    whole = {"current": 1 << 30, "peak": 2 << 30, "allocated": 5, "freed": 4}
    parts = {"all": whole, "small_pool": whole, "large_pool": whole}
    names = ("reserved_bytes", "active_bytes", "segment")
    return {"num_alloc_retries": retries, "num_ooms": 0, **dict.fromkeys(names, parts)}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A device whose counters are these; an exception is raised."""
    now = told()

    def counters(device: int) -> dict[str, Any]:
        if "error" in now:
            raise now["error"]
        return now

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", counters)
    return now


def test_without_a_device_nothing_is_written() -> None:
    session, looks = Session(), _allocator.AllocatorLooks()
    looks.look(session, 64)  # type: ignore[arg-type]
    assert session.written == []


def test_looks_are_written_while_allocations_fail(device: dict[str, Any]) -> None:
    session, looks = Session(), _allocator.AllocatorLooks()
    for number in range(1, 41):
        device.update(told(retries=min(max(number - 20, 0), 5)))
        looks.look(session, 64 * number)  # type: ignore[arg-type]
    written = [each[-1]["step"] // 64 for each in session.written]
    assert written == [1, 2, 4, 8, 16, 21, 22, 23, 24, 25, 26, 32]
    assert all(len(each) <= 16 for each in session.written)
    assert session.written[-1][-1] == {
        "step": 64 * 32, "device": 3, "retries": 5, "ooms": 0, "reserved": 1 << 30, "active": 1 << 30,
    }  # fmt: skip


@pytest.mark.parametrize("error", [RuntimeError("another allocator"), None])
def test_what_cannot_be_read_is_left_alone(device: dict[str, Any], error: Exception | None) -> None:
    session, looks = Session(), _allocator.AllocatorLooks()
    if error is None:
        del device["num_ooms"]  # another version
    else:
        device["error"] = error
    looks.look(session, 64)  # type: ignore[arg-type]
    device.clear()
    device.update(told())
    looks.look(session, 128)  # type: ignore[arg-type]
    assert session.written == []


def test_a_training_records_it(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {"device": 0, "retries": 7, "ooms": 0, "reserved": 2, "active": 1}
    monkeypatch.setattr(_allocator, "_counters", lambda: numbers)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with luff.torch.attach(model, run=tmp_path / "run", rules=False):
        for _ in range(130):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    with luff.open_trial(tmp_path / "run") as trial:
        looks = trial.document("allocator")["looks"]
    assert [look["step"] for look in looks] == [64, 128]
    assert all(look["retries"] == 7 for look in looks)
