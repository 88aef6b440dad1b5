"""`luff run` behaves in an interactive shell like `env` or `time`: bash with job control, in its own terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import Luff, processes_with

_BOUND_S = 60  # bound for something that hangs forever when it is broken
_PROMPT = "ready> "

# Counts the signals that it receives; prints "ready" when it can.
_COUNTS = """
import signal, sys, time
got = []
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: got.append(signal.Signals(number).name))
out = open(sys.argv[1], "w") if len(sys.argv) > 1 else sys.stdout
print("go" + "ing", file=out, flush=True)
while not got:
    time.sleep(0.01)
time.sleep(0.3)
print("g" + "ot", *got, file=out, flush=True)
sys.exit(5)
"""
# Runs until it is killed; writes a byte to `beats` in each iteration.
_BEATS = """
import sys, time
beats = open(sys.argv[1], "ab", buffering=0)
print("go" + "ing", flush=True)
while True:
    beats.write(b".")
    time.sleep(0.01)
"""


@pytest.fixture(autouse=True)
def no_signal_is_ignored() -> Iterator[None]:
    """Under nohup the tests' children would ignore SIGHUP, as they should: then it reaches no job."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


class Shell:
    """bash in a terminal."""

    def __init__(self, luff: Luff) -> None:
        self.text = ""
        self._at = 0
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.chdir(luff.cwd)
            environment = luff.environment | {"PS1": _PROMPT, "TERM": "dumb", "LC_ALL": "C"}
            os.execve("/bin/bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"], environment)
        self.expect(_PROMPT)

    def send(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def line(self, text: str) -> None:
        self.send(text + "\n")

    def expect(self, pattern: str) -> str:
        """Waits for the pattern in the output since the last match; returns everything up to its end."""
        deadline = time.monotonic() + _BOUND_S
        while (found := re.search(pattern, self.text[self._at :])) is None:
            readable, _, _ = select.select([self._terminal], [], [], max(deadline - time.monotonic(), 0))
            assert readable, f"no {pattern!r} within {_BOUND_S} s in {self.text[self._at :]!r}"
            self.text += os.read(self._terminal, 4096).decode(errors="replace")
        start, self._at = self._at, self._at + found.end()
        return self.text[start : self._at]

    def code(self) -> int:
        """Returns the exit code of the last command, once the shell has the terminal again."""
        _until(lambda: os.tcgetpgrp(self._terminal) == self.pid, "the end of the job")
        self.line("echo code=$?")
        return int(self.expect(r"code=\d+\r").rpartition("=")[2])

    def key(self, key: str) -> None:
        """Presses a key that sends a signal, once the shell has given the terminal to a job."""
        _until(lambda: os.tcgetpgrp(self._terminal) != self.pid, "a job in the foreground")
        self.send(key)

    def stop(self, job: int) -> None:
        """Presses Ctrl-Z until the job is stopped: the shell's SIGCONT of `fg` may arrive after the first press."""

        def is_stopped() -> bool:
            if _state(job) == "T":
                return os.tcgetpgrp(self._terminal) == self.pid
            if os.tcgetpgrp(self._terminal) == job:
                self.send("\x1a")
                time.sleep(0.3)
            return False

        _until(is_stopped, "the stop")
        self.line("jobs")
        self.expect(r"Stopped")
        self.expect(_PROMPT)

    def hang_up(self) -> None:
        os.close(self._terminal)
        self._terminal = -1

    def close(self) -> None:
        if self._terminal >= 0:
            os.close(self._terminal)
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.waitpid(self.pid, 0)


@pytest.fixture
def shell(luff: Luff) -> Iterator[Shell]:
    shell = Shell(luff)
    yield shell
    shell.close()


def _command(luff: Luff, program: str, *arguments: str) -> str:
    return shlex.join(
        [str(luff.executable), "run", "--", sys.executable, "-S", "-u", "-c", program, *arguments]
    )


def _until(condition: object, what: str) -> None:
    assert callable(condition)
    deadline = time.monotonic() + _BOUND_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen in {_BOUND_S} s"
        time.sleep(0.01)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_ctrl_z_fg_bg_and_ctrl_c(luff: Luff, shell: Shell) -> None:
    beats = luff.tmp / "beats"
    shell.line(_command(luff, _BEATS, str(beats)))
    shell.expect("going")
    # A child that Luff has forked has Luff's command line until it has become another program.
    _until(lambda: len(processes_with(str(beats))) == 2, "the job and the command, alone")
    job, command = sorted(processes_with(str(beats)))
    for _ in range(2):
        shell.stop(job)
        assert _state(command) == "T"
        before = beats.stat().st_size
        shell.line("bg")
        _until(lambda: beats.stat().st_size > before, "going on in the background")  # noqa: B023
        shell.expect(_PROMPT)
        shell.line("fg")
    shell.key("\x03")
    assert shell.code() == 130
    assert processes_with(str(beats)) == []


@pytest.mark.parametrize(("key", "name"), [("\x03", "SIGINT"), ("\x1c", "SIGQUIT")])
def test_a_key_reaches_the_command_once_and_all_of_a_pipe(
    luff: Luff, shell: Shell, key: str, name: str
) -> None:
    first, second = luff.tmp / "first", luff.tmp / "second"
    bare = shlex.join([sys.executable, "-S", "-c", _COUNTS, str(second)])
    shell.line(f"{_command(luff, _COUNTS, str(first))} | {bare}")
    for file in (first, second):
        _until(lambda: file.exists() and file.read_text() == "going\n", "the start")  # noqa: B023
    shell.key(key)
    assert shell.code() == 5
    assert first.read_text() == second.read_text() == f"going\ngot {name}\n"


def test_a_loop_of_the_shell_ends_by_ctrl_c(luff: Luff, shell: Shell) -> None:
    beats = luff.tmp / "beats"
    shell.line(f"for i in 1 2; do {_command(luff, _BEATS, str(beats))}; done")
    shell.expect("going")
    shell.key("\x03")
    shell.code()
    assert "going" not in shell.text[shell.text.index("going") + 5 :]


def test_in_the_background_it_leaves_the_terminal_to_the_shell(luff: Luff, shell: Shell) -> None:
    shell.line(_command(luff, _COUNTS) + " &")
    shell.expect("going")
    shell.line("echo still $((1 + 1)) here")
    shell.expect("still 2 here")
    shell.line("kill %1; wait %1; echo code=$?")
    shell.expect("got SIGTERM\r\n")
    shell.expect("code=5")


def test_who_reads_the_terminal_in_the_background_is_stopped(luff: Luff, shell: Shell) -> None:
    program = "print('he' + 'ard', input('a question: '))"
    shell.line(_command(luff, program) + " &")
    shell.expect(_PROMPT)
    for _ in range(500):  # bash reports it with its next prompt
        shell.line("")
        if "Stopped" in shell.expect(_PROMPT):
            break
        time.sleep(0.02)
    assert "Stopped" in shell.text
    shell.line("fg")
    shell.expect("-c")
    shell.line("an answer")
    shell.expect("heard an answer")
    assert shell.code() == 0


def test_input_comes_by_a_pipe(luff: Luff, shell: Shell) -> None:
    shell.line(f"yes | {luff.executable} run -- head -n 2 | cat; echo ended ${{PIPESTATUS[@]}}")
    shell.expect("y\r\ny\r\n")
    shell.expect(r"ended (141|1) 0 0")  # depends on how the process that runs the tests has set SIGPIPE


def test_the_end_of_the_terminal_ends_the_job(luff: Luff, shell: Shell) -> None:
    beats = luff.tmp / "beats"
    shell.line(_command(luff, _BEATS, str(beats)))
    shell.expect("going")
    shell.hang_up()
    _until(lambda: processes_with(str(beats)) == [], "the end of the job")


def test_nohup_is_the_commands_too(luff: Luff) -> None:
    program = "import os, signal; os.kill(os.getpid(), signal.SIGHUP); print('alive')"
    command = ["nohup", str(luff.executable), "run", "--", sys.executable, "-S", "-c", program]
    done = subprocess.run(
        command,
        cwd=luff.cwd,
        env=luff.environment,
        capture_output=True,
        text=True,
        timeout=_BOUND_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
@pytest.mark.parametrize("whole_group", [False, True])
def test_a_signal_reaches_the_command_once(luff: Luff, number: signal.Signals, whole_group: bool) -> None:
    process = luff.start("run", "--", sys.executable, "-S", "-c", _COUNTS, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "going\n"
    (os.killpg if whole_group else os.kill)(process.pid, number)
    out, err = process.communicate(timeout=_BOUND_S)
    assert (process.returncode, out) == (5, f"got {number.name}\n"), err


def test_who_is_stopped_and_continued_alone_takes_the_job_along(luff: Luff) -> None:
    beats = luff.tmp / "beats"
    # A process group below this process: the kernel lets it be stopped whether or not this process has a shell.
    process = luff.start("run", "--", sys.executable, "-S", "-c", _BEATS, str(beats), process_group=0)
    assert process.stdout is not None
    assert process.stdout.readline() == "going\n"
    process.send_signal(signal.SIGTSTP)
    _until(lambda: _state(process.pid) == "T", "the stop")
    before = beats.stat().st_size
    process.send_signal(signal.SIGCONT)
    _until(lambda: beats.stat().st_size > before, "going on")
    process.terminate()
    process.communicate(timeout=_BOUND_S)
    assert process.returncode == 128 + signal.SIGTERM
