"""The last words of `luff run` on a training that waits. Healthy ones end as before."""

from __future__ import annotations

import re
import sys

from .conftest import Luff

_SCRIPT = """
import sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
class Sleeping(TensorDataset):
    def __getitem__(self, i):
        if float(sys.argv[1]):
            time.sleep(float(sys.argv[1]))
        return super().__getitem__(i)
class Paced(nn.Linear):
    def forward(self, x):
        time.sleep(0.015)
        return super().forward(x)
torch.manual_seed(0)
model = Paced(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in DataLoader(Sleeping(torch.randn(320, 4), torch.randn(320, 1)), batch_size=4):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
"""
_SOON = "InputBound:seconds=0.2:window=10:first=5"


def _ended(luff: Luff, seconds: str, rules: str) -> list[str]:
    script = luff.tmp / "train.py"
    script.write_text(_SCRIPT)
    code, _, err = luff(
        "run", "--run", str(luff.tmp / "run"), "--rules", rules, "--", sys.executable, str(script), seconds
    )
    assert code == 0, err
    return err.splitlines()


def test_the_dearest_cause_is_the_last_sentence_but_one(luff: Luff) -> None:
    lines = _ended(luff, "0.006", _SOON)
    said = " ".join(" ".join(lines[-4:]).split())
    assert re.search(
        r"luff: the step waits \d\d % of the time for data \(\d+ ms of \d+ ms\): DataLoader has 0 workers; "
        r"(luff: )?num_workers=\d+ would save about [\d.]+ m?s of [\d.]+ s "
        r"\(at step \d+; `luff profile` tells of the whole run\) luff: done",
        said,
    ), lines
    assert "1 finding" in lines[-1]


def test_a_healthy_run_ends_as_before(luff: Luff) -> None:
    lines = _ended(luff, "0", "InputBound")
    assert not any("waits" in line or "save" in line for line in lines), lines
    assert lines[-1].startswith("luff: ok: 80 steps")
