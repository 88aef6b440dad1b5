"""Reshapes in the place of transpositions: the event `exchanged_axes`."""

from __future__ import annotations

import math

import pytest
import torch
from fake_session import DEFAULT_ROLES
from luff._codes import Role
from torch import nn
from torch.nn import functional as F

ROLES = DEFAULT_ROLES | {Role.SAMPLE}
BATCH, LENGTH, WIDTH, HEADS = 3, 6, 8, 4
DEPTH = WIDTH // HEADS


def attend(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(DEPTH), -1) @ v


class Attention(nn.Module):
    def __init__(self, split, merge, product=attend, bias=True):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=bias) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.split, self.merge, self.product = split, merge, product

    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        return self.out(self.merge(self.product(q, k, v)))


class Net(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x):
        return self.body(x)


def told(watched, model, *shape, ids=False, steps=3):
    _, session = watched(ROLES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        x = torch.randint(5, shape) if ids else torch.randn(*shape)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    events = [event for event in session.json_events if event["kind"] == "exchanged_axes"]
    assert len(events) < 2
    return [(event["of"], tuple(event["before"]), tuple(event["behind"])) for event in events]


def right(x):
    return x.view(BATCH, LENGTH, HEADS, DEPTH).transpose(1, 2)


def back(x):
    return x.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH)


def flat(x):
    return x.reshape(BATCH, LENGTH, WIDTH)


@pytest.mark.parametrize("product", [attend, F.scaled_dot_product_attention])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "split",
    [
        lambda x: x.view(BATCH, HEADS, LENGTH, DEPTH),
        lambda x: x.reshape(BATCH, LENGTH, HEADS, DEPTH).reshape(BATCH, HEADS, LENGTH, DEPTH),
        lambda x: x.view(BATCH, LENGTH, HEADS, -1).view(BATCH, HEADS, LENGTH, -1) * 0.5,
    ],
)
@pytest.mark.parametrize("merge", [back, flat])
def test_heads_that_are_split_by_a_reshape(watched, product, bias, split, merge):
    (found,) = told(watched, Net(Attention(split, merge, product, bias)), BATCH, LENGTH, WIDTH)
    assert found[0] == "heads"
    assert found[2] == (BATCH, HEADS, LENGTH, DEPTH)


def test_heads_beside_the_batch(watched):
    body = Attention(lambda x: x.view(BATCH * HEADS, LENGTH, DEPTH), flat)
    assert told(watched, Net(body), BATCH, LENGTH, WIDTH) == [
        ("heads", (BATCH, LENGTH, WIDTH), (BATCH * HEADS, LENGTH, DEPTH))
    ]


@pytest.mark.parametrize("product", [attend, F.scaled_dot_product_attention])
def test_heads_that_are_merged_by_a_reshape(watched, product):
    assert told(watched, Net(Attention(right, flat, product)), BATCH, LENGTH, WIDTH) == [
        ("merged", (BATCH, HEADS, LENGTH, DEPTH), (BATCH, LENGTH, WIDTH))
    ]


def rows_first(x):  # (L, B, E), as torch's own attention has it
    return x.reshape(LENGTH, BATCH * HEADS, DEPTH).transpose(0, 1)


