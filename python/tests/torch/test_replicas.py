"""Values that DistributedDataParallel keeps equal are stored once, regardless of what
was wrapped or attached first.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import luff
import numpy as np
import pytest

SCRIPT = """
import sys
import torch, torch.distributed as dist
from torch import nn

class Whole(nn.Module):  # one part of it is the same in all ranks, the other is not
    def __init__(self, body, head):
        super().__init__()
        self.body, self.head = body, head
    def forward(self, x):
        return self.head(self.body(x))

dist.init_process_group("gloo")
torch.manual_seed(0)
inner = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))
wrapper = nn.parallel.DistributedDataParallel(inner)
torch.manual_seed(dist.get_rank())
whole = Whole(wrapper, nn.Linear(4, 4))
model = whole if sys.argv[2] == "whole" else wrapper
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
import luff.torch
hook = luff.torch.attach(
    {"wrapper": wrapper, "inner": inner, "whole": whole}[sys.argv[2]], optimizer=optimizer, run=sys.argv[1],
    collections=["weights", "biases", "gradients", "buffers"], save_interval=1,
)
for step in range(4):
    loss = nn.functional.cross_entropy(model(torch.randn(8, 6)), torch.randint(0, 4, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
STEPS = [0, 1, 2, 3]


def train(run, attached):
    script = run.parent / "script.py"
    script.write_text(SCRIPT)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={port}",
         script, run, attached],
        check=True, capture_output=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    trial = luff.open_trial(run)
    assert trial.gaps() == []
    return trial


def stored(trial, name):
    return [trial.tensor(name).value_steps("TRAIN", worker) for worker in range(2)]


def values(trial, name):
    return [trial.tensor(name).value(3, "TRAIN", worker) for worker in range(2)]


@pytest.mark.parametrize("attached", ["wrapper", "inner"])
def test_attached_after_wrapping(tmp_path, attached):
    trial = train(tmp_path / "run", attached)
    for name in ("Sequential_0.weight", "gradient/Sequential_0.weight", "gradient/Sequential_2.bias"):
        assert stored(trial, name) == [STEPS, []]
        assert np.array_equal(*values(trial, name))
    # they differ until the next forward pass
    assert stored(trial, "Sequential_1.running_mean") == [STEPS, STEPS]


def test_next_to_what_is_not_replicated_nothing_is_left_out(tmp_path):
    trial = train(tmp_path / "run", "whole")
    names = trial.tensors(regex="Whole_.*(weight|bias)$")
    assert len(names) == 16
    for name in names:
        assert stored(trial, name) == [STEPS, STEPS], name
        assert np.array_equal(*values(trial, name)) == ("head" not in name)
