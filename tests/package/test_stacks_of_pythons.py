"""Stacks that are read from memory are those that Python tells, for each version of Python that is here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROBE = Path(__file__).parent / "stacks"
SOURCES = [
    *(f"src/base/{name}.cc" for name in ("format", "text_escape")),
    *(f"src/capture/stacks/{name}.cc" for name in ("code_lines", "process_memory", "python_stacks")),
]


def run(*words: object) -> str:
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def find(version: str) -> tuple[str, Path]:
    """Returns a Python and where its headers lie; skips the test where there is none, or no headers."""
    name = f"python{version}"
    found = [
        shutil.which(name),
        *sorted(map(str, Path.home().glob(f".pyenv/versions/{version}*/bin/{name}"))),
    ]
    for python in filter(None, found):
        words = [python, "-c", "import sysconfig; print(sysconfig.get_paths()['include'])"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        headers = Path(done.stdout.strip())
        if done.returncode == 0 and (headers / "internal" / "pycore_interp.h").exists():
            return python, headers
    pytest.skip(f"{name} with its headers is not here")


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_stacks_from_memory_are_those_that_python_tells(version: str, tmp_path: Path) -> None:
    python, headers = find(version)
    if shutil.which("cc") is None or shutil.which("c++") is None:
        pytest.skip("no compiler")
    layout, library = tmp_path / "interpreter.o", tmp_path / "probe.so"
    run("cc", "-std=c11", "-fPIC", "-c", ROOT / "python/src/interpreter.c", "-o", layout, f"-I{ROOT}/include",
        f"-I{headers}")  # fmt: skip
    run("c++", "-std=c++20", "-fPIC", "-shared", "-DFMT_HEADER_ONLY", f"-I{ROOT}/include", f"-I{ROOT}/src",
        f"-I{ROOT}/python/src", PROBE / "probe.cc", *(ROOT / source for source in SOURCES), layout, "-o",
        library)  # fmt: skip
    assert run(python, PROBE / "probe.py", library).startswith("same ")
