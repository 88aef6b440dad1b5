"""SIGTERM ends a watched process like a bare one, wherever it is, and all values handed over are in the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import luff
import pytest

_BOUND_S = 30  # something that takes 0.5 s on an idle machine, and would hang forever if broken

SCRIPT = """
import itertools, multiprocessing, os, signal, sys, time
import numpy as np
from luff._base_hook import choose_run, make_config
from luff._codes import Mode, Role
from luff._step_hook import StepHook

def in_c(say=b""):  # comes to no line of Python
    sum(itertools.chain(map(os.write, [1], [say]), itertools.repeat(1, 10**12)))

def train(steps, hook=None):
    hook = hook or StepHook(choose_run(sys.argv[1], False, make_config(None, {})))
    hook.open_now()
    for step in range(steps):
        hook.steps.begin(int(Mode.TRAIN))
        hook.steps.scalar("loss", 1.0, int(Role.LOSS))
        hook.steps.end()
    return hook

def said(*what):
    print(*what, flush=True)

{body}
"""


def _started(tmp_path: Path, body: str) -> subprocess.Popen[str]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("{body}", body))
    return subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # its threads would receive signals
    )


def _ended(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    try:
        out, _ = process.communicate(timeout=_BOUND_S)
    finally:
        process.kill()
    return process.returncode, out.splitlines()


def _terminated(tmp_path: Path, body: str) -> tuple[int, list[str]]:
    """Returns exit code and output of a script that gets SIGTERM once it has printed "ready"."""
    process = _started(tmp_path, body)
    assert process.stdout is not None
    patience = threading.Timer(2 * _BOUND_S, process.kill)
    patience.start()
    said = process.stdout.readline()
    patience.cancel()
    assert said == "ready\n"
    process.terminate()
    return _ended(process)


def _worker(tmp_path: Path, number: int = 0) -> dict[str, object]:
    with luff.open_trial(str(tmp_path / "run")) as trial:
        return dict(trial.workers()[number])


@pytest.mark.parametrize(
    "waits",
    [
        "in_c(b'ready\\n')",
        "said('ready'); time.sleep(1000)",
        "said('ready')\nwhile True: pass",
    ],
)
def test_what_was_recorded_is_in_the_run(tmp_path: Path, waits: str) -> None:
    assert _terminated(tmp_path, f"hook = train(5)\n{waits}") == (-signal.SIGTERM, [])
    worker = _worker(tmp_path)
    assert (worker["last_step"], worker["ended"], worker["reason"]) == (4, True, "signal")


def test_a_step_that_is_open_in_c_is_a_gap(tmp_path: Path) -> None:
    code, _ = _terminated(
        tmp_path,
        "hook = train(5)\nhook.steps.begin(int(Mode.TRAIN))\nhook.steps.scalar('loss', 1.0)\n"
        "in_c(b'ready\\n')",
    )
    assert code == -signal.SIGTERM
    with luff.open_trial(str(tmp_path / "run")) as trial:
        assert trial.steps("TRAIN") == list(range(5))
        (gap,) = trial.gaps()
        assert (gap["reason"], gap["first_step"], gap["last_step"]) == ("closing", 5, 5)


def test_no_line_of_the_training_runs_after_it_has_killed_itself(tmp_path: Path) -> None:
    body = """
hook = train(3)
hook.steps.begin(int(Mode.TRAIN))
hook.steps.scalar("loss", 1.0)
os.kill(os.getpid(), signal.SIGTERM)
said("a further line")
"""
    assert _ended(_started(tmp_path, body)) == (-signal.SIGTERM, [])
    assert (_worker(tmp_path)["last_step"], _worker(tmp_path)["reason"]) == (3, "signal")


def test_it_dies_although_our_own_part_hangs(tmp_path: Path) -> None:
    body = """
import luff._core
hook = train(3)
luff._core.on_terminate(lambda: time.sleep(1000))
said("ready")
while True: pass
"""
    assert _terminated(tmp_path, body)[0] == -signal.SIGTERM
    assert _worker(tmp_path)["last_step"] == 2


@pytest.mark.parametrize("trains", [False, True])
def test_forked_children_end_at_once(tmp_path: Path, trains: bool) -> None:
    body = f"""
def child(started):
    if {trains}:
        train(2, hook)
    started.release()
    in_c()

if __name__ == "__main__":
    hook = train(3)
    context = multiprocessing.get_context("fork")
    started = context.Semaphore(0)
    one = context.Process(target=child, args=(started,))
    one.start()
    started.acquire()
    one.terminate()
    one.join()
    said(one.exitcode)
    with context.Pool(2) as pool:
        for _ in range(2):
            pool.apply_async(in_c)
    said("the pool has ended")
    hook.close()
"""
    assert _ended(_started(tmp_path, body)) == (0, [str(-signal.SIGTERM), "the pool has ended"])
    assert _worker(tmp_path)["reason"] == "completed"
    if trains:
        assert (_worker(tmp_path, 1)["last_step"], _worker(tmp_path, 1)["reason"]) == (1, "signal")


def test_users_see_no_handler_and_their_own_work(tmp_path: Path) -> None:
    body = """
def own(number, frame):
    said("own")

before = signal.signal(signal.SIGTERM, own)
hook = train(1)
said(signal.getsignal(signal.SIGTERM) is own)
os.kill(os.getpid(), signal.SIGTERM)
hook.close()
signal.signal(signal.SIGTERM, before)
other = StepHook(choose_run(sys.argv[1] + "2", False, make_config(None, {})))
train(1, other)
said(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
said(signal.signal(signal.SIGTERM, own) is signal.SIG_DFL)
os.kill(os.getpid(), signal.SIGTERM)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM})
os.kill(os.getpid(), signal.SIGUSR1)
said(signal.sigwait({signal.SIGUSR1}) == signal.SIGUSR1)
said(len(os.listdir("/proc/self/task")) > 1)
other.close()
for _ in range(500):  # the kernel lists a thread that was joined a moment longer
    if os.listdir("/proc/self/task") == [str(os.getpid())]:
        break
    time.sleep(0.01)
said(os.listdir("/proc/self/task") == [str(os.getpid())])
signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
os.kill(os.getpid(), signal.SIGTERM)
"""
    said = ["True", "own", "True", "True", "own", "True", "True", "True"]
    assert _ended(_started(tmp_path, body)) == (-signal.SIGTERM, said)


def test_two_runs_are_ended_by_one_signal(tmp_path: Path) -> None:
    body = """
hook = train(2)
other = StepHook(choose_run(sys.argv[1] + "2", False, make_config(None, {}))); train(3, other)
in_c(b"ready\\n")
"""
    assert _terminated(tmp_path, body)[0] == -signal.SIGTERM
    for name, steps in (("run", 2), ("run2", 3)):
        with luff.open_trial(str(tmp_path / name)) as trial:
            assert (trial.steps("TRAIN"), trial.workers()[0]["reason"]) == (list(range(steps)), "signal")
