"""Commands to a job come from its owner and one supervisor at a time; and verdicts on runs that were harmed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Luff

_SCRIPT = Path(__file__).parent / "scripts" / "steps.py"
_NOBODY = 65534


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Waits until the condition holds; the bound is for hangs, not for speed."""
    until = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < until, f"waited in vain for {what}"
        time.sleep(0.01)


def ended(pid: int) -> bool:
    """Whether the process is gone, or a zombie of which no other thread is left."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    return "\nState:\tZ" in status and "\nThreads:\t1\n" in status


class Waiting:
    """A training that waits at a step until the test continues it."""

    def __init__(self, luff: Luff, *options: str, arguments: tuple[str, ...] = ()) -> None:
        self.run = luff.tmp / "run"
        self.reached, self.go = luff.tmp / "reached", luff.tmp / "go"
        self.arguments = (
            sys.executable, str(_SCRIPT), "--wait-at", "40",
            "--reached", str(self.reached), "--go", str(self.go), *arguments,
        )  # fmt: skip
        rules = () if "--rules" in options else ("--rules", "NonFinite")
        self.process = luff.start("run", "--run", str(self.run), *rules, *options, "--", *self.arguments)
        wait_for(self.reached.exists, "the training")

    @property
    def pid(self) -> int:
        """Process id of the training."""
        wait_for(lambda: self.reached.read_text(), "its number")
        return int(self.reached.read_text())

    def end(self) -> tuple[int, str, str]:
        """Lets it run to its end; returns exit code, stdout, stderr."""
        self.go.touch()
        out, err = self.process.communicate(timeout=120)
        return self.process.returncode, out, err

    def seen(self) -> None:
        """Waits until the supervisor has seen a step after the NaN at step 10."""
        findings = self.run / "rules" / "luff" / "findings.jsonl"
        wait_for(lambda: findings.exists() and findings.read_text(), "a finding")


def open_to_others(path: Path) -> str:
    path.chmod(0o777)
    return "chmod go-w"


def of_somebody_else(path: Path) -> str:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    os.chown(path, _NOBODY, _NOBODY)
    return "chown"


@pytest.mark.parametrize("spoil", [open_to_others, of_somebody_else])
def test_a_directory_that_others_command_is_refused_before_the_training(
    luff: Luff, spoil: Callable[[Path], str]
) -> None:
    run, begun = luff.tmp / "run", luff.tmp / "begun"
    run.mkdir()
    remedy = spoil(run)
    for options in ((), ("--resume",)):
        code, _, err = luff("run", "--run", str(run), *options, "--", "touch", str(begun))
        assert code == 2, err
        assert remedy in err
        assert not begun.exists()
        assert run.is_dir()
        if not options:  # the same with a run in the directory
            os.chown(run, os.geteuid(), os.getegid())
            run.chmod(0o700)
            code, _, err = luff(
                "run", "--run", str(run), "--rules", "none", "--", sys.executable, str(_SCRIPT), "--steps", "3"
            )  # fmt: skip
            assert code == 0, err
            spoil(run)
    code, out, err = luff("show", str(run))  # readers may read it
    assert code == 0, err
    assert "completed" in out


def test_a_training_goes_on_when_its_run_is_open_to_others(luff: Luff) -> None:
    run = luff.tmp / "run"
    code, out, err = luff("run", "--run", str(run), "--", sys.executable, str(_SCRIPT), "--spoil")
    assert code == 0, err
    assert "done" in out, err
    assert "was not watched" in err
    assert "chmod go-w" in err
    assert "Luff saw no training step" not in err
    alone = subprocess.run(
        [sys.executable, str(_SCRIPT), "--run", str(luff.tmp / "alone"), "--spoil"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "chmod go-w" in alone.stdout  # the hook's health gives the reason
    assert alone.stderr == ""


def test_a_record_of_another_user_stops_nothing(luff: Luff) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can write as somebody else")
    job = Waiting(luff)
    planted = job.run / "control" / ".planted"
    planted.write_text(json.dumps({"number": 1, "kind": "stop", "reason": "forged"}))
    os.chown(planted, _NOBODY, _NOBODY)
    planted.rename(job.run / "control" / "000001.json")
    code, out, err = job.end()
    assert code == 0, err
    assert "done" in out


def test_one_supervisor_at_a_time(luff: Luff) -> None:
    job = Waiting(luff)
    other = ("run", "--run", str(job.run), "--resume", "--", sys.executable, str(_SCRIPT), "--steps", "3")
    code, out, err = luff(*other)
    assert code == 2, err
    assert f"process {job.process.pid} on " in err
    assert out == ""
    # A session opened by a script itself counts as another job, too.
    alone = subprocess.run(
        [sys.executable, str(_SCRIPT), "--run", str(job.run)], capture_output=True, text=True, check=True
    )
    assert "is going on with" in alone.stdout
    # The supervisor dies while its training is still running: the run accepts no second job.
    job.process.kill()
    job.process.wait()
    for pipe in (job.process.stdout, job.process.stderr):
        if pipe is not None:
            pipe.close()
    code, out, err = luff(*other)
    assert code == 2, err
    assert "worker 0 is still at work" in err
    os.kill(job.pid, signal.SIGKILL)
    wait_for(lambda: ended(job.pid), "its end")
    code, out, err = luff(*other)
    assert code == 0, err
    assert not list(job.run.glob("w0002"))


def test_a_worker_number_is_one_process_s(luff: Luff) -> None:
    run, reached, go = luff.tmp / "run", luff.tmp / "reached", luff.tmp / "go"
    first = subprocess.Popen(
        [
            sys.executable, str(_SCRIPT), "--run", str(run), "--wait-at", "5",
            "--reached", str(reached), "--go", str(go),
        ],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        wait_for(reached.exists, "the training")
        second = subprocess.run(
            [sys.executable, str(_SCRIPT), "--run", str(run)], capture_output=True, text=True, check=True
        )
        assert "another process is writing" in second.stdout
        code, _, err = luff("run", "--run", str(run), "--resume", "--", "true")
        assert code == 2, err
        assert "worker 0 is still at work" in err
    finally:
        go.touch()
        out, _ = first.communicate(timeout=120)
    assert out.endswith(" {}\n")


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_files_of_a_run_are_its_owners_alone(luff: Luff, umask: int) -> None:
    config = luff.tmp / "luff.toml"
    config.write_text('[[action]]\nkind = "stop"\nseverity = "warn"\n')  # a dry run: into the audit
    run = luff.tmp / "run"
    before = os.umask(umask)
    try:
        code, _, err = luff(
            "run", "--run", str(run), "--config", str(config), "--rules", "NonFinite",
            "--", sys.executable, str(_SCRIPT), "--nan-at", "10",
        )  # fmt: skip
    finally:
        os.umask(before)
    assert code == 0, err
    assert (run / "rules" / "luff" / "actions.jsonl").exists(), err
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (run, *run.rglob("*"))}
    wrong = {path: oct(mode) for path, mode in modes.items() if mode != (0o700 if path.is_dir() else 0o600)}
    assert wrong == {}


# ---- verdicts


def remove(job: Waiting) -> None:
    shutil.rmtree(job.run)


def empty(job: Waiting) -> None:
    for path in job.run.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def move(job: Waiting) -> None:
    job.run.rename(job.run.with_name("elsewhere"))


def replace(job: Waiting) -> None:
    remove(job)
    job.run.mkdir()


def truncate(job: Waiting) -> None:
    for path in job.run.glob("w*/m-*.lfm"):
        os.truncate(path, 0)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (remove, "the run's directory was removed"),
        (empty, "the run's files were removed"),
        (move, "the run's directory was moved"),
        (replace, "the run's directory was removed"),
        (truncate, "truncated|damaged"),
    ],
)
def test_the_verdict_says_what_became_of_the_run(
    luff: Luff, harm: Callable[[Waiting], None], said: str
) -> None:
    job = Waiting(luff, arguments=("--nan-at", "10"))
    job.seen()
    harm(job)
    code, out, err = job.end()
    assert code == 0, err
    assert "done" in out, err
    assert any(text in " ".join(err.split()) for text in said.split("|")), err
    assert "Luff saw no training step" not in err
    assert "luff: ok" not in err
    if harm is move:
        assert str(job.run.with_name("elsewhere")) in err


def test_the_verdict_says_how_many_rules_judged(luff: Luff) -> None:
    run = luff.tmp / "run"
    code, _, err = luff("run", "--run", str(run), "--", sys.executable, str(_SCRIPT), "--steps", "30")
    assert code == 0, err
    listed = json.loads(luff("rules", "--json")[1])
    verdict = err.splitlines()[-1]
    assert verdict.startswith("luff: ok: 30 steps, "), err
    judged = int(verdict.split(", ")[1].split(" of ")[0])
    assert f"{judged} of {len(listed)} rules judged" in verdict
    assert 0 < judged < len(listed)
    assert f"luff: {len(listed) - judged} rules had nothing to look at: " in err
    said = err
    code, out, _ = luff("check", str(run))
    assert code == 0
    assert f"{judged} of {len(listed)} rules judged" in out
    code, _, err = luff("run", "--run", str(luff.tmp / "none"), "--", "true")
    assert code == 0
    assert "Luff saw no training step" in err
    assert not (luff.tmp / "none").exists()
    # What each number counts is said, where what is needed begins with a number, too.
    reasons = next(line for line in said.splitlines() if "nothing to look at: " in line).split(": ", 2)[2]
    for reason in re.sub(r" \([^)]*\)", "", reasons).split(", "):
        assert re.match(r"\d+ needs? \S", reason), said


def test_a_command_that_fails_before_it_trains_is_told_no_causes(luff: Luff) -> None:
    """Its own error says why; what hides a training from Luff explains nothing."""
    code, _, err = luff(
        "run", "--run", str(luff.tmp / "run"), "--", sys.executable, "-c", "raise KeyError(1)"
    )
    assert code == 1
    told = [line for line in err.splitlines() if line.startswith("luff: ")]
    assert told[-1] == "luff: nothing was recorded: it ended before Luff saw a training step", err
    assert "an emptied environment" not in err
    # What a signal ended may have trained for long, hidden from Luff.
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    code, _, err = luff("run", "--run", str(luff.tmp / "killed"), "--", sys.executable, "-c", killed)
    assert code == 137
    assert "an emptied environment" in err


def test_a_script_that_dies_before_its_first_step_is_not_said_to_be_hidden(luff: Luff) -> None:
    run = luff.tmp / "run"
    code, _, err = luff("run", "--run", str(run), "--", sys.executable, "-c", "raise SystemExit(3)")
    assert code == 3
    said = err.splitlines()
    assert said[-2].endswith("failed with exit code 3"), err
    assert said[-1] == "luff: nothing was recorded: it ended before Luff saw a training step"
    assert not run.exists()


@pytest.mark.parametrize("name", ["losses", "weights", "gradients"])
def test_rules_of_the_original_take_names_of_collections(luff: Luff, name: str) -> None:
    rules = f"LossNotDecreasing:collection_names={name},TensorVariance:collection_names={name}"
    job = luff.run("steps.py", "--parameters", "original", "--rules", rules, "--on-finding", "warn")
    assert job.code == 0, job.stderr
    code, _, err = luff("check", str(job.run), "--parameters", "original", "--rules", rules)
    assert code in (0, 1), err


def test_a_collection_that_nobody_has_defined_is_an_error_before_the_job(luff: Luff) -> None:
    job = luff.run("steps.py", "--rules", "AllZero:collection_names=wieghts")
    assert job.code == 2
    assert 'rule AllZero names the collection "wieghts", which nobody has defined' in job.stderr
    assert not job.run.exists()
