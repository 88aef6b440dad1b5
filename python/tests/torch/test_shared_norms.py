"""Batch normalisation that one pass uses at two places: the event `shared_norms`."""

from __future__ import annotations

import copy

import pytest
import torch
from fake_session import DEFAULT_ROLES
from luff._codes import Role
from torch import nn

ROLES = DEFAULT_ROLES | {Role.SAMPLE}
CHANNELS = 6


def block(norm):
    return [nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), norm, nn.ReLU()]


class Stack(nn.Module):
    """Two blocks and a head; `scale` sets the second place apart from the first."""

    def __init__(self, first, second, scale=3.0):
        super().__init__()
        self.encoder, self.decoder = nn.Sequential(*first), nn.Sequential(*second)
        self.head, self.scale = nn.Conv2d(CHANNELS, 2, 1), scale

    def forward(self, x):
        return self.head(self.decoder(self.encoder(x) * self.scale + self.scale - 1)).mean((2, 3))


def told(watched, model, steps=6, inputs=lambda: torch.randn(8, CHANNELS, 6, 6)):
    _, session = watched(ROLES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        outputs = model(inputs())
        nn.CrossEntropyLoss()(outputs, torch.randint(2, (len(outputs),))).backward()
        optimizer.step()
    events = [event["layers"] for event in session.json_events if event["kind"] == "shared_norms"]
    return [[layer["layer"] for layer in layers] for layers in events]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def test_modules_with_two_names(watched):
    layers = block(nn.BatchNorm2d(CHANNELS))
    found = told(watched, Stack(layers, layers))
    assert found and all(one == ["Stack_encoder.1"] for one in found)


def test_a_list_times_a_number(watched):
    class Scaled(nn.Module):
        def forward(self, x):
            return 4 * x + 3

    layers = [*block(nn.BatchNorm2d(CHANNELS)), Scaled()] * 3
    assert told(watched, nn.Sequential(*layers, nn.Flatten(), nn.Linear(CHANNELS * 36, 2)))[-1] == [
        "Sequential_1"
    ]


@pytest.mark.parametrize(
    "second",
    [
        lambda layers: copy.deepcopy(layers),
        lambda layers: block(nn.BatchNorm2d(CHANNELS)),
        lambda layers: [layers[0], nn.BatchNorm2d(CHANNELS), nn.ReLU()],  # the weights alone are shared
    ],
)
def test_places_with_their_own(watched, second):
    layers = block(nn.BatchNorm2d(CHANNELS))
    assert told(watched, Stack(layers, second(layers))) == []


def test_layers_without_running_statistics(watched):
    for norm in (nn.BatchNorm2d(CHANNELS, track_running_stats=False), nn.GroupNorm(2, CHANNELS)):
        layers = block(norm)
        assert told(watched, Stack(layers, layers)) == []


def test_frozen_statistics(watched):
    layers = block(nn.BatchNorm2d(CHANNELS).eval())
    assert told(watched, Stack(layers, layers)) == []


def test_places_that_are_alike(watched):
    class Again(nn.Module):
        """What comes back is what went in, normalised: as of a layer that is applied until nothing changes."""

        def __init__(self):
            super().__init__()
            self.norm, self.head = nn.BatchNorm2d(CHANNELS), nn.Conv2d(CHANNELS, 2, 1)

        def forward(self, x):
            return self.head(self.norm(self.norm(x))).mean((2, 3))

    assert told(watched, Again()) == []


@pytest.mark.parametrize(("rows", "size"), [(3, 1), (4, 1)])
def test_few_samples_differ_by_chance(watched, rows, size):
    """As of steps of a rollout: what comes back is spread as what went in, but of other samples."""

    class Rollout(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.head = nn.BatchNorm2d(CHANNELS), nn.Conv2d(CHANNELS, 2, 1)

        def forward(self, x):
            for _ in range(4):
                x = 0.1 * self.norm(x) + torch.randn_like(x)
            return self.head(self.norm(x)).mean((2, 3))

    def inputs():
        return torch.randn(rows, CHANNELS, size, size)

    assert told(watched, Rollout(), 10, inputs) == []


@pytest.mark.parametrize("cycle", [True, False])
def test_a_model_that_is_called_again_on_what_it_gave(watched, cycle):
    """There and back, as of image translation: each call is a pass of its own, of other data at first."""

    class There(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.out = (
                nn.Sequential(*block(nn.BatchNorm2d(CHANNELS))),
                nn.Conv2d(CHANNELS, CHANNELS, 1),
            )

        def forward(self, x):
            return self.out(self.body(x)) * 5 + 4

    class Cycle(nn.Module):
        def __init__(self):
            super().__init__()
            self.there = There()

        def forward(self, x):
            return self.there(self.there(x))

    _, session = watched(ROLES)
    model = There() if cycle else nn.Sequential(Cycle(), nn.Conv2d(CHANNELS, CHANNELS, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0001)
    for _ in range(4):
        optimizer.zero_grad()
        x = torch.randn(8, CHANNELS, 6, 6)
        nn.L1Loss()(model(model(x)) if cycle else model(x), x).backward()
        optimizer.step()
    events = [event for event in session.json_events if event["kind"] == "shared_norms"]
    assert bool(events) is not cycle


def test_two_inputs_beside_each_other(watched):
    class Siamese(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = (
                nn.Sequential(*block(nn.BatchNorm2d(CHANNELS))),
                nn.Conv2d(2 * CHANNELS, 2, 1),
            )

        def forward(self, x):
            return self.head(torch.cat([self.body(x), self.body(5 * x + 4)], 1)).mean((2, 3))

    assert told(watched, Siamese()) == []
