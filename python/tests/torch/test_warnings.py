"""A warning names the user's line, however many of Luff's wrappers lie between it and what warns."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from typing import Any

import luff.torch
import pytest
import torch
from torch import nn


class _Warning(nn.Module):
    """Warns with all levels that lead out of it and of torch's frames around it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any) -> Any:
        for level in range(2, 5):
            warnings.warn(f"{type(self.inner).__name__} {level}", stacklevel=level)
        return self.inner(*args)


class _Optimizer(torch.optim.SGD):
    def zero_grad(self, set_to_none: bool = True) -> None:
        warnings.warn("zero_grad", stacklevel=2)
        super().zero_grad(set_to_none)

    def step(self, closure: Any = None) -> Any:
        for level in range(2, 4):
            warnings.warn(f"step {level}", stacklevel=level)
        return super().step(closure)


def _train() -> list[tuple[str, str, int]]:
    """Returns (text, file, line) of all warnings of a small training."""
    torch.manual_seed(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model, loss_fn = _Warning(nn.Linear(4, 1)), _Warning(nn.MSELoss())
        optimizer = _Optimizer(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        scheduler.step()  # too early, of which torch warns
        for _ in range(2):
            x = torch.randn(8, 4)
            output = model(x)
            nn.functional.mse_loss(output, x[:, 0])  # broadcasts, of which torch warns
            loss = loss_fn(output, x[:, :1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step(3)  # a deprecated argument
        model.load_state_dict(model.state_dict())
    return [(str(one.message)[:40], one.filename, one.lineno) for one in caught]


def test_warnings_keep_their_file_and_line(tmp_path: Path) -> None:
    alone = _train()
    assert len(alone) > 20
    hook = luff.torch.attach(nn.Linear(1, 1), run=str(tmp_path / "run"))
    try:
        watched = _train()
    finally:
        hook.close()
    assert watched == alone
    assert not [place for place in watched if "luff" in Path(place[1]).parts[-3:-1]]


def test_tracebacks_show_what_they_showed(tmp_path: Path) -> None:
    hook = luff.torch.attach(nn.Linear(1, 1), run=str(tmp_path / "run"))
    try:
        with pytest.raises(RuntimeError) as caught:
            nn.Linear(4, 1)(torch.zeros(2, 3))
    finally:
        hook.close()
    assert Path(caught.traceback[0].path).name == Path(__file__).name
    assert inspect.getsource(nn.functional.mse_loss).startswith("def mse_loss")
