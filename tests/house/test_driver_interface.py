"""What Luff declares of the driver of GPUs is what the maker's headers declare, where there are any on this machine.

They are no part of the build: nothing of Luff includes them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def headers() -> list[Path]:
    """Folders with the headers of a toolkit."""
    places = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"]
    places += sorted(Path("/usr/local").glob("cuda-*/include"))
    found = {place.resolve(): place for place in places if (place / "cudaTypedefs.h").is_file()}
    return list(found.values())


@pytest.mark.skipif(not headers(), reason="no headers of a CUDA toolkit are here")
def test_declarations_are_those_of_the_headers() -> None:
    compiler = shutil.which("g++") or pytest.skip("no compiler")
    for folder in headers():
        done = subprocess.run(
            [compiler, "-std=c++20", "-fsyntax-only", "-I", ROOT / "src", "-I", ROOT / "include", "-isystem", folder,
             ROOT / "tests/gpu/interface.cc"],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{folder}: {done.stderr[-2000:]}"


def test_every_function_is_compared() -> None:
    declared = (ROOT / "src/device/driver.h").read_text().split("struct Driver {", 1)[1].split("};", 1)[0]
    names = [line.split("(*", 1)[1].split(")", 1)[0] for line in declared.splitlines() if "Code (*" in line]
    compared = (ROOT / "tests/gpu/interface.cc").read_text()
    assert len(names) > 30
    assert [name for name in names if f"LUFF_SAME({name}, " not in compared] == []
    assert [name for name in names if "Synchronize" in name or "HostFunc" in name or "Callback" in name] == []
