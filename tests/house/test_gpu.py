"""`./dev gpu` where there is no GPU: it says so, everything is skipped, and that is no failure."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = [
    "kernels",
    "values",
    "forms",
    "samples",
    "identical",
    "memory",
    "cost",
    "models",
    "peers",
    "faults",
    "stop",
]
PARTS += ["sanitizer"]


def gpu(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs it with a Python that has no torch."""
    without = tmp_path / "python"
    without.write_text("#!/bin/sh\nexit 1\n")
    without.chmod(0o755)
    return subprocess.run(
        [str(ROOT / "dev"), "gpu", "--python", str(without), *options],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_everything_is_skipped_with_a_reason(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = gpu(tmp_path, "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == f"0 passed, 0 failed, {len(PARTS)} skipped"
    assert "no Python here has torch" in done.stdout
    found = json.loads(out.read_text())
    assert [row["part"] for row in found["rows"]] == PARTS
    assert found["device"] is None


def test_parts_are_chosen_by_name(tmp_path: Path) -> None:
    assert "1 skipped" in gpu(tmp_path, "--only", "cost").stdout
    wrong = gpu(tmp_path, "--only", "prices")
    assert wrong.returncode == 1
    assert f"no part prices; there are: {', '.join(PARTS)}" in wrong.stderr
