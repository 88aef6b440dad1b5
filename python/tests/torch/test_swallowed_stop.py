"""A script that swallows `luff.StopTraining` and trains on: it is counted, and the supervisor ends it."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import luff
import pytest
import torch
from luff import _after_stop
from luff._hook import RunOptions
from luff.torch.patches import _registry, _wraps

SWALLOWS = """
    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 4)
    while True:  # only a signal ends it
        try:
            optimizer.zero_grad()
            (model(x).square().mean() * float("nan")).backward()
            optimizer.step()
        except BaseException:
            pass
"""


def test_it_is_sent_sigterm_and_what_it_trained_is_a_gap(start_luff, tmp_path):
    """`leave_s` would take ten minutes."""
    (tmp_path / "luff.toml").write_text("[stop]\nswallow_s = 0.1\nleave_s = 600\n")
    options = ["--config", "luff.toml", "--rules", "NonFinite", "--on-finding", "stop"]
    done = start_luff(SWALLOWS, *options, expect=76)
    assert "it swallowed StopTraining; it was sent SIGTERM" in " ".join(done.stderr.split())
    assert "updates after the stop are not in the run: the script swallowed StopTraining" in done.stderr
    with luff.open_trial(tmp_path / "run") as trial:
        assert trial.outcome == "stopped"
        [gap] = [gap for gap in trial.gaps() if gap["reason"] == "trained after the stop"]
    assert gap["count"] >= 3


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """The folder of a worker that was stopped. Nothing counts afterwards."""
    monkeypatch.delattr(sys, "ps1", raising=False)
    folder = tmp_path / "w0001"
    folder.mkdir()
    yield folder
    _after_stop.forget()


def _any(_optimizer):
    return True


def _wait_for(file, text):
    end = time.monotonic() + 60
    while not file.exists() or file.read_text() != text:
        assert time.monotonic() < end
        _after_stop.write()


def _updates(count):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(count):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()


def test_updates_are_counted_from_the_stop_to_the_next_run(tmp_path, worker):
    luff.torch.attach(torch.nn.Linear(2, 1), run=tmp_path / "other").close()  # the wrappers are there
    _updates(3)
    assert not (worker / "after_stop").exists()
    _after_stop.begin(str(tmp_path), 1, _any)
    _updates(1)
    _after_stop.write()
    assert not (worker / "after_stop").exists()  # it may be of the step that was stopped
    _updates(4)
    _wait_for(worker / "after_stop", "5\n")
    luff.torch.attach(torch.nn.Linear(2, 1), run=tmp_path / "next").close()
    _updates(3)
    _after_stop.write()
    assert (worker / "after_stop").read_text() == "5\n"


def _stopped_run(run, watched, model, optimizer):
    """Trains, and does what a hook does when a finding stops it. Returns the file of the count."""
    if watched is not None:
        hook = luff.torch.attach(watched, run=run)
    else:  # as `luff run` does
        hook = luff.torch.Hook(RunOptions(str(run)))
        _registry.hooks.add(hook, default=True)
        _wraps.install()
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    hook.wind_up(hook.session)
    return run / "w0000" / "after_stop"


@pytest.mark.parametrize("on_all", [False, True])
def test_what_else_is_fitted_after_the_stop_is_no_training(tmp_path, worker, on_all):
    """A temperature of held-out scores, a probe: whose parameters the run did not watch is not counted."""
    model, probe = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    beside = torch.optim.Adam(probe.parameters())  # made before the stop, and not used in the run
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    file = _stopped_run(tmp_path / "run", None if on_all else model, model, optimizer)
    for _ in range(5):
        probe(model(torch.ones(1, 2)).detach().expand(1, 2)).sum().backward()
        beside.step()
    _after_stop.write()
    assert not file.exists()
    again = torch.optim.SGD(model.parameters(), lr=0.1)  # another one of the same model
    for _ in range(5):
        model(torch.ones(1, 2)).sum().backward()
        again.step()
    _wait_for(file, "5\n")


def test_a_child_a_session_of_people_and_a_full_disk_count_nothing(tmp_path, worker, monkeypatch):
    _after_stop.begin(str(tmp_path), 1, _any)
    if (child := os.fork()) == 0:
        try:
            for _ in range(3):
                _after_stop.update(None)
            _after_stop.write()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert not (worker / "after_stop").exists()
    (worker / "after_stop").symlink_to(tmp_path / "elsewhere")
    for _ in range(3):
        _after_stop.update(None)
    _after_stop.write()
    assert not (tmp_path / "elsewhere").exists()
    _after_stop.forget(str(tmp_path), 1)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    _after_stop.begin(str(tmp_path), 1, _any)
    for _ in range(3):
        _after_stop.update(None)
    _after_stop.write()
    assert not (worker / "after_stop").exists()


def test_the_end_of_the_process_writes_the_last_number(tmp_path, worker):
    script = (
        "from luff import _after_stop, stop\n"
        f"_after_stop.begin({str(tmp_path)!r}, 1, lambda _: True)\n"
        "for _ in range(7):\n    _after_stop.update(None)\n"
        "stop._at_exit()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
    assert (worker / "after_stop").read_text() == "7\n"
