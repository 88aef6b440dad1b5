"""Linear layers that follow each other with nothing between them, as the graph shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake_session import DEFAULT_ROLES
from luff.torch.capture._graphs import nodes_behind, nodes_of
from luff.torch.capture._names import Names
from luff.torch.evidence._graph_values import users_of
from luff.torch.evidence._linear_layers import LinearLayers
from torch import Tensor, nn
from torch.nn import functional as F


def look(found: LinearLayers, model: Any, output: Tensor) -> None:
    names = Names()
    names.add_root(model)
    nodes = list(nodes_behind(nodes_of([output.square().mean()]), 1000))
    found.look(nodes, users_of(nodes), names)


def told(
    model: Any, *shape: int, forward: Callable[[Any, Tensor], Tensor] = lambda model, x: model(x)
) -> Any:
    found = LinearLayers()
    look(found, model, forward(model, torch.randn(*(shape or (5, 6)))))
    if not found.waiting:
        return None
    (event,) = found.waiting
    pairs = [tuple(name.split("_", 1)[1].removesuffix(".weight") for name in pair) for pair in event["pairs"]]
    return pairs, event["linear"]


@pytest.mark.parametrize(
    "between",
    [[], [nn.Dropout(0.5)], [nn.BatchNorm1d(8)], [nn.Flatten()], [nn.Identity(), nn.Dropout(0.2)]],
)
def test_two_layers_with_nothing_that_bends_between_them_are_told(between: list[nn.Module]) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), *between, nn.Linear(8, 3))
    assert told(model, 64, 6) == ([("2", str(3 + len(between)))], False)


def test_a_model_without_any_activation_is_told_as_linear() -> None:
    assert told(nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))) == ([("0", "1")], True)
    deep = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(18, 8), nn.Dropout(0.3), nn.Linear(8, 3)
    )
    assert told(deep, 64, 1, 8, 8) == ([("3", "5")], True)


def test_layers_of_sequences_are_told() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3, bias=False))
    assert told(model, 4, 7, 6) == ([("0", "1")], True)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.head = nn.Linear(6, 24), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.head(self.out(F.softmax(q @ k.transpose(1, 2), -1) @ v))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.inner, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        return self.head(x + torch.tanh(self.inner(x)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell, self.head = nn.Linear(6, 8), nn.GRUCell(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(self.embed(x)))


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)),
        nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)),
        nn.Sequential(nn.Linear(6, 8), nn.Softmax(1), nn.Linear(8, 3)),
        nn.Linear(6, 3),
        Residual(),
    ],
)
def test_layers_with_something_between_them_are_not_told(model: nn.Module) -> None:
    assert told(model) is None


def test_projections_of_attention_and_layers_that_others_use_are_not_told() -> None:
    assert told(Attention(), 5, 4, 6) is None
    found = told(Recurrent())
    assert found is None or ("embed", "head") not in found[0]
    gate = lambda m, x: m[1](m[0](x) * torch.rand(8))  # noqa: E731  (no mask of a dropout)
    assert told(nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)), forward=gate) is None
    mixer = lambda m, x: m[1](m[0](x).transpose(1, 2))  # noqa: E731  (along another axis)
    assert told(nn.Sequential(nn.Linear(6, 8), nn.Linear(4, 3)), 5, 4, 6, forward=mixer) is None


def test_a_pair_that_was_once_seen_otherwise_is_taken_back_for_good() -> None:
    model, found = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)), LinearLayers()
    x = torch.randn(5, 6)
    for bent in (False, True, False):
        hidden = model[0](x)
        look(found, model, model[1](hidden.relu() if bent else hidden))
    assert [len(event["pairs"]) for event in found.waiting] == [1, 0]


def test_the_hook_tells_once(watched) -> None:
    from luff._codes import Role

    _, session = watched(DEFAULT_ROLES | {Role.SAMPLE})
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(6):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(5, 6)), torch.tensor([0, 1, 2, 0, 1])).backward()
        optimizer.step()
    events = [event for event in session.json_events if event["kind"] == "linear_layers"]
    assert [event["pairs"] for event in events] == [[["Sequential_0.weight", "Sequential_1.weight"]]]
    assert events[0]["linear"]
