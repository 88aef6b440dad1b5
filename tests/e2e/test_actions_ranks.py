"""Corrections on two ranks: both carry them out after the same step, or neither does."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import Luff, processes_with

_SCRIPTS = Path(__file__).parent / "scripts"
_SCRIPT = str(_SCRIPTS / "corrected.py")
_CONFIG = '[[action]]\nkind = "{}"\nrules = ["NonFinite"]\ndry_run = false\n{}'


class _Job:
    """`luff run` of two ranks that runs until the test ends it."""

    def __init__(
        self,
        luff: Luff,
        tmp: Path,
        *arguments: str,
        kind: str = "lower_lr",
        command: tuple[str, ...] = (),
    ) -> None:
        self.run, self.log, self.until = tmp / "run", tmp / "rate", tmp / "until"
        config = tmp / "luff.toml"
        config.write_text(_CONFIG.format(kind, "factor = 0.5\n" if kind == "lower_lr" else ""))
        self.process = luff.start(
            "run", "--run", str(self.run), "--config", str(config), "--",
            sys.executable, *(command or (_SCRIPT, "--corrects", kind)),
            "--rates", str(self.log), "--until", str(self.until), *arguments,
        )  # fmt: skip

    def audit(self) -> list[dict[str, Any]]:
        file = self.run / "rules" / "luff" / "actions.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def events(self) -> list[str]:
        return [line["event"] for line in self.audit()]

    def control(self) -> list[dict[str, Any]]:
        files = sorted((self.run / "control").glob("0*.json"))
        return [json.loads(file.read_text()) for file in files]

    def rates(self) -> list[str]:
        """Returns what each rank wrote about its rate."""
        files = [Path(f"{self.log}-{rank}") for rank in range(2)]
        return [file.read_text() if file.exists() else "" for file in files]

    def wait(self, holds: Callable[[], bool], timeout_s: float = 120) -> None:
        until = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > until or self.process.poll() is not None:
                self.process.kill()
                pytest.fail(f"did not come: {self.events()} {self.process.communicate()[1]}")
            time.sleep(0.02)

    def end(self) -> tuple[int, str]:
        self.until.touch()
        _, err = self.process.communicate(timeout=120)
        return self.process.returncode, err


def test_both_ranks_lower_their_rate_after_the_same_step(luff: Luff, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={port}")
    job = _Job(luff, tmp_path, command=(*torchrun, str(_SCRIPTS / "correctable.py")))
    job.wait(lambda: "carried_out" in job.events())
    code, err = job.end()
    assert code == 0, err
    first, second = job.rates()
    assert first == second
    [line] = first.splitlines()  # once
    step, rate = line.split()
    assert float(rate) == pytest.approx(0.04)
    [commit] = [record for record in job.control() if record["phase"] == "commit"]
    assert commit["kind"] == "lower_lr"
    assert commit["train_step"] == int(step)
    assert f"carried out after {step} TRAIN steps" in err
    assert job.events()[0] == "begun"
    code, _, err = luff("verify", str(job.run))
    assert code == 0, err


@pytest.mark.parametrize("kind", ["skip_batch", "rollback"])
def test_both_ranks_are_corrected_after_the_same_step(luff: Luff, tmp_path: Path, kind: str) -> None:
    job = _Job(luff, tmp_path, kind=kind)
    job.wait(lambda: "carried_out" in job.events())
    code, err = job.end()
    assert code == 0, err
    first, second = job.rates()
    assert first == second
    [commit] = [record for record in job.control() if record["phase"] == "commit"]
    [line] = first.splitlines()  # once
    step, *what = line.split()
    assert (commit["kind"], commit["train_step"]) == (kind, int(step))
    finite = [Path(f"{job.log}-{rank}.finite").read_text() for rank in range(2)]
    if kind == "skip_batch":
        assert what == ["skip"]
        assert finite == ["False"] * 2  # skipping a batch does not repair weights
    else:
        assert what == ["rollback", "30"]  # the step of the bad batch
        assert finite == ["True"] * 2
        assert "has healed" in err


@pytest.mark.parametrize("kind", ["skip_batch", "rollback"])
def test_a_rank_that_has_not_opted_in_makes_every_correction_refused(
    luff: Luff, tmp_path: Path, kind: str
) -> None:
    job = _Job(luff, tmp_path, "--refuses", "0", kind=kind)
    job.wait(lambda: "refused" in job.events())
    code, err = job.end()
    assert code == 0, err
    assert job.rates() == ["", ""]
    assert f"worker 0 has not opted in to {kind}" in err
    assert [r["phase"] for r in job.control() if r["kind"] == kind] == ["propose", "abort"]


@pytest.mark.thorough  # a proposal waits a minute for a rank; src/actions tests what is proposed and acknowledged
def test_a_rank_that_nobody_watches_cannot_acknowledge(luff: Luff, tmp_path: Path) -> None:
    job = _Job(luff, tmp_path, "--unwatched", "1", kind="rollback")
    job.wait(lambda: "refused" in job.events())
    code, err = job.end()
    assert code == 0, err
    assert job.rates() == ["", ""]
    assert not [r for r in job.control() if r["phase"] == "commit"]
    assert [Path(f"{job.log}-{rank}.finite").read_text() for rank in range(2)] == ["False"] * 2


def test_one_rank_that_has_not_opted_in_makes_it_refused_for_all(luff: Luff, tmp_path: Path) -> None:
    job = _Job(luff, tmp_path, "--refuses", "1")
    job.wait(lambda: "refused" in job.events())
    code, err = job.end()
    assert code == 0, err
    assert job.rates() == ["", ""]
    assert "worker 1 has not opted in to lower_lr" in err
    assert [r["phase"] for r in job.control() if r["kind"] == "lower_lr"] == ["propose", "abort"]


def test_a_supervisor_killed_after_the_proposal_leaves_no_rank_alone(luff: Luff, tmp_path: Path) -> None:
    job = _Job(luff, tmp_path)
    proposed = lambda: any(r["phase"] == "propose" for r in job.control())  # noqa: E731
    job.wait(proposed)
    os.kill(job.process.pid, signal.SIGKILL)
    job.process.wait()
    before = len(job.control())
    decided = time.monotonic() + 20  # a step that all ranks had passed already leaves nothing to decide
    while time.monotonic() < decided and not any(record["proposal"] for record in job.control()):
        time.sleep(0.05)
    job.until.touch()
    until = time.monotonic() + 60
    while processes_with(_SCRIPT) and time.monotonic() < until:
        time.sleep(0.05)
    assert processes_with(_SCRIPT) == []
    job.process.communicate(timeout=60)
    first, second = job.rates()
    assert first == second
    decisions = [record["phase"] for record in job.control() if record["proposal"]]
    # A commit may name a step that the job no longer reaches; then no rank carries it out.
    assert first == "" or decisions[:1] == ["commit"]
    assert len(job.control()) >= before
