"""A stop that two ranks agree on: both leave after the same step, nothing hangs, and nothing is left behind."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import luff

from .conftest import Luff, processes_with


def _two_ranks(luff: Luff, run: Path, *arguments: str) -> tuple[int, str, list[dict[str, Any]]]:
    script = str(Path(__file__).parent / "scripts" / "ranks.py")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    launcher += [f"--master-port={_free_port()}", script, *arguments]
    code, _, err = luff("run", "--run", str(run), "--", *launcher, timeout_s=180)
    return code, err, luff.assert_check_gives_what_was_seen(run)


def test_replicas_that_drift_apart_are_found(luff: Luff, tmp_path: Path) -> None:
    code, err, findings = _two_ranks(luff, tmp_path / "run", "--apart", "--steps", "80")
    assert code == 0, err
    [found] = [finding for finding in findings if finding["rule"] == "ReplicaDivergence"]
    assert (found["cause"], found["severity"]) == ("diverged", "stop")
    assert found["since_step"] <= 2
    assert found["step"] < 40
    assert "worker 0" in json.dumps(found)
    assert "worker 1" in json.dumps(found)


def test_replicas_that_are_kept_equal_are_silent(luff: Luff, tmp_path: Path) -> None:
    code, err, findings = _two_ranks(luff, tmp_path / "run", "--steps", "80")
    assert code == 0, err
    assert findings == []
    workers = _open(tmp_path / "run").workers()
    assert [worker["last_train_step"] for worker in workers] == [79, 79]


def test_processes_that_average_their_weights_rarely_are_silent(luff: Luff, tmp_path: Path) -> None:
    code, err, findings = _two_ranks(luff, tmp_path / "run", "--average-every", "40", "--steps", "120")
    assert code == 0, err
    assert not [finding for finding in findings if finding["rule"] == "ReplicaDivergence"]


def test_processes_that_nothing_ever_averages_are_found_at_the_end(luff: Luff, tmp_path: Path) -> None:
    code, err, findings = _two_ranks(luff, tmp_path / "run", "--average-every", "-1", "--steps", "80")
    assert code == 0, err
    [found] = [finding for finding in findings if finding["rule"] == "ReplicaDivergence"]
    assert (found["cause"], found["severity"]) == ("diverged", "warn")


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def test_both_ranks_leave_after_the_same_step(luff: Luff, tmp_path: Path) -> None:
    script = str(Path(__file__).parent / "scripts" / "ranks.py")
    run = tmp_path / "run"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    launcher += [f"--master-port={_free_port()}", script, "--nan-at", "60"]
    code, out, err = luff("run", "--run", str(run), "--on-finding", "stop", "--", *launcher, timeout_s=180)
    assert code == 76, err
    assert "done" not in out
    assert "stopped" in err.splitlines()[-1], err
    workers = _open(run).workers()
    assert len(workers) == 2
    assert all(worker["ended"] for worker in workers), workers
    last = {worker["last_train_step"] for worker in workers}
    assert len(last) == 1, workers
    assert 60 <= last.pop() < 3999
    assert luff.assert_check_gives_what_was_seen(run)
    assert processes_with(str(script)) == []


def _open(run: Path) -> luff.Trial:
    return luff.open_trial(run)