@pytest.mark.parametrize(
    "body",
    [
        Attention(right, back),
        Attention(right, back, F.scaled_dot_product_attention),
        Attention(lambda x: x.view(BATCH, LENGTH, HEADS, DEPTH).permute(0, 2, 1, 3), back),
        Attention(
            lambda x: right(x).reshape(BATCH * HEADS, LENGTH, DEPTH),
            lambda x: back(x.view(BATCH, HEADS, LENGTH, DEPTH)),
        ),
        Attention(lambda x: torch.stack(x.chunk(HEADS, -1), 1), back),
        Attention(
            lambda x: x.view(BATCH, LENGTH, HEADS, DEPTH), lambda x: x.reshape(BATCH, LENGTH, WIDTH)
        ),  # pieces of one place
        Attention(lambda x: x.view(BATCH, 2, LENGTH // 2, WIDTH), flat),  # windows
        Attention(lambda x: x.view(BATCH, LENGTH * HEADS, DEPTH), flat),  # pieces of all places
        nn.MultiheadAttention(WIDTH, HEADS, batch_first=True),
        nn.TransformerEncoderLayer(WIDTH, HEADS, 16, batch_first=True, dropout=0.0),
    ],
)
def test_attention_that_moves_its_axes(watched, body):
    class Taken(Net):
        def forward(self, x):
            return self.body(x, x, x)[0] if isinstance(self.body, nn.MultiheadAttention) else self.body(x)

    assert told(watched, Taken(body), BATCH, LENGTH, WIDTH) == []


def test_attention_with_the_length_first(watched):
    body = Attention(rows_first, lambda x: x.transpose(0, 1).reshape(LENGTH, BATCH, WIDTH))
    assert told(watched, Net(body), LENGTH, BATCH, WIDTH) == []


class Chain(nn.Module):
    def __init__(self, first, move, second):
        super().__init__()
        self.first, self.move, self.second = first, move, second

    def forward(self, x):
        result = self.second(self.move(self.first(x)))
        return result[0] if isinstance(result, tuple) else result


def places(x):  # of an image, or a signal
    return x.reshape(BATCH, -1, WIDTH)


def convolution(inputs=2):
    return nn.Sequential(
        nn.Conv2d(inputs, WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH), nn.ReLU(), nn.MaxPool2d(2)
    )


SIGNAL = (BATCH, 2, LENGTH)


@pytest.mark.parametrize(
    "second",
    [nn.Linear(WIDTH, 4), nn.LSTM(WIDTH, 4, batch_first=True), nn.LayerNorm(WIDTH), nn.GRU(WIDTH, 4)],
)
def test_channels_that_become_features(watched, second):
    found = told(watched, Chain(nn.Conv1d(2, WIDTH, 3, padding=1), places, second), *SIGNAL)
    assert found == [("features", (BATCH, WIDTH, LENGTH), (BATCH, LENGTH, WIDTH))]


def test_pixels_that_become_tokens(watched):
    found = told(watched, Chain(convolution(), places, nn.Linear(WIDTH, 4)), BATCH, 2, 4, 6)
    assert found == [("features", (BATCH, WIDTH, 2, 3), (BATCH, 6, WIDTH))]


def test_words_that_become_channels(watched):
    chain = Chain(nn.Embedding(5, WIDTH), lambda x: x.view(BATCH, WIDTH, LENGTH), nn.Conv1d(WIDTH, 4, 3))
    assert told(watched, chain, BATCH, LENGTH, ids=True)[0][0] == "features"


def test_tokens_that_become_pixels(watched):
    chain = Chain(nn.Linear(4, WIDTH), lambda x: x.view(BATCH, WIDTH, 2, 3), nn.Conv2d(WIDTH, 4, 1))
    assert told(watched, chain, BATCH, LENGTH, 4)[0][0] == "features"


@pytest.mark.parametrize(
    ("first", "move", "second"),
    [
        (nn.Conv1d(2, WIDTH, 3, padding=1), lambda x: x.transpose(1, 2), nn.Linear(WIDTH, 4)),
        (
            nn.Conv1d(2, WIDTH, 3, padding=1),
            lambda x: x.permute(0, 2, 1).contiguous(),
            nn.LSTM(WIDTH, 4, batch_first=True),
        ),
        (nn.Conv1d(2, WIDTH, 3, padding=1), lambda x: x.flatten(1), nn.Linear(WIDTH * LENGTH, 4)),
        (nn.Conv1d(2, WIDTH, 3, padding=1), lambda x: x.view(BATCH, 4, 12), nn.Linear(12, 4)),
        (nn.Conv1d(2, LENGTH, 3, padding=1), lambda x: x.view(BATCH, LENGTH, LENGTH), nn.Linear(LENGTH, 4)),
        (nn.Conv1d(2, WIDTH, 3, padding=1), lambda x: x, nn.Linear(LENGTH, 4)),  # along the places
    ],
)
def test_axes_of_a_signal_that_are_moved_or_left(watched, first, move, second):
    assert told(watched, Chain(first, move, second), *SIGNAL) == []


def test_axes_of_tokens_that_are_moved_or_merged(watched):
    conv = nn.Conv1d(WIDTH, 4, 3)
    assert (
        told(watched, Chain(nn.Linear(4, WIDTH), lambda x: x.transpose(1, 2), conv), BATCH, LENGTH, 4) == []
    )
    pairs = Chain(
        nn.Linear(4, 3), lambda x: x.view(BATCH, 3, LENGTH), nn.Linear(LENGTH, 4)
    )  # two places in one
    assert told(watched, pairs, BATCH, LENGTH, 4) == []
    tiles = Chain(nn.Linear(4, WIDTH * 6), lambda x: x.view(BATCH, WIDTH, 2, 3), nn.Conv2d(WIDTH, 4, 1))
    assert told(watched, tiles, BATCH, 4) == []


def test_a_single_number_that_scales_features(watched):
    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.linear, self.conv = (
                nn.Parameter(torch.tensor(0.5)),
                nn.Linear(4, WIDTH),
                nn.Conv1d(WIDTH, 4, 1),
            )

        def forward(self, x):
            return self.conv((self.gate.view(1, 1, 1) * self.linear(x)).view(BATCH, WIDTH, LENGTH))

    _, session = watched(ROLES)
    model = Gate()
    for _ in range(3):
        model(torch.randn(BATCH, LENGTH, 4)).square().mean().backward()
    assert not [event for event in session.json_events if event["kind"] == "hook_error"]


def test_once_is_not_enough(watched):
    body = Attention(lambda x: x.view(BATCH, HEADS, LENGTH, DEPTH), back)
    assert told(watched, Net(body), BATCH, LENGTH, WIDTH, steps=1) == []
