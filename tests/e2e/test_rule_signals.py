"""Own rules that send signals: these reach the rule and its children, but no process above it."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import luff.testing
import pytest

from .conftest import Luff

PYTHON = {"LUFF_PYTHON": sys.executable}

RULES = '''
import os
import signal
import subprocess
import time

import luff


def parent_of(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def fork_orphan(work):
    """Does the work in a process that has lost its parent."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            work()
        os._exit(0)
    os.wait()


class Kills(luff.Rule):
    def __init__(self, base_trial=None, how: str = "parent", mark: str = ""):
        super().__init__(base_trial)
        self.how, self.mark = how, mark

    def on_step(self, view):
        if view.step == 5:
            getattr(self, self.how)()

    def parent(self):
        os.kill(os.getppid(), signal.SIGKILL)

    def freezes_parent(self):
        os.kill(os.getppid(), signal.SIGSTOP)

    def parent_s_group(self):
        os.killpg(os.getpgid(os.getppid()), signal.SIGKILL)

    def parent_s_parent(self):
        os.kill(parent_of(os.getppid()), signal.SIGURG)  # harms nobody where it gets through

    def parent_by_descriptor(self):
        signal.pidfd_send_signal(os.pidfd_open(os.getppid()), signal.SIGKILL)

    def everybody(self):
        os.kill(-1, signal.SIGURG)  # as above

    def child(self):
        subprocess.run(["/bin/sh", "-c", "kill -9 " + str(os.getppid())], check=True)

    def itself(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def its_group(self):
        os.kill(0, signal.SIGKILL)

    def orphan(self):
        """Kills each parent that it is given."""

        def work():
            with open(self.mark, "a") as file:
                file.write(f"{os.getpid()}\\n")
            end = time.monotonic() + 60
            while time.monotonic() < end:
                try:
                    os.kill(os.getppid(), signal.SIGKILL)
                except OSError:
                    pass

        fork_orphan(work)
        signal.pause()

    def its_children(self):
        child = subprocess.Popen(["sleep", "1000"])
        child.terminate()
        assert child.wait() == -signal.SIGTERM
        self.report(luff.Finding("its child has ended"))


class LossAbove(luff.Rule):
    def on_step(self, view):
        if view.loss is not None and view.loss > -1:
            return luff.Finding("the loss is above", cause="above")
'''


@pytest.fixture
def rules(tmp_path: Path) -> str:
    path = tmp_path / "checks.py"
    path.write_text(RULES)
    return str(path)


@pytest.fixture
def run(tmp_path: Path) -> str:
    luff.testing.trial({"MSELoss_output_0": [1.0] * 20}, path=tmp_path / "made")
    return str(tmp_path / "made")


def check(luff: Luff, run: str, rules: str, kills: str) -> tuple[int, set[str], str]:
    """Returns exit code, rules that found something, and stderr; in its own session, whose group may be killed."""
    process = luff.start(
        "check", run, "--json", "--rules", f"{rules}:Kills:{kills},{rules}:LossAbove",
        start_new_session=True, **PYTHON,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, {json.loads(line)["rule"] for line in out.splitlines()}, err


@pytest.mark.parametrize(
    "how",
    [
        "parent",
        "freezes_parent",
        "parent_s_group",
        "parent_s_parent",
        "parent_by_descriptor",
        "everybody",
        "child",
    ],
)
def test_signals_to_those_above_are_refused(luff: Luff, rules: str, run: str, how: str) -> None:
    if how == "parent_by_descriptor" and not hasattr(os, "pidfd_open"):
        pytest.skip("this Python has no descriptors of processes")
    code, found, err = check(luff, run, rules, f"how={how}")
    assert code == 1, err
    assert found == {"LossAbove"}
    assert "rule Kills: it raised at TRAIN step 5: " in err
    assert ("CalledProcessError" if how == "child" else "PermissionError") in err


@pytest.mark.parametrize("how", ["itself", "its_group"])
def test_a_rule_may_end_itself(luff: Luff, rules: str, run: str, how: str) -> None:
    code, found, err = check(luff, run, rules, f"how={how}")
    assert code == 1, err
    assert found == {"LossAbove"}
    assert "rule Kills: it is set aside, its process ended 3 times; the last time: signal 9 (Killed)" in err


def test_a_rule_may_end_its_children(luff: Luff, rules: str, run: str) -> None:
    code, found, err = check(luff, run, rules, "how=its_children")
    assert code == 1, err
    assert found == {"LossAbove", "Kills"}


def test_a_grandchild_that_kills_every_parent_ends_its_rule_only(
    luff: Luff, rules: str, run: str, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    code, found, err = check(luff, run, rules, f"how=orphan:mark={mark}")
    assert code == 1, err
    assert found == {"LossAbove"}
    assert "rule Kills: it is set aside, its process ended 3 times; the last time: signal 9 (Killed)" in err
    orphans = [Path("/proc") / pid for pid in mark.read_text().split()]
    assert len(orphans) == 3
    deadline = time.monotonic() + 60
    while any(orphan.exists() for orphan in orphans) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(orphan.exists() for orphan in orphans)


def test_the_other_rules_judge_a_job_whose_rule_kills_its_parent(luff: Luff, rules: str) -> None:
    job = luff.run(
        "steps.py", "--rules", f"all,{rules}:Kills,{rules}:LossAbove", arguments=("--nan-at", "60"), **PYTHON
    )
    assert job.code == 0, job.stderr
    assert {"NonFinite", "LossAbove"} <= job.rules()
    assert "the rule worker ended" not in job.stderr
    assert "luff: rule Kills: it raised at TRAIN step 5: PermissionError" in job.stderr
    verdict = job.stderr.splitlines()[-1]
    assert "(Kills did not judge all of it)" in verdict
    assert "rules did not see all of it" not in verdict
