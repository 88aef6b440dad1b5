"""How the document `loaders` says that batches are taken."""

from __future__ import annotations

import json
from itertools import islice

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset


def package(name, source):
    space = {}
    exec(compile(source, f"/usr/lib/python3/{name}/trainers/loops.py", "exec"), space)
    return space["first"]


def loop(loader):
    for batch in loader:
        return batch


def counted(loader):
    for _, batch in enumerate(loader):
        return batch


def sliced(loader):
    for batch in islice(loader, 1):
        return batch


def called(loader):
    return next(iter(loader))


def method(loader):
    return iter(loader).__next__()


CALLS = "def first(loader):\n    return next(iter(loader))\n"


@pytest.mark.parametrize(
    ("first", "by_next"),
    [
        ([called], True),
        ([method], True),
        ([package("mine", CALLS)], True),
        ([loop], False),
        ([counted], False),
        ([sliced], False),
        ([package("site-packages", CALLS)], False),
        ([called, loop, called], False),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_who_asks_for_the_first_batch(watched, first, by_next, workers):
    _, session = watched()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=8, num_workers=workers)
    for take in first * (20 if workers == 0 else 1):  # Python makes a call that comes again another one
        optimizer.zero_grad()
        model(take(loader)[0]).mean().backward()
        optimizer.step()
    document = session.documents["loaders"]
    described = json.loads(document) if isinstance(document, str) else document
    assert [one["by_next"] for one in described["loaders"]] == [by_next]


def test_batches_come_without_a_frame_of_python(watched):
    import _thread
    import time

    _, session = watched()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = iter(DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=8))
    _thread.start_new_thread(batches.__next__, ())
    end = time.monotonic() + 30
    while not batches._num_yielded and time.monotonic() < end:
        time.sleep(0.01)
    model(next(batches)[0]).mean().backward()
    optimizer.step()
    assert batches._num_yielded == 2
    assert session.documents
