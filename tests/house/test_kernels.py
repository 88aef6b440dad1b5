"""The image of the kernels for GPUs: what `./dev check` says when it and its sources have parted."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from devlib import kernels  # noqa: E402


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the kernels, for which no compilers are installed."""
    folder = tmp_path / "kernels"
    shutil.copytree(kernels.KERNELS, folder)
    pins = tmp_path / "kernels.txt"
    shutil.copy(kernels.PINS, pins)
    monkeypatch.setattr(kernels, "KERNELS", folder)
    monkeypatch.setattr(kernels, "IMAGE", folder / "kernels.image")
    monkeypatch.setattr(kernels, "RECORD", folder / "kernels.json")
    monkeypatch.setattr(kernels, "PINS", pins)
    monkeypatch.setattr(kernels, "FOLDER", tmp_path / "none")
    return folder


def test_what_is_committed_is_of_one_build(copied: Path) -> None:
    verdict, text = kernels.check()
    assert verdict, text
    assert "not compared" in text
    record = json.loads(kernels.RECORD.read_text())
    assert set(record["kernels"]) == {
        "luff_statistics", "luff_forms", "luff_reduce", "luff_units", "luff_reduce_units", "luff_read",
    }  # fmt: skip
    for machines in record["kernels"].values():
        assert list(machines) == [f"sm_{machine}" for machine in kernels.MACHINES]


@pytest.mark.parametrize("name", ["statistics.cu", "arguments.h", "adding.h", "totals.h"])
def test_a_changed_source_makes_the_image_stale(copied: Path, name: str) -> None:
    (copied / name).write_text((copied / name).read_text() + "\n")
    verdict, text = kernels.check()
    assert verdict is False
    assert "./dev kernels" in text


def test_other_compilers_make_the_image_stale(copied: Path) -> None:
    kernels.PINS.write_text(kernels.PINS.read_text().replace("12.9.86", "12.9.87"))
    assert kernels.check()[0] is False


def test_another_image_is_noticed(copied: Path) -> None:
    image = kernels.IMAGE.read_bytes()
    kernels.IMAGE.write_bytes(image[:-1] + bytes([image[-1] ^ 1]))
    verdict, text = kernels.check()
    assert verdict is False
    assert "not of one build" in text


def test_limits_name_the_kernel_and_the_machine() -> None:
    numbers = {"registers": 200, "spill_bytes": 0, "shared_bytes": 0}
    lines = kernels._limits(b"", {"kernels": {"luff_forms": {"sm_90": numbers}}})
    assert len(lines) == 1
    assert "luff_forms for sm_90" in lines[0]
    assert kernels._limits(b"x" * (kernels.MOST_BYTES + 1), {"kernels": {}})


def test_reports_of_ptxas_are_read() -> None:
    report = """\
ptxas info    : Compiling entry function 'luff_read' for 'sm_80'
ptxas info    : Function properties for luff_read
    0 bytes stack frame, 12 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 27 registers, used 0 barriers, 384 bytes smem, 376 bytes cmem[0]
"""
    assert kernels._numbers(report) == {
        "luff_read": {"registers": 27, "spill_bytes": 12, "shared_bytes": 384},
    }


def on_gpu() -> Any:
    """tests/gpu/kernels.py as a module."""
    spec = importlib.util.spec_from_file_location("gpu_kernels", ROOT / "tests/gpu/kernels.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_check_on_a_gpu_has_the_layout_of_the_kernels() -> None:
    module = on_gpu()
    header = (ROOT / "src/device/kernels/arguments.h").read_text()
    assert f"sizeof(Row) == {module.ROW.itemsize}" in header
    assert f"sizeof(Statistics) == {module.STATISTICS.itemsize}" in header
    assert f"kChunkVectors = {module.CHUNK // 16};" in header


def test_the_check_on_a_gpu_sees_what_is_wrong() -> None:
    module = on_gpu()
    found = np.zeros(1, module.STATISTICS)
    found[0] = (4, 3.0, 5.0, 3.0, 0, np.float64(2).view("u8"), 1, 1, 0)
    data = np.array([0, 1, 2, np.nan], "f4")
    assert module.wrong_in(found[0], data) == ""
    for name in ("count", "sum", "sum_sq", "abs_sum", "max", "zeros", "nans", "infs"):
        other = found.copy()
        other[name] += 1
        assert name in module.wrong_in(other[0], data), name


def test_without_a_driver_the_check_says_so() -> None:
    command = [sys.executable, ROOT / "tests/gpu/kernels.py", "--library", "no-such-driver.so"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert json.loads(done.stdout)["status"] == "skipped"
