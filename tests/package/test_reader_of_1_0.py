"""A run of today's format, read by the code that knew version 1.0 only: it skips what is new, and reads the rest."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from .conftest import call

LAST_OF_1_0 = "2907da21a96bf19cebb9fae46b402a692033f989"  # the commit before the format became 1.1
TEST = "golden_run_test"  # its own: the reader finds what the twin of a golden run lists
pytestmark = pytest.mark.thorough  # it builds what was released then


@pytest.fixture(scope="module")
def old(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of then, with the reader's test built."""
    missing = [tool for tool in ("git", "cmake", "ninja", "ccache") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not on PATH: nothing to build the reader of 1.0 with")
    known = subprocess.run(
        ["git", "-C", root, "cat-file", "-e", f"{LAST_OF_1_0}^{{commit}}"], capture_output=True, check=False
    )
    if known.returncode != 0:
        pytest.skip("the history of the repository is not here: nothing to build the reader of 1.0 from")
    folder = tmp_path_factory.mktemp("luff-1.0")
    archive = folder / "sources.tar"
    call("git", "-C", root, "archive", "--output", archive, LAST_OF_1_0)
    call("tar", "-xf", archive, "-C", folder)
    options = [
        "-DCMAKE_BUILD_TYPE=Release",
        "-DLUFF_DEVELOPER=ON",
        "-DLUFF_STRICT=OFF",
        "-DCMAKE_CXX_FLAGS=-O1",
    ]
    env = {**os.environ, "CMAKE_CXX_COMPILER_LAUNCHER": "ccache"}
    call("cmake", "-G", "Ninja", "-S", folder, "-B", folder / "build", *options, env=env)
    call("cmake", "--build", folder / "build", "--target", TEST, env=env)
    return folder


def reads(old: Path, golden: Path) -> None:
    place = old / "testdata" / "format" / "v1"
    shutil.rmtree(place)
    shutil.copytree(golden, place)
    said = call(old / "build" / "tests" / "crash" / TEST, "--gtest_filter=*ReadsAsItsTwinSays")
    assert "[  PASSED  ] 1 test" in said, said


@pytest.mark.parametrize("version", ["v1", "v1.1", "v1.2"])
def test_the_reader_of_1_0_reads_golden_runs(root: Path, old: Path, version: str) -> None:
    golden = root / "testdata" / "format" / version
    assert golden.is_dir(), "the newest golden run belongs here, too"
    reads(old, golden)


def test_it_would_notice_a_wrong_value(root: Path, old: Path, tmp_path: Path) -> None:
    golden = tmp_path / "v1.2"
    shutil.copytree(root / "testdata" / "format" / "v1.2", golden)
    twin = golden / "run.expected.json"
    said = json.loads(twin.read_text())
    said["steps"][0]["loss"] += 1
    twin.write_text(json.dumps(said))
    with pytest.raises(AssertionError, match="FAILED"):
        reads(old, golden)
