"""Closing a run does not wait for something that will never come."""

from __future__ import annotations

import os
import threading
import time
from types import SimpleNamespace

import luff.torch
import torch
from luff.torch.evidence import _evidence
from luff.torch.replay._replay import wait_for


def test_a_child_that_waits_for_a_lock_does_not_hold_the_close(tmp_path, monkeypatch):
    monkeypatch.setattr(_evidence, "_WAIT_S", 60.0)  # longer than the close may wait, which is 2 s
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = luff.torch.attach(model, run=tmp_path / "run")
    lock = threading.Lock()

    def loss_of(y):
        with lock:
            return ((y - y).abs().sqrt()).sum()  # finite, but its gradient is not

    loss = loss_of(model(torch.ones(4, 8)))
    with lock:  # the child that evaluates the step again can never acquire it
        loss.backward()
        optimizer.step()
    begin = time.monotonic()
    hook.close()
    assert time.monotonic() - begin < 30


def test_all_children_share_one_wait_at_the_end():
    waits = []
    evidence = object.__new__(_evidence.Evidence)
    evidence._adversaries = SimpleNamespace(rest=lambda: None)
    for name, method in (
        ("nonfinite", "publish"),
        ("causal", "record"),
        ("mixing", "record"),
        ("padding", "record"),
        ("places", "record"),
        ("masks", "record"),
        ("datasets", "record"),
    ):
        kind = SimpleNamespace(**{method: lambda _, until: waits.append(until)})
        setattr(evidence, name, kind)
    before = time.monotonic()
    evidence.finish(None)
    assert len(waits) == 7
    assert len(set(waits)) == 1
    assert before < waits[0]


def _forked(work):
    receiving, sending = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            work(sending)
        finally:
            os._exit(0)
    os.close(sending)
    return receiving, pid


def test_a_child_is_waited_for_while_it_works():
    def work(sending):
        until = time.process_time() + 0.2  # CPU time, so it does not depend on the load of the machine
        while time.process_time() < until:
            pass
        os.write(sending, b"found")

    receiving, pid = _forked(work)
    wait_for(receiving, pid, time.monotonic() + 60)
    os.set_blocking(receiving, False)
    assert os.read(receiving, 16) == b"found"
    os.waitpid(pid, 0)


def test_a_child_that_sleeps_or_is_gone_is_not_waited_for():
    receiving, pid = _forked(lambda _: time.sleep(60))
    begin = time.monotonic()
    wait_for(receiving, pid, begin + 50)
    assert time.monotonic() - begin < 45
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    wait_for(receiving, pid, begin + 50)
    assert time.monotonic() - begin < 45
