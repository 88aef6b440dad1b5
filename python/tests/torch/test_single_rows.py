"""Losses that depend on one row of a batch, and losses that a limit holds still, read in the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake_session import DEFAULT_ROLES
from luff.torch.evidence._cut_losses import is_cut_off
from luff.torch.evidence._single_rows import row_that_counts
from torch import Tensor, nn
from torch.nn import functional as F

ROWS = 8
X = torch.linspace(-2, 2, ROWS * 6).reshape(ROWS, 6).sin()
Y = torch.arange(ROWS) % 3
NET = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.2), nn.Linear(5, 3))
IMAGES = torch.linspace(0, 9, ROWS * 64).reshape(ROWS, 1, 8, 8).cos()
PIXELS = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))
WORDS = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 3))


def row(loss: Tensor) -> int | None:
    return row_that_counts((loss.grad_fn, loss.output_nr))


def cut(loss: Tensor) -> bool:
    return is_cut_off((loss.grad_fn, loss.output_nr))


def kept_of_a_loop(out: Tensor) -> Tensor:
    loss = out.sum()
    for one, target in zip(out, Y, strict=True):
        loss = F.cross_entropy(one, target)
    return loss


def kept_of_numbers(out: Tensor) -> Tensor:
    loss = out.sum()
    for number in range(len(out)):
        loss = F.cross_entropy(out[number : number + 1], Y[number : number + 1])
    return loss


@pytest.mark.parametrize(
    ("loss", "place"),
    [
        (lambda out: F.cross_entropy(out[-1:], Y[-1:]), -1),
        (lambda out: F.cross_entropy(out[-1], Y[-1]), -1),
        (lambda out: F.cross_entropy(out, Y, reduction="none")[-1], -1),
        (lambda out: -out.log_softmax(1).gather(1, Y[:, None])[-1].sum(), -1),
        (lambda out: (out - 1).square().mean(1)[-1], -1),
        (lambda out: out.split(1)[-1].sum() + (out[-1] - 1).abs().sum(), -1),
        (lambda out: [F.cross_entropy(o, y) for o, y in zip(out, Y, strict=True)][-1], -1),
        (kept_of_a_loop, -1),
        (kept_of_numbers, -1),
        (lambda out: F.cross_entropy(out[:1], Y[:1]), 0),
        (lambda out: F.mse_loss(out, out.detach() + 1, reduction="none").mean(1)[0], 0),
        (lambda out: F.cross_entropy(out[3], Y[3]), 3),
    ],
)
@pytest.mark.parametrize("model", ["net", "pixels", "words"])
def test_a_row_that_is_left_alone_is_found(loss: Callable[[Tensor], Tensor], place: int, model: str) -> None:
    out = {
        "net": lambda: NET(X),
        "pixels": lambda: PIXELS(IMAGES),
        "words": lambda: WORDS(Y[:, None].repeat(1, 3)),
    }
    assert row(loss(out[model]())) == place


NUMBER = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))
TARGETS = X.sum(1)


@pytest.mark.parametrize(
    "loss",
    [
        lambda: F.mse_loss(NUMBER(X)[-1, 0], TARGETS[-1]),
        lambda: F.mse_loss(NUMBER(X)[-1], TARGETS[-1:]),
        lambda: (NUMBER(X).squeeze(1) - TARGETS).square()[-1],
        lambda: (NUMBER(X).squeeze(1) - TARGETS).abs()[-1],
        lambda: F.binary_cross_entropy_with_logits(NUMBER(X)[-1, 0], (TARGETS > 0).float()[-1]),
        lambda: F.mse_loss(NUMBER(X)[:, 0], TARGETS, reduction="none")[-1],
    ],
)
def test_a_number_beside_its_target_of_several_is_found(loss: Callable[[], Tensor]) -> None:
    assert row(loss()) == -1


def later(values: Tensor) -> Tensor:
    return 0.5 + 0.9 * values[-1].detach().max()


@pytest.mark.parametrize(
    "loss",
    [
        lambda: (later(v := NUMBER(X).squeeze(-1)) - v[0]).square(),
        lambda: F.mse_loss((v := NUMBER(X))[0, 0], later(v)),
        lambda: F.smooth_l1_loss((q := NET(X))[0, 1], later(q)),
        lambda: F.mse_loss((q := NET(X))[0].gather(0, Y[2:3]), later(q)[None]),
        lambda: -NET(X).log_softmax(1)[0, 1] * 0.7 + (NUMBER(X)[0, 0] - 0.7).square(),  # actor and critic
    ],
)
def test_the_value_of_the_first_state_of_several_is_none(loss: Callable[[], Tensor]) -> None:
    assert row(loss()) is None


def states(kind: Any, sequences: int = 2) -> Tensor:
    """What a recurrent layer gives for sequences with the time first."""
    given = X if not sequences else X[:, None].repeat(1, sequences, 1)
    return kind(6, 5)(given)[0]


def of_a_graph() -> Tensor:
    layers, near = [nn.Linear(6, 5), nn.Linear(5, 3)], torch.rand(ROWS, ROWS)
    return near @ layers[1](torch.relu(near @ layers[0](X)))


def of_an_equation(boundary: Callable[[Tensor], Tensor]) -> Tensor:
    """Rows are places: an equation holds at all of them, and the first one has a value."""
    time = torch.linspace(0, 1, ROWS)[:, None].requires_grad_()
    u = nn.Sequential(nn.Linear(1, 5), nn.Tanh(), nn.Linear(5, 1))(time)
    (rate,) = torch.autograd.grad(u.sum(), time, create_graph=True)
    return rate.square().mean() + boundary(u)


@pytest.mark.parametrize(
    "loss",
    [
        lambda: F.cross_entropy(NET(X), Y),
        lambda: F.cross_entropy(NET(X)[:2], Y[:2]),  # few have labels
        lambda: F.cross_entropy((out := NET(X))[-1:], Y[-1:]) + 1e-3 * out.square().mean(),
        lambda: F.cross_entropy((out := NET(X))[0], Y[0]) + F.cross_entropy(out[-1], Y[-1]),
        lambda: (states(nn.LSTM))[-1].sum(),
        lambda: (states(nn.GRU))[-1].sum(),
        lambda: nn.Linear(5, 1)(states(nn.RNN, 0))[-1].sum(),
        lambda: nn.TransformerEncoderLayer(6, 2, 8)(X[:, None])[-1].sum(),
        lambda: nn.TransformerEncoderLayer(6, 2, 8)(X)[-1].sum(),  # one sequence
        lambda: nn.Linear(6, 3)(X).cumsum(0)[-1].sum(),
        lambda: (torch.softmax((h := nn.Linear(6, 3)(X)) @ h.T, 1) @ h)[-1].sum(),
        lambda: nn.Conv1d(6, 3, 3)(X.T)[-1].sum(),  # the last feature of one series
        lambda: of_a_graph()[-1].sum(),
        lambda: of_an_equation(lambda u: (u[0] - 1).square().sum()),
        lambda: of_an_equation(lambda u: (u[-1] - 1).square().sum()),
        lambda: torch.stack([NET(X).mean() for _ in range(5)])[-1],  # the last of several steps
        lambda: torch.einsum("bi,mio->mbo", X, nn.Parameter(torch.ones(5, 6, 3)))[-1].sum(),  # of an ensemble
        lambda: nn.Parameter(torch.ones(8, 3))[-1].sum(),
        lambda: NET(X)[:3][-1].sum() + NET(X)[:, -1].sum(),
        lambda: (NET(X) @ NET(X).T)[-1].sum(),  # a contrast
    ],
)
def test_other_rows_count_or_are_no_samples(loss: Callable[[], Tensor]) -> None:
    assert row(loss()) is None


CE = F.cross_entropy


@pytest.mark.parametrize(
    "loss",
    [
        lambda out: CE(out, Y).clamp(max=0.2),
        lambda out: CE(out, Y).clamp(0, 0.2),
        lambda out: torch.minimum(CE(out, Y), torch.tensor(0.2)),
        lambda out: torch.min(torch.tensor(0.2), CE(out, Y)),
        lambda out: CE(out, Y, reduction="none").clamp_max(0.01).mean(),
        lambda out: 2 * CE(out, Y).clamp(max=0.2) / 4 + 1,
        lambda out: -(-CE(out, Y)).clamp(min=-0.2),
        lambda out: F.hardtanh(CE(out, Y), 0, 0.2),
        lambda out: -out.log_softmax(1)[range(ROWS), Y].clamp(min=-0.01).mean(),
    ],
)
def test_a_loss_above_its_limit_is_found(loss: Callable[[Tensor], Tensor]) -> None:
    assert cut(loss(NET(X)))


@pytest.mark.parametrize(
    "loss",
    [
        lambda out: CE(out, Y),
        lambda out: CE(out, Y).clamp(max=50),  # a limit that is not reached
        lambda out: -CE(out, Y).clamp(max=0.2),  # what is to be forgotten, up to a level
        lambda out: (-CE(out, Y)).clamp(min=-0.2),
        lambda out: CE(out, Y).clamp(min=5),  # free bits
        lambda out: F.relu(CE(out, Y) - 5),
        lambda out: CE(out, Y).clamp(max=0.2) + out.square().mean(),  # a term of several
        lambda out: torch.minimum(out.mean(), out.square().mean() - 9),
        lambda out: -torch.min(out * X[:, :3], out.clamp(0.9, 1.1) * X[:, :3]).mean(),  # PPO
        lambda out: F.smooth_l1_loss(out, X[:, :3]),
        lambda out: ((out.exp() - 1).square().clamp(max=1.0)).mean(),  # a few beyond
        lambda out: (CE(out, Y) - 0.01).abs() + 0.01,  # a level that is not passed
    ],
)
def test_a_loss_that_has_a_gradient_or_is_a_margin_is_none(loss: Callable[[Tensor], Tensor]) -> None:
    assert not cut(loss(NET(X)))


def told(session: Any) -> list[str]:
    return [event["fault"] for event in session.json_events if event["kind"] == "formula_part"]


def train(losses: Callable[[Tensor, Tensor], list[Tensor]], steps: int = 6) -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(steps):
        order = torch.randperm(ROWS)
        optimizer.zero_grad()
        for loss in losses(model(X[order]), Y[order]):
            loss.backward(retain_graph=True)
        optimizer.step()


@pytest.mark.parametrize(
    ("losses", "fault"),
    [
        (lambda out, y: [CE(out[-1:], y[-1:])], ["one_row_counts"]),
        (lambda out, y: [CE(out[0], y[0])], ["one_row_counts"]),
        (lambda out, y: [CE(out, y).clamp(max=0.1)], ["loss_cut_off"]),
        (lambda out, y: [CE(out, y)], []),
        (lambda out, y: [CE(out[i], y[i]) for i in range(ROWS)], []),  # one after the other
        (lambda out, y: [CE(out[-1], y[-1]), CE(out, y)], []),
        (lambda out, y: [CE(out[2], y[2])], []),
    ],
)
def test_the_hook_tells_of_it(watched: Any, losses: Any, fault: list[str]) -> None:
    _, session = watched(DEFAULT_ROLES)
    train(losses)
    assert told(session) == fault
