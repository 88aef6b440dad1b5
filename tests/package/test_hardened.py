"""Installed binaries were compiled with the options that turn a mistake into an abort (cmake/LuffHardening.cmake)."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import luff._core
import pytest

from .conftest import call

PARTS = {"module": Path(luff._core.__file__), "command": Path(sys.executable).with_name("luff")}


@pytest.fixture(params=PARTS)
def part(request: pytest.FixtureRequest) -> Path:
    if shutil.which("readelf") is None:
        pytest.skip("no readelf")
    return PARTS[request.param]


def test_addresses_of_functions_are_read_only_once_it_runs(part: Path) -> None:
    assert "BIND_NOW" in call("readelf", "-dW", part)
    assert "GNU_RELRO" in call("readelf", "-lW", part)


def test_the_stack_is_guarded_and_not_executable(part: Path) -> None:
    assert "__stack_chk_fail" in call("readelf", "-sW", "--dyn-syms", part)
    stack = next(line for line in call("readelf", "-lW", part).splitlines() if "GNU_STACK" in line)
    assert " RW " in stack


def test_copies_of_the_c_library_know_their_room(part: Path) -> None:
    assert "_chk@" in call("readelf", "-sW", "--dyn-syms", part)


def test_the_command_stands_at_no_fixed_address() -> None:
    if shutil.which("readelf") is None:
        pytest.skip("no readelf")
    header = call("readelf", "-hW", PARTS["command"])
    assert "DYN (Position-Independent Executable file)" in header


def test_the_module_wants_little_memory_that_every_thread_has() -> None:
    # The C library keeps about 1.6 KiB for modules that are loaded later; a larger one cannot be imported at all.
    if shutil.which("readelf") is None:
        pytest.skip("no readelf")
    segments = [line.split() for line in call("readelf", "-lW", PARTS["module"]).splitlines()]
    sizes = [int(words[5], 16) for words in segments if words and words[0] == "TLS"]
    assert sizes
    assert max(sizes) <= 256
