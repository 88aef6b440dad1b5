"""Keeps runs of a few mutants, packed, for the tests: testdata/mutants."""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from pathlib import Path

from mutants.halves import ORIGINAL
from mutants.training import train

__all__ = ["KEPT", "keep"]

#: Programs whose runs are small, and edits of them. All are of the half to develop on.
KEPT = {
    "wine_lbfgs": ("inputs_not_scaled", "loss_scaled_to_nothing"),
    "diabetes_trainer": ("gradients_never_cleared", "training_in_evaluation_mode"),
    "reinforce_gridworld": ("column_against_row",),
    "recommender_mf": ("sorted_instead_of_shuffled",),
}


def _member(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leaves findings out, and what the archive would tell of the machine."""
    if "rules" in Path(info.name).parts:
        return None
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info


def pack(folder: Path, archive: Path) -> None:
    """Packs the run of a script that was trained in `folder`."""
    run = folder / "run"
    described = json.loads((run / "run.json").read_text())
    described["command"] = ["python", "train.py"]
    (run / "run.json").write_text(json.dumps(described, indent=2) + "\n")
    with tarfile.open(archive, "w:xz", preset=9) as file:
        file.add(run, "run", filter=_member)


def keep(luff: str, out: Path) -> None:
    """Trains the kept mutants and their original programs, and packs each run into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="luff-mutants-") as scratch:
        environment = Path(scratch) / "venv"  # a run holds its interpreter's path, which tells of the machine
        environment.symlink_to(sys.prefix)
        python = str(environment / "bin" / "python")
        for program, operators in KEPT.items():
            for operator in (ORIGINAL, *operators):
                if train(luff, Path(scratch), program, operator, 0, python) is None:
                    sys.exit(f"{program} {operator} fails")
                archive = out / f"{program}-{operator}.tar.xz"
                pack(Path(scratch) / f"{program}-{operator}-0", archive)
                print(f"{archive.name:50} {archive.stat().st_size / 1024:.0f} KiB", flush=True)
