"""Where the time of a step goes under Lightning, the Trainer and Accelerate: phases add up to the step's time."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
USUAL = {"forward", "backward", "optimizer", "zero_grad", "other"}

LIGHTNING = """
from lit import Net, loader, trainer
trainer(max_epochs=2).fit(Net(), loader(96), loader(32, 1))
"""
TRANSFORMERS = """
from hf import Rows, trainer
trainer("out", train=Rows(48), evaluate=Rows(16, 1), eval_strategy="epoch").train()
"""
ACCELERATE = """
from acc import fit, prepared
from accelerate import Accelerator
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
fit(accelerator, *prepared(accelerator), clip=0.1)
"""
#: What is trained, the module it needs, its TRAIN steps, and the phases beyond the usual ones.
WAYS = {
    "lightning": (LIGHTNING, "lightning", {"data_wait", "loss", "scheduler"}),
    "transformers": (TRANSFORMERS, "transformers", {"data_wait", "clip", "scheduler"}),
    "accelerate": (ACCELERATE, "accelerate", {"data_wait", "loss", "clip", "scheduler"}),
}


@pytest.mark.parametrize("name", list(WAYS))
def test_phases_add_up(start_luff, phases_of, name):
    script, module, more = WAYS[name]
    pytest.importorskip(module)
    start_luff(f"import sys; sys.path[:0] = [{str(HERE)!r}]\n{script}")
    shown, lines = phases_of()
    assert set(lines) >= USUAL | more, sorted(lines)
    for phase in ("forward", "backward"):
        assert lines[phase]["steps"] == shown["steps"]
    assert shown["loaders"][0]["asked"] >= shown["steps"]


@pytest.mark.parametrize("name", list(WAYS))
def test_phases_of_two_ranks_add_up(start_luff, phases_of, tmp_path, name):
    pytest.importorskip(WAYS[name][1])
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    # Lightning starts its second process itself.
    launched = (
        []
        if name == "lightning"
        else ["-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={port}"]
    )
    words = [sys.executable, *launched, str(HERE / "ranks.py"), name]
    start_luff(f"""
        import os, subprocess, sys
        os.environ["RANKS_OUT"] = {str(tmp_path / "out")!r}
        sys.exit(subprocess.call({words!r}))
    """)
    for rank in range(2):
        shown, lines = phases_of(tmp_path / "run", "--rank", str(rank))
        assert shown["workers"] == [0, 1]
        assert set(lines) >= USUAL
