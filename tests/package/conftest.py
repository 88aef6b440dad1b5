"""Shared by the package tests: the repaired wheel, and environments made for a test."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def call(*command: object, **kwargs: object) -> str:
    """Runs a command and returns its output, which is also in the failure if it fails."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False, **kwargs)
    assert done.returncode == 0, (
        f"{command} ended with {done.returncode}:\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    )
    return done.stdout


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def wheel() -> Path:
    """The repaired wheel, rebuilt when an input has changed."""
    call(ROOT / "dev", "wheel", "--only", "3.11")
    return max(ROOT.glob("dist/luff-*-cp311-*manylinux*.whl"), key=lambda p: p.stat().st_mtime)


@pytest.fixture
def clean_env(tmp_path: Path) -> dict[str, str]:
    """An environment for processes, without any trace of this repository, its .venv or a compiler."""
    keep = {
        k: v for k, v in os.environ.items() if k.startswith(("PIP_", "SSL_", "HTTP", "http", "LANG", "LC_"))
    }
    home = tmp_path / "home"
    home.mkdir()
    return {**keep, "HOME": str(home), "PATH": str(tmp_path / "env" / "bin")}


@pytest.fixture
def clean_python(tmp_path: Path) -> Path:
    """Python of a new virtual environment."""
    venv.EnvBuilder(with_pip=True, symlinks=True).create(tmp_path / "env")
    assert sys.version_info[:2] == (3, 11)
    return tmp_path / "env" / "bin" / "python"
