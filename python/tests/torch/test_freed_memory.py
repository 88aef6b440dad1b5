"""Tensors whose memory was given back, as FSDP gives back its flat parameters between uses, are gaps: `data_ptr()` of
a view of such memory is its offset, and to read there would end the process.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import luff
import torch
from luff.torch.capture._memory import address_of, array_of, copy_of_rows, read_scalar

SCRIPT = """
import sys
import torch, luff.torch
torch.manual_seed(0)

def freed(*shape):
    whole = torch.ones(256)
    part = whole[32 : 32 + torch.Size(shape).numel()].view(shape)
    whole.untyped_storage().resize_(0)
    return part

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used = torch.nn.Linear(8, 1)
        self.spare = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.used(x)

model = Model()
optimizer = torch.optim.SGD(model.used.parameters(), lr=0.1)
hook = luff.torch.attach(model, run=sys.argv[1])
for step in range(4):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(torch.randn(16, 8)), torch.zeros(16, 1))
    loss.backward()
    if step == 2:
        model.spare.weight.data = freed(2, 4)
        model.spare.weight.grad = freed(2, 4)
    optimizer.step()
hook.close()
"""


def freed(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    whole = torch.ones(64, dtype=dtype)
    part = whole[8 : 8 + torch.Size(shape).numel()].view(shape)
    whole.untyped_storage().resize_(0)
    assert part.data_ptr() == 8 * part.element_size()
    return part


def test_a_view_of_memory_that_was_given_back_has_no_address() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        part = freed(2, 4, dtype=dtype)
        assert address_of(part) == 0
        assert array_of(part) is None
        assert copy_of_rows(part, 1) is None
        assert read_scalar(freed(1, dtype=dtype)) is None
    kept = torch.ones(64)[8:]
    assert address_of(kept) == kept.data_ptr() != 0


def test_a_training_whose_weights_were_given_back_is_not_harmed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path / "run"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with luff.open_trial(tmp_path / "run") as trial:
        assert len(trial.tensor("Model_used.weight").summaries()["step"]) == 4
        assert list(trial.tensor("Model_spare.weight").summaries()["step"]) == [0, 1]
        (gap,) = trial.gaps()
        assert (gap["tensor"], gap["reason"], gap["first_step"]) == ("Model_spare.weight", "unsupported", 2)
