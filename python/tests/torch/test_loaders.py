"""How the document `loaders` says that batches are taken."""

from __future__ import annotations

import json
from itertools import islice

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


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


EPOCHS = [
    ("never told", lambda epoch: None, {}, 7),
    ("told", lambda epoch: epoch, {}, 0),
    ("told for three passes each", lambda epoch: epoch // 3, {}, 0),
    ("told when it goes on", lambda epoch: 7, {}, 7),
    ("never told, of whole batches", lambda epoch: None, {"batch_size": 32}, None),
    ("not shuffled", lambda epoch: None, {"shuffle": False}, None),
]


@pytest.mark.parametrize(
    ("epoch_of", "settings", "same"), [e[1:] for e in EPOCHS], ids=[e[0] for e in EPOCHS]
)
@pytest.mark.parametrize("evaluate_every", [0, 3, 8])
def test_starts_with_the_same_epoch(watched, epoch_of, settings, same, evaluate_every):
    settings = {"batch_size": 4, "shuffle": True, **settings}
    _, session = watched()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loaders = []
    for _ in range(2):  # evaluations often keep the default, to shuffle, and are told no epoch
        data = TensorDataset(torch.randn(32, 4))
        sampler = DistributedSampler(data, num_replicas=1, rank=0, shuffle=settings["shuffle"])
        loaders.append(DataLoader(data, batch_size=settings["batch_size"], sampler=sampler))
    steps = 0
    for epoch in range(7):
        if (told := epoch_of(epoch)) is not None:
            loaders[0].sampler.set_epoch(told)
        for (x,) in loaders[0]:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
            steps += 1
            if evaluate_every and steps % evaluate_every == 0:
                with torch.no_grad():
                    for (other,) in loaders[1]:
                        model(other)
    document = session.documents["loaders"]
    described = (json.loads(document) if isinstance(document, str) else document)["loaders"]
    found = [one.get("same_epoch") for one in described]
    assert found[0] == same
    assert all(count in (None, 1) for count in found[1:])


def test_a_seed_that_is_set_by_hand_is_another_order(watched):
    _, session = watched()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(32, 4))
    sampler = DistributedSampler(data, num_replicas=1, rank=0, shuffle=True)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    for epoch in range(5):
        sampler.seed = 17 + epoch
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
    document = session.documents["loaders"]
    described = (json.loads(document) if isinstance(document, str) else document)["loaders"]
    assert [one["same_epoch"] for one in described] == [0]


@pytest.mark.parametrize("gradients", [False, True])
def test_a_loader_of_evaluations_in_mid_epoch_does_not_train(watched, gradients):
    _, session = watched()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    training = DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=4)
    validation = DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=4)
    for _ in range(4):
        for step, (x,) in enumerate(training):
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
            if step == 3:
                with torch.set_grad_enabled(gradients):
                    for (other,) in validation:
                        model(other)
    document = session.documents["loaders"]
    described = (json.loads(document) if isinstance(document, str) else document)["loaders"]
    assert [one["trains"] for one in described] == [True, False]
