"""Fixtures of several frameworks' tests: a script under `luff run`, as a user starts it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap

import pytest


def run_group(command, timeout_s, env, **options):
    """Does what `subprocess.run` does. If time runs out, no process stays behind: each Python says where it stood."""
    job = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**env, "PYTHONFAULTHANDLER": "1"}, **options,
    )  # fmt: skip
    try:
        out, err = job.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGABRT)
        try:
            out, err = job.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            out, err = job.communicate()
        pytest.fail(f"not over after {timeout_s} s: {out}{err}")
    return subprocess.CompletedProcess(command, job.returncode, out, err)


@pytest.fixture
def start_luff(tmp_path):
    """Runs a script, given as text, under `luff run` into the run "run"; returns the finished process."""
    executable = os.environ.get("LUFF_EXECUTABLE") or shutil.which("luff")
    if executable is None:
        pytest.skip("no luff on PATH")

    def run(script, *options, expect=0):
        (tmp_path / "train.py").write_text(textwrap.dedent(script))
        environment = {
            k: v for k, v in os.environ.items() if not k.startswith("LUFF_") or k == "LUFF_BOOTSTRAP"
        }
        environment |= {"HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
        command = [
            executable,
            "run",
            "--run",
            str(tmp_path / "run"),
            *options,
            "--",
            sys.executable,
            "train.py",
        ]
        done = run_group(command, 180, cwd=tmp_path, env=environment)
        assert done.returncode == expect, done.stderr + done.stdout
        assert "nothing was recorded" not in done.stderr
        return done

    return run


@pytest.fixture
def luff_run(start_luff, tmp_path):
    """Runs a script, given as text, under `luff run`; returns the finished process and the trial."""

    def run(script, *options, expect=0):
        import luff

        done = start_luff(script, *options, expect=expect)
        return done, luff.open_trial(tmp_path / "run")

    return run


@pytest.fixture
def luff_findings(start_luff, tmp_path):
    """Like `luff_run`, but returns the process, the rules that lead its findings, and the trial."""

    def run(script, *options, expect=0):
        import luff

        out = tmp_path / "findings.jsonl"
        done = start_luff(script, "--findings", str(out), *options, expect=expect)
        found = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
        rules = [finding["rule"] for finding in found if not finding["leader"]]
        return done, rules, luff.open_trial(tmp_path / "run")

    return run


@pytest.fixture
def luff_trainings(start_luff, tmp_path):
    """Runs a script, given as text, of several trainings under `luff run`.

    Returns what `luff run` said, and for each run its number of TRAIN steps. `same`: runs the script, which prints what
    it has learnt, alone too; the results must not differ.
    """

    def run(script, same=False):
        import luff

        done = start_luff(script)
        if same:
            alone = subprocess.run(
                [sys.executable, "train.py"], cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"},
                capture_output=True, text=True, timeout=180, check=True,
            )  # fmt: skip
            assert done.stdout == alone.stdout != ""
        steps = []
        for number in range(1, len(list(tmp_path.glob("run*"))) + 1):
            with luff.open_trial(tmp_path / ("run" if number == 1 else f"run-{number}")) as trial:
                assert trial.outcome == "completed"
                assert len(trial.workers()) == 1
                steps.append(trial.steps("TRAIN"))
        lines = done.stderr.splitlines()
        verdicts = [line for line in lines if " — run: " in line]
        assert len(verdicts) == len(steps), done.stderr
        if len(steps) > 1:
            assert lines[-1].startswith(f"luff: {len(steps)} trainings: "), done.stderr
        assert all(each == list(range(len(each))) for each in steps)
        return done.stderr, [len(each) for each in steps]

    return run


@pytest.fixture
def phases_of(tmp_path):
    """Returns what `luff profile` shows of a run: phases of TRAIN steps by name; checks that they add up.

    `words`: more for the command.
    """
    executable = os.environ.get("LUFF_EXECUTABLE") or shutil.which("luff")
    if executable is None:
        pytest.skip("no luff on PATH")

    def read(run=tmp_path / "run", *words):
        done = subprocess.run(
            [executable, "profile", str(run), *words, "--json"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        shown = json.loads(done.stdout)
        assert shown["steps"] > 0, shown
        lines = {line["phase"]: line for line in shown["phases"]}
        assert sum(line["seconds"] for line in lines.values()) == pytest.approx(shown["seconds"], rel=1e-9)
        # `luff verify` adds up the nanoseconds of each step.
        checked = subprocess.run(
            [executable, "verify", str(run)], capture_output=True, text=True, timeout=60, check=False
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr
        return shown, lines

    return read
