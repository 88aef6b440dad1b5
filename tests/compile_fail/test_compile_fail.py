"""Misuse of the C++ headers that must not compile.

Each file compiles as it is, and must not compile with LUFF_MISUSE defined.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
COMPILER = shutil.which("g++") or shutil.which("c++")


def compiles(source: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Compiles one file without writing output."""
    command = [str(COMPILER), "-std=c++20", "-fsyntax-only", "-Wall", "-Werror", f"-I{ROOT / 'include'}"]
    return subprocess.run([*command, *flags, str(source)], capture_output=True, text=True, check=False)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
@pytest.mark.parametrize("source", sorted(HERE.glob("*.cc")), ids=lambda path: path.stem)
def test_misuse_does_not_compile(source: Path) -> None:
    right = compiles(source)
    assert right.returncode == 0, right.stderr
    wrong = compiles(source, "-DLUFF_MISUSE")
    assert wrong.returncode != 0, f"{source.name} compiles with LUFF_MISUSE"
