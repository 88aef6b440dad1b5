"""An unchanged script finds Luff's package under smdebug's name, also in processes that it starts."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import luff
import pytest
from luff.compat import smdebug

SCRIPT = """
import subprocess, sys
import torch
from torch import nn
import smdebug.pytorch as smd
from smdebug.trials import create_trial
from smdebug.core.modes import ModeKeys
import smdebug

import luff.compat.smdebug.pytorch
assert smd.Hook is luff.compat.smdebug.pytorch.Hook
assert ModeKeys is smdebug.modes
out = sys.argv[1]
if __name__ == "__main__":
    hook = smd.Hook(out_dir=out, save_config=smd.SaveConfig(save_interval=1))
    model, loss = nn.Linear(2, 1), nn.MSELoss()
    hook.register_module(model)
    hook.register_loss(loss)
    for _ in range(3):
        loss(model(torch.ones(4, 2)), torch.zeros(4, 1)).backward()
    hook.close()
    print(create_trial(out).steps())
    subprocess.run([sys.executable, "-c", "import smdebug; print(smdebug.__name__)"], check=True)
"""


def run(arguments: list[str], **env: str) -> str:
    place = str(Path(luff.__file__).parent.parent)
    given = {**os.environ, **env}
    given["PYTHONPATH"] = os.pathsep.join([p for p in (env.get("PYTHONPATH"), place) if p])
    done = subprocess.run(
        [sys.executable, *arguments], env=given, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_script_and_a_module_run_unchanged(tmp_path: Path):
    script = tmp_path / "train_it.py"
    script.write_text(SCRIPT)
    told = run(["-m", "luff.compat.smdebug", str(script), str(tmp_path / "one")])
    assert "[0, 1, 2]" in told
    assert "luff.compat.smdebug" in told.splitlines()[-1]
    told = run(
        ["-m", "luff.compat.smdebug", "-m", "train_it", str(tmp_path / "two")], PYTHONPATH=str(tmp_path)
    )
    assert "[0, 1, 2]" in told


def test_the_start_up_of_luff_run_gives_the_name(tmp_path: Path):
    script = tmp_path / "train_it.py"
    script.write_text(SCRIPT)
    folder = str(Path(luff.__file__).parent / "_bootstrap")
    told = run([str(script), str(tmp_path / "out")], PYTHONPATH=folder, LUFF_COMPAT="smdebug")
    assert "[0, 1, 2]" in told


def test_the_name_is_given_and_taken_back():
    smdebug.install()
    try:
        other = importlib.import_module("smdebug")
        collection = importlib.import_module("smdebug.core.collection")

        assert other is smdebug
        assert collection.Collection is smdebug.Collection
        assert collection.__spec__.name == "luff.compat.smdebug.core.collection"
        assert smdebug.Hook is sys.modules["luff.compat.smdebug.pytorch"].Hook
    finally:
        smdebug.uninstall()
    assert "smdebug" not in sys.modules
    assert "smdebug.core.collection" not in sys.modules


def test_what_is_not_there_is_an_import_error():
    smdebug.install()
    try:
        with pytest.raises(ModuleNotFoundError, match=r"smdebug\.nothing"):
            importlib.import_module("smdebug.nothing")
    finally:
        smdebug.uninstall()
