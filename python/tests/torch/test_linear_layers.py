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


def chain(model: nn.Module, *shape: int, forward: Any = lambda model, x: model(x)) -> list[str]:
    found = LinearLayers()
    for _ in range(2):
        look(found, model, forward(model, torch.randn(*(shape or (5, 6)))))
    events = [event for event in found.waiting if event["kind"] == "softmax_layers"]
    return [name.split("_", 1)[1].removesuffix(".weight") for event in events for name in event["layers"]]


def test_a_softmax_in_the_place_of_each_activation_is_told() -> None:
    layers = [nn.Linear(6, 8), nn.Softmax(dim=1), nn.Linear(8, 9), nn.Softmax(dim=-1), nn.Linear(9, 3)]
    assert chain(nn.Sequential(*layers)) == ["0", "2", "4"]
    assert chain(nn.Sequential(*layers[:2], nn.Dropout(0.2), *layers[2:], nn.Sigmoid())) == ["0", "3", "5"]
    assert chain(nn.Sequential(nn.Linear(6, 6), nn.Softmax(-1), *layers), 4, 7, 6) == []  # over the places
    tokens = [nn.Linear(6, 8), nn.Softmax(dim=-1), nn.Linear(8, 9), nn.Softmax(dim=-1), nn.Linear(9, 3)]
    assert chain(nn.Sequential(*tokens), 4, 7, 6) == ["0", "2", "4"]


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Softmax(1), nn.Linear(8, 8), nn.Softmax(1))
        self.low, self.high = nn.Linear(8, 1), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        return torch.cat([self.low(x), self.high(x)], 1)


def test_a_softmax_before_several_heads_is_told() -> None:
    assert chain(Heads()) == ["body.0", "body.2", "low"]


class Markov(nn.Module):
    """A distribution that moves from step to step, as of a hidden Markov model."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.move, self.out = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = self.start(x).softmax(-1)
        for _ in range(3):
            state = self.move(state).softmax(-1)
        return self.out(state)


class Gated(nn.Module):
    """A gate of experts, and another of the mixture."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.second = nn.Linear(6, 8), nn.Linear(8, 8)
        self.experts, self.out = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(-1)
        mixed = weights * self.experts(x)
        return self.out(self.second(mixed).softmax(-1) * mixed)


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(
            nn.Linear(6, 8), nn.Softmax(1), nn.Linear(8, 3)
        ),  # shares of topics, or a single mistake
        nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.Softmax(1), nn.Linear(8, 3)),
        nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 3)),
        Markov(),
        Gated(),
    ],
)
def test_a_single_softmax_a_recurrence_and_gates_are_not_told(model: nn.Module) -> None:
    assert chain(model) == []


class Mixer(nn.Module):
    """Layers over places: their input lies otherwise in memory."""

    def __init__(self, between: nn.Module) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(7, 14), between, nn.Linear(14, 7))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.net(x.transpose(1, 2)).transpose(1, 2)


def test_layers_over_exchanged_axes_and_under_autocast_are_told() -> None:
    assert told(Mixer(nn.Identity()), 4, 7, 6) == ([("net.0", "net.2")], True)
    assert told(Mixer(nn.GELU()), 4, 7, 6) is None

    def cast(model: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x).float()

    assert told(Mixer(nn.Identity()), 4, 7, 6, forward=cast) == ([("net.0", "net.2")], True)
    assert told(Mixer(nn.GELU()), 4, 7, 6, forward=cast) is None
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    assert told(model, forward=cast) == ([("0", "1")], False)
