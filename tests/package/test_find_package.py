"""`cmake --install`, then `find_package(luff)` from projects outside of the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .conftest import call


@pytest.fixture(scope="module")
def prefix(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    call(root / "dev", "build", "release")
    folder = tmp_path_factory.mktemp("prefix")
    call("cmake", "--install", root / "build" / "release", "--component", "cpp", "--prefix", folder)
    return folder


def build(source: Path, folder: Path, prefix: Path) -> Path:
    env = {**os.environ, "CMAKE_CXX_COMPILER_LAUNCHER": "ccache"}
    call(
        "cmake",
        "-G",
        "Ninja",
        "-S",
        source,
        "-B",
        folder,
        f"-DCMAKE_PREFIX_PATH={prefix}",
        "-DCMAKE_BUILD_TYPE=Release",
        env=env,
    )
    call("cmake", "--build", folder)
    return folder


def test_outside_project_finds_links_and_runs(root: Path, prefix: Path, tmp_path: Path) -> None:
    folder = build(root / "tests" / "package" / "outside", tmp_path / "build", prefix)
    run = tmp_path / "run"
    text = call(folder / "outside", run)
    assert text.startswith("luff 0."), text
    assert "not found" in text or "NotFound" in text


def test_installed_headers_are_all_and_only_the_public_ones(root: Path, prefix: Path) -> None:
    installed = {p.relative_to(prefix / "include").as_posix() for p in (prefix / "include").rglob("*.h")}
    public = {p.relative_to(root / "include").as_posix() for p in (root / "include").rglob("*.h")}
    assert installed == public


def test_another_minor_version_is_refused(prefix: Path, tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(x LANGUAGES CXX)\n"
        "find_package(luff 99.0 CONFIG QUIET)\nif(luff_FOUND)\n  message(FATAL_ERROR found)\nendif()\n"
    )
    call("cmake", "-G", "Ninja", "-S", tmp_path, "-B", tmp_path / "b", f"-DCMAKE_PREFIX_PATH={prefix}")


def test_example_trainer_builds_against_the_installed_library(
    root: Path, prefix: Path, tmp_path: Path
) -> None:
    source = root / "examples" / "cpp"
    if not (source / "CMakeLists.txt").exists():
        pytest.skip("examples/cpp is not in this tree")
    build(source, tmp_path / "build", prefix)
