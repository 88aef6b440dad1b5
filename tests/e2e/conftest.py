"""End-to-end: `luff run` on real scripts.

The program and the package under test are those of the environment that runs pytest; LUFF_EXECUTABLE and
LUFF_BOOTSTRAP name others (a build that is not installed).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

_HERE = Path(__file__).parent


def _executable() -> Path:
    given = os.environ.get("LUFF_EXECUTABLE")
    return Path(given) if given else Path(sys.executable).parent / "luff"


@dataclass
class Job:
    """What a finished `luff run` left behind."""

    code: int
    stdout: str
    stderr: str
    run: Path
    findings: list[dict[str, Any]] = field(default_factory=list)

    def rules(self) -> set[str]:
        """Names of the rules that found something."""
        return {finding["rule"] for finding in self.findings}


class Luff:
    """The command, in a home and a working directory of its own."""

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

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Starts luff with arguments."""
        return subprocess.Popen(
            [str(self.executable), *arguments],
            cwd=self.cwd,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *arguments: str, timeout_s: float = 120, **environment: str) -> tuple[int, str, str]:
        """Runs luff to its end: exit code, stdout, stderr."""
        process = self.start(*arguments, **environment)
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            pytest.fail(f"luff did not end in {timeout_s} s; stderr: {err}")
        return process.returncode, out, err

    def run(self, script: str, *options: str, arguments: tuple[str, ...] = (), **environment: str) -> Job:
        """Runs one of the scripts of this folder under `luff run`."""
        run, findings = self.tmp / "run", self.tmp / "findings.jsonl"
        code, out, err = self(
            "run", "--run", str(run), "--findings", str(findings), *options, "--",
            sys.executable, str(_HERE / "scripts" / script), *arguments, **environment,
        )  # fmt: skip
        lines = findings.read_text().splitlines() if findings.exists() else []
        return Job(code, out, err, run, [json.loads(line) for line in lines])


@pytest.fixture
def luff(tmp_path: Path) -> Luff:
    """The luff command."""
    if not _executable().exists():
        pytest.skip(f"no luff command at {_executable()}")
    return Luff(tmp_path)
