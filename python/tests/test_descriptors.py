"""A training that closes descriptors it did not open: its files contain only its own bytes, and nothing is lost."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import luff
import numpy as np
import pytest
from luff._held_file import HeldFile

STEPS, ELEMENTS, FILES = 30, 40_000, 40

SCRIPT = f"""
import os, subprocess, sys
import numpy as np
from luff._base_hook import choose_run, make_config
from luff._codes import Mode, Role
from luff._step_hook import StepHook

folder, attack, table = sys.argv[1:]
if table == "shared":
    # A sandbox without the calls that give a thread a table of its own.
    import ctypes, struct
    rules = [(0x20, 0, 0, 0), (0x15, 2, 0, 436), (0x15, 1, 0, 272), (6, 0, 0, 0x7FFF0000), (6, 0, 0, 0x00050001)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(rules), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(program), 0, 0):
        sys.exit(77)

files = []
def close_all():
    if files:
        for file in files:
            os.fsync(file)
    os.closerange(3, 65536)
    flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND
    files[:] = [os.open(f"{{folder}}/theirs{{number}}", flags) for number in range({FILES})]
    # Also where others would not look for them.
    for number, file in enumerate(list(files)):
        if number % 2:
            high = 4095 - 6 * number
            os.dup2(file, high); os.close(file); files[number] = high

def daemonise():
    if os.fork(): os._exit(0)
    os.setsid()
    if os.fork(): os._exit(0)
    os.closerange(0, 65536)
    for _ in range(3): os.open("/dev/null", os.O_RDWR)

options = {{"save_all": True, "save_interval": 1, "max_overhead": 0}}
hook = StepHook(choose_run(folder + "/run", False, make_config(None, options)))
rising = np.arange({ELEMENTS}, dtype=np.float32)

def train(step):
    hook.steps.begin(int(Mode.TRAIN))
    hook.steps.scalar("loss", float(step), int(Role.LOSS))
    hook.steps.array("weight", rising + np.float32(step), int(Role.WEIGHT))
    hook.steps.updated()
    hook.steps.end()
    hook.boundary()
    hook.flush()

if attack == "before": close_all()
if attack == "daemon": hook.open_now(); daemonise()
hook.open_now()
if attack == "children":
    print(subprocess.run(["ls", "/proc/self/fd"], close_fds=False, capture_output=True, text=True).stdout.split())
for step in range({STEPS}):
    if step == 10 and attack in ("middle", "twice") or step == 20 and attack == "twice": close_all()
    for number, file in enumerate(files): os.write(file, f"{{number}} at {{step}}\\n".encode())
    train(step)
hook.close()
print("results", np.float64(sum(range({STEPS}))))
open(folder + "/done", "w").close()
"""


def attacked(tmp_path: Path, attack: str, table: str) -> str:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), attack, table],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    if done.returncode == 77:
        pytest.skip("no filter of system calls here")
    assert (done.returncode, done.stderr) == (0, "")
    until = time.monotonic() + 60
    while not (tmp_path / "done").exists():  # a daemon ends later
        assert time.monotonic() < until
        time.sleep(0.01)
    return done.stdout


def steps_with_their_values(trial: luff.Trial) -> list[int]:
    weight = trial.tensor("weight")
    found = []
    for step in trial.steps("TRAIN"):
        np.testing.assert_array_equal(
            weight.value(step, mode="TRAIN"), np.arange(ELEMENTS, dtype=np.float32) + np.float32(step)
        )
        found.append(step)
    return found


@pytest.mark.parametrize(
    ("attack", "table"),
    [
        ("before", "own"),
        ("middle", "own"),
        ("twice", "own"),
        ("daemon", "own"),
        ("children", "own"),
        ("twice", "shared"),
        ("daemon", "shared"),
    ],
)
def test_files_hold_the_bytes_of_the_training_and_the_run_all_steps(
    tmp_path: Path, attack: str, table: str
) -> None:
    out = attacked(tmp_path, attack, table)
    if attack == "children":
        assert out.splitlines()[0] == "['0', '1', '2', '3']"  # 3 is the folder that ls reads
    if attack != "daemon":
        assert out.splitlines()[-1] == "results 435.0"
    first = {"before": 0, "middle": 10, "twice": 10}.get(attack, STEPS)
    for number in range(FILES if first < STEPS else 0):
        lines = (tmp_path / f"theirs{number}").read_text().splitlines()
        assert lines == [f"{number} at {step}" for step in range(first, STEPS)]
    with luff.open_trial(str(tmp_path / "run")) as trial:
        assert steps_with_their_values(trial) == list(range(STEPS))
        assert trial.workers()[-1]["reason"] == "completed"
        assert not [gap for gap in trial.gaps() if gap["reason"] not in ("fork", "worker lost")]


def test_a_file_that_is_held_is_not_written_once_its_number_leads_elsewhere(tmp_path: Path) -> None:
    held = HeldFile(str(tmp_path / "ours"))
    assert held.fileno() >= 128
    assert not os.get_inheritable(held.fileno())
    buffered = io.BufferedWriter(held)
    buffered.write(b"ours")
    buffered.flush()
    theirs = os.open(tmp_path / "theirs", os.O_CREAT | os.O_WRONLY)
    number = held.fileno()
    os.dup2(theirs, number)
    buffered.write(b"more")
    with pytest.raises(OSError, match="was luff's"):
        buffered.close()
    os.write(number, b"theirs")  # still open
    os.close(number)
    os.close(theirs)
    assert [(tmp_path / name).read_bytes() for name in ("ours", "theirs")] == [b"ours", b"theirs"]
