"""End-to-end tests: `luff run` on real scripts.

The program and the package under test are those of the environment that runs pytest; LUFF_EXECUTABLE and
LUFF_BOOTSTRAP name others (a build that is not installed).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from .warm import Warm

pytest.importorskip("torch")

_HERE = Path(__file__).parent
_STOPPED = 76  # by a finding


def _executable() -> Path:
    given = os.environ.get("LUFF_EXECUTABLE")
    return Path(given) if given else Path(sys.executable).parent / "luff"


@dataclass
class Job:
    """Results of a finished `luff run`."""

    code: int
    stdout: str
    stderr: str
    run: Path
    findings: list[dict[str, Any]] = field(default_factory=list)

    def rules(self) -> set[str]:
        """Returns the names of the rules that found something."""
        return {finding["rule"] for finding in self.findings}


class Luff:
    """Runs the command, in a home and a working directory of its own."""

    warm: ClassVar[Warm | None] = None

    def __init__(self, tmp_path: Path) -> None:
        self.executable = _executable()
        self.tmp = tmp_path
        self.home = tmp_path / "home"
        self.cwd = tmp_path / "cwd"
        self.home.mkdir()
        self.cwd.mkdir()
        self.environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith("LUFF_") or key == "LUFF_BOOTSTRAP"
        }
        self.environment |= {"HOME": str(self.home), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}

    def start(
        self,
        *arguments: str,
        start_new_session: bool = False,
        process_group: int | None = None,
        **environment: str,
    ) -> subprocess.Popen[str]:
        """Starts luff with arguments."""
        return subprocess.Popen(
            [str(self.executable), *arguments],
            cwd=self.cwd,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=start_new_session,
            process_group=process_group,
        )

    def __call__(self, *arguments: str, timeout_s: float = 120, **environment: str) -> tuple[int, str, str]:
        """Runs luff until it exits; returns exit code, stdout, stderr."""
        process = self.start(*arguments, **environment)
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            pytest.fail(f"luff did not end in {timeout_s} s; stderr: {err}")
        return process.returncode, out, err

    def run(self, script: str, *options: str, arguments: tuple[str, ...] = (), **environment: str) -> Job:
        """Runs one of the scripts in this folder under `luff run`."""
        command = [sys.executable, str(_HERE / "scripts" / script), *arguments]
        return self._run(command, *options, **environment)

    def train(self, script: str, *options: str, arguments: tuple[str, ...] = (), **environment: str) -> Job:
        """Runs one of the scripts in this folder as `run` does, in a process that has torch from the start."""
        if Luff.warm is None:
            Luff.warm = Warm()
        job = self._run(Luff.warm.command(_HERE / "scripts" / script, *arguments), *options, **environment)
        # What has not trained has no findings either.
        assert job.code in (0, _STOPPED), f"{script} {arguments} ended with {job.code}: {job.stderr[-2000:]}"
        return job

    def _run(self, command: list[str], *options: str, **environment: str) -> Job:
        run, findings = self.tmp / "run", self.tmp / "findings.jsonl"
        code, out, err = self(
            "run", "--run", str(run), "--findings", str(findings), *options, "--", *command, **environment
        )
        lines = findings.read_text().splitlines() if findings.exists() else []
        return Job(code, out, err, run, [json.loads(line) for line in lines])

    def assert_check_gives_what_was_seen(self, run: Path) -> list[dict[str, Any]]:
        """Checks that `luff check` finds in the finished run what the rule worker found live, and nothing twice."""
        code, out, err = self("check", str(run), "--json")
        assert code in (0, 1, 3), err
        written = (run / "rules" / "luff" / "findings.jsonl").read_text()
        checked, live = (
            [finding for finding in map(json.loads, text.splitlines()) if finding["event"] == "new"]
            for text in (out, written)
        )
        assert checked == live
        assert len({finding["id"] for finding in live}) == len(live)
        return live


def processes_with(text: str) -> list[int]:
    """Returns living processes whose command line contains the text."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in command:
            found.append(int(entry.name))
    return found


@pytest.fixture(scope="session", autouse=True)
def _signals_of_the_keyboard() -> None:
    """Restores signals that a shell disables for background jobs: processes started by tests need them."""
    for number, default in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGQUIT, signal.SIG_DFL),
    ):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, default)


@pytest.fixture(scope="session", autouse=True)
def _no_process_is_left() -> Iterator[None]:
    yield
    if Luff.warm is not None:
        Luff.warm.close()
        Luff.warm = None


@pytest.fixture
def luff(tmp_path: Path) -> Luff:
    """The luff command."""
    if not _executable().exists():
        pytest.skip(f"no luff command at {_executable()}")
    return Luff(tmp_path)
