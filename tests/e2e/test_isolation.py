"""What `luff run` promises to the job and the machine: its own exit code and signals, and nothing left behind."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest

from .conftest import Luff, processes_with

_STEPS = str(Path(__file__).parent / "scripts" / "steps.py")


def _outcome(run: Path) -> dict[str, Any]:
    record = json.loads(sorted((run / "control").glob("*.json"))[-1].read_text())
    assert record["kind"] == "outcome"
    body = record["body"]
    outcome: dict[str, Any] = json.loads(body) if isinstance(body, str) else body
    return outcome


def _wait(condition: Any, what: str, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen in {seconds} s"
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_exit_code_of_a_command_that_a_signal_ended(luff: Luff, number: signal.Signals) -> None:
    code, _, err = luff("run", "--", "sh", "-c", f"kill -{number.value} $$")
    assert code == 128 + number
    assert f"signal {number.value}" in err


def test_training_that_is_killed_is_a_failed_run(luff: Luff) -> None:
    job = luff.run("steps.py", arguments=("--steps", "20", "--die", str(int(signal.SIGKILL))))
    assert job.code == 128 + signal.SIGKILL
    assert "signal 9" in job.stderr.splitlines()[-1]
    outcome = _outcome(job.run)
    assert (outcome["state"], outcome["exit_code"], outcome["signal"]) == ("failed", 137, 9)
    code, out, _ = luff("show", str(job.run), "--json")
    assert code == 0
    assert json.loads(out)["outcome"] == "failed"


@pytest.mark.parametrize("code", [0, 3])
def test_processes_that_the_command_leaves_are_left_alone(luff: Luff, code: int) -> None:
    mark = f"sleep 98{os.getpid()}{code}"
    ended, _, err = luff("run", "--", "sh", "-c", f"{mark} >/dev/null 2>&1 & exit {code}")
    assert ended == code, err
    (left,) = processes_with(mark)
    os.kill(left, signal.SIGKILL)


_LEFT_BEHIND = """
import pathlib, sys, time
from luff._base_hook import choose_run, make_config
from luff._codes import Mode, Role
from luff._step_hook import StepHook

hook = StepHook(choose_run(None, False, make_config(None, {})))
for step in range(3):
    hook.steps.begin(int(Mode.TRAIN))
    hook.steps.scalar("loss", 1.0, int(Role.LOSS))
    hook.steps.end()
hook.flush()
pathlib.Path(sys.argv[1]).touch()
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.parametrize("ends", [True, False])
def test_the_job_goes_on_while_workers_of_a_launcher_record(luff: Luff, ends: bool) -> None:
    script, mark = luff.tmp / "worker.py", luff.tmp / "mark"
    script.write_text(_LEFT_BEHIND)
    worker = f"{sys.executable} {script} {mark} {1 if ends else 1000} >/dev/null 2>&1"
    launcher = f"{worker} & while ! test -e {mark}; do sleep 0.05; done"
    code, _, err = luff(
        "run",
        "--run",
        str(luff.tmp / "run"),
        "--",
        "sh",
        "-c",
        launcher,
        LUFF_RULE_IDLE_S="60" if ends else "2",
    )
    assert code == 0
    assert "processes that it has left still record" in err
    assert "ok: 3 steps" in err
    if ends:
        _wait(lambda: processes_with(str(script)) == [], "the end of the worker")
    else:
        (left,) = processes_with(str(script))
        os.kill(left, signal.SIGKILL)


def test_nothing_but_the_run_is_written(luff: Luff) -> None:
    places = [luff.home, luff.cwd, luff.tmp / "tmpdir"]
    places[2].mkdir()
    cache = str(luff.tmp / "cache")  # torch creates it at import, with and without Luff
    job = luff.run(
        "train.py", arguments=("--steps", "10"), TMPDIR=str(places[2]), TORCHINDUCTOR_CACHE_DIR=cache
    )
    assert job.code == 0, job.stderr
    assert job.stdout.startswith("done ")
    assert [list(place.iterdir()) for place in places] == [[], [], []]
    assert {path.name for path in luff.tmp.iterdir()} - {"cache"} == {
        "home",
        "cwd",
        "tmpdir",
        "run",
        "findings.jsonl",
    }
    assert job.run.stat().st_mode & 0o077 == 0


_COUNTS_INTERRUPTS = """
import signal, sys, time
seen = []
signal.signal(signal.SIGINT, lambda *_: seen.append(1))
print("ready", sys.stdin.isatty(), flush=True)
while not seen:
    time.sleep(0.01)
time.sleep(0.3)
print("interrupts", len(seen), flush=True)
sys.exit(5)
"""


def test_ctrl_c_in_a_terminal_reaches_the_command_once(luff: Luff) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(luff.cwd)
        command = [str(luff.executable), "run", "--", sys.executable, "-S", "-c", _COUNTS_INTERRUPTS]
        os.execve(command[0], command, luff.environment)
    text = b""
    sent = False
    while True:
        try:
            got = os.read(terminal, 4096)
        except OSError:  # the last user of the terminal has closed it
            break
        if not got:
            break
        text += got
        if b"ready True\r\n" in text and not sent:
            os.write(terminal, b"\x03")
            sent = True
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert b"ready True" in text, text
    assert b"interrupts 1\r\n" in text, text
    assert os.waitstatus_to_exitcode(status) == 5, text


