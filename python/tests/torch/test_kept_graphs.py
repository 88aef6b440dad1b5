"""Graphs of earlier steps that are still in memory, as the document `kept_graphs` tells them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

STEPS = 140


def train(keep: Callable[[torch.Tensor], object], divided: float = 1.0) -> torch.Tensor:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        keep(loss)
        (loss / divided if divided != 1.0 else loss).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


class Summed:
    def __init__(self) -> None:
        self.total: torch.Tensor | float = 0.0

    def add(self, loss: torch.Tensor) -> None:
        self.total = self.total + loss


@pytest.mark.parametrize("divided", [1.0, 4.0])
def test_losses_that_are_kept_are_told(watched, divided):
    _, session = watched()
    kept: list[torch.Tensor] = []
    train(kept.append, divided)
    told = session.documents["kept_graphs"]
    assert told["step"] == 128
    assert told["alive"] == told["looked_at"] >= 16
    assert told["oldest"] <= 1
    assert told["newest"] == 64


def test_losses_that_are_added_up_are_told(watched):
    _, session = watched()
    train(Summed().add)
    assert session.documents["kept_graphs"]["alive"] >= 16


@pytest.mark.parametrize("kind", ["nothing", "numbers", "detached", "the last twenty"])
def test_numbers_and_the_last_losses_are_none(watched, kind):
    _, session = watched()
    kept: deque[object] = deque(maxlen=20 if kind == "the last twenty" else None)
    of_loss = {
        "nothing": lambda loss: None,
        "numbers": lambda loss: loss.item(),
        "detached": lambda loss: loss.detach(),
        "the last twenty": lambda loss: loss,
    }[kind]
    train(lambda loss: kept.append(of_loss(loss)))
    assert "kept_graphs" not in session.documents


@pytest.mark.parametrize("left", [0, 5, 12])
def test_graphs_that_are_gone_are_taken_back(watched, left):
    """A list of an epoch's losses that is cleared at its end, after the look at step 64."""
    _, session = watched()
    kept: list[torch.Tensor] = []

    def keep(loss: torch.Tensor) -> None:
        kept.append(loss)
        if len(kept) == 100:
            told = session.documents["kept_graphs"]
            assert told["step"] == 64
            assert told["alive"] == told["looked_at"] >= 16
            del kept[left:]

    train(keep)
    told = session.documents["kept_graphs"]
    assert told["alive"] == left
    assert told["step"] == (99 if left < 10 else 128)
    assert told["oldest"] == (-1 if left == 0 else 0)
    assert told["newest"] == left - 1


def test_results_are_the_same(watched):
    plain = train(lambda loss: None)
    watched()
    kept: list[torch.Tensor] = []
    assert torch.equal(train(kept.append), plain)


def test_marks_do_not_keep_graphs(watched):
    """The graph of a step goes with its loss."""
    watched()
    freed = []

    class Loud(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.witness = Witness()
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    class Witness:
        def __del__(self) -> None:
            freed.append(1)

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        loss = Loud.apply(model(torch.ones(2, 4)).sum())
        loss.backward()
        optimizer.step()
    assert len(freed) == 9