def _in_a_terminal(luff: Luff, columns: int, *arguments: str) -> list[str]:
    """Runs luff in a terminal; returns what was written into its last line, without colours."""
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(2, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        os.chdir(luff.cwd)
        os.execve(str(luff.executable), [str(luff.executable), *arguments], luff.environment)
    text = b""
    with contextlib.suppress(OSError):  # the last user of the terminal has closed it
        while got := os.read(terminal, 4096):
            text += got
    os.waitpid(pid, 0)
    os.close(terminal)
    parts = re.split(r"\r\x1b\[2K|\r", text.decode())
    return [plain for part in parts if (plain := re.sub(r"\x1b\[[0-9;]*m", "", part).strip())]


@pytest.mark.parametrize("rules", ["", "none"])
def test_the_status_line_shows_loss_and_speed_and_is_never_too_wide(luff: Luff, rules: str) -> None:
    script = str(Path(__file__).parent / "scripts" / "steps.py")
    command = ["--", sys.executable, script, "--steps", "60", "--sleep", "0.04"]
    options = [] if not rules else ["--rules", rules]
    wide = _in_a_terminal(luff, 120, "run", "--run", str(luff.tmp / "wide"), *options, *command)
    shown = [line for line in wide if line.startswith("luff: step ")]
    assert any(
        re.fullmatch(r"luff: step \d+, loss \S+,.* \S+ steps/s, no (findings|rules)", line) for line in shown
    ), wide
    assert not any(" left" in line for line in shown), "nobody has said how long it takes"
    narrow = _in_a_terminal(luff, 24, "run", "--run", str(luff.tmp / "narrow"), *options, *command)
    shown = [line for line in narrow if line.startswith(("luff: step ", "luff: waiting"))]
    assert shown
    assert max(map(len, shown)) < 24


def test_signal_to_the_whole_group_reaches_the_command_once(luff: Luff) -> None:
    process = luff.start("run", "--", sys.executable, "-S", "-c", _COUNTS_INTERRUPTS, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready")
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert out == "interrupts 1\n"
    assert process.returncode == 5, err


def test_rule_worker_that_is_killed_goes_on_where_it_was(luff: Luff) -> None:
    run, go = luff.tmp / "run", luff.tmp / "go"
    process = luff.start(
        "run", "--run", str(run), "--", sys.executable, _STEPS, "--nan-at", "20", "--wait-at", "80", "--go", str(go)
    )  # fmt: skip
    findings = run / "rules" / "luff" / "findings.jsonl"
    # A warning comes first; it becomes a stop once gradients and weights are known not to be finite.
    _wait(lambda: findings.exists() and '"severity":"stop"' in findings.read_text(), "a finding that stops")
    assert process.poll() is None
    seen = json.loads(findings.read_text().splitlines()[0])
    code, out, err = luff("check", str(run), "--json")  # while the run is live
    assert code == 3, err
    live = json.loads(out.splitlines()[0])
    assert (live["id"], live["step"], live["tensor"]) == (seen["id"], seen["step"], seen["tensor"])
    assert process.poll() is None
    (worker,) = [pid for pid in processes_with(str(run)) if _is_rule_worker(pid)]
    os.kill(worker, signal.SIGKILL)
    go.touch()
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "done" in out
    assert "rules did not see all of it" not in err
    assert err.count("STOP NonFinite: ") + err.count("now STOP: NonFinite ") == 1, err
    luff.assert_check_gives_what_was_seen(run)
    assert processes_with(str(run)) == []


def test_rule_worker_that_hangs_holds_nothing(luff: Luff) -> None:
    run, go = luff.tmp / "run", luff.tmp / "go"
    process = luff.start(
        "run", "--run", str(run), "--on-finding", "stop", "--", sys.executable, _STEPS, "--wait-at", "80",
        "--go", str(go), LUFF_RULE_IDLE_S="1",
    )  # fmt: skip
    _wait(
        lambda: any(map(_is_rule_worker, processes_with(str(run)))) and (run / "run.json").exists(), "a step"
    )
    (worker,) = [pid for pid in processes_with(str(run)) if _is_rule_worker(pid)]
    os.kill(worker, signal.SIGSTOP)
    go.touch()
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "done" in out
    assert "does not come to an end" in err
    assert "(rules did not see all of it)" in err.splitlines()[-1]
    assert processes_with(str(run)) == []


def test_training_outlives_its_supervisor(luff: Luff) -> None:
    run, go = luff.tmp / "run", luff.tmp / "go"
    process = luff.start(
        "run", "--run", str(run), "--", sys.executable, _STEPS, "--wait-at", "80", "--go", str(go)
    )
    _wait((run / "run.json").exists, "the first step")
    process.kill()
    go.touch()
    out, _ = process.communicate(timeout=120)  # waits until the training closes its output
    assert "done" in out
    _wait(lambda: processes_with(str(run)) == [], "the end of the rule worker")
    code, shown, err = luff("show", str(run), "--json")
    assert code == 0, err
    assert json.loads(shown)["outcome"] == "completed"


def _is_rule_worker(pid: int) -> bool:
    try:
        return b"\0_evaluate\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
