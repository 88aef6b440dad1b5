"""Models that are evaluated and draw masks, which are asked whether these act on them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from luff.torch.evidence import _evidence
from test_evidence import told
from torch import nn


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A loaded machine may keep a child waiting for long."""
    monkeypatch.setattr(_evidence, "_WAIT_S", 60.0)


class Net(nn.Module):
    """Applies `drop` behind its first layer."""

    def __init__(self, drop, always=True):
        super().__init__()
        self.first, self.last = nn.Linear(8, 32), nn.Linear(32, 3)
        self.drop, self.always = drop, always

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        if self.always or self.training:
            hidden = self.drop(hidden)
        return self.last(hidden)


def by_hand(x, p=0.5):
    mask = (torch.rand(x.shape) > p).float()
    return mask * x / (1 - p)  # here


def like(x):
    return x.mul(torch.rand_like(x).gt(0.25)) / 0.75  # here


def of_bernoulli(x):
    return x * torch.empty_like(x).bernoulli_(0.75).div_(0.75)  # here


def of_numpy(x):
    return x * torch.from_numpy(np.random.binomial(1, 0.75, x.shape)).float()  # here


def filled(x):
    return x.masked_fill(torch.rand(x.shape) < 0.25, 0) / 0.75  # here


def chosen(x):
    return torch.where(torch.rand(x.shape) < 0.25, torch.zeros(()), x)  # here


def whole_samples(x):
    return x * (0.75 + torch.rand(len(x), 1)).floor()  # here


def of_torch(x):
    return torch.dropout(x, 0.25, True)  # here


class Graph(Net):
    """As graph networks are written: its only dropout is a function's."""

    def forward(self, x):
        return self.last(F.dropout(torch.relu(self.first(x)), training=self.training))  # here


def noise(x):
    return x + torch.randn_like(x)


def noise_and_mask(x):
    return by_hand(noise(x))


def gates_of_the_input(x):
    return x * torch.bernoulli(torch.sigmoid(x))


def constant(x):
    return x * (torch.arange(x.numel()).reshape(x.shape) % 2)


def nothing(x):
    return x


def train(model, rounds=3, evaluates=True, batches=2, rows=16, loss_inside=False):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(rounds):
        model.train()
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(rows, 8)), torch.randint(0, 3, (rows,))).backward()
            optimizer.step()
        if evaluates:
            model.eval()
        with torch.no_grad():
            for x in torch.randn(batches, rows, 8):
                model(x)


def answers(watched, model, **given):
    hook, session = watched()
    torch.manual_seed(0)
    train(model, **given)
    hook.close()
    assert not hook.guard.count, hook.guard.first
    return told(session, "random_mask")


@pytest.mark.parametrize(
    "drop", [by_hand, like, of_bernoulli, of_numpy, filled, chosen, whole_samples, of_torch]
)
def test_masks_are_told_with_their_line(watched, drop):
    (answer,) = answers(watched, Net(drop))
    assert answer["after_eval"] is True
    assert abs(answer["p"] - (0.5 if drop is by_hand else 0.25)) < 0.3
    assert answer["masks"] == 1
    with open(answer["file"], encoding="utf-8") as file:
        assert "# here" in file.read().splitlines()[answer["line"] - 1]


@pytest.mark.parametrize("drop", [noise, noise_and_mask, gates_of_the_input, constant, nothing])
def test_what_is_no_dropout_is_not_told(watched, drop):
    assert answers(watched, Net(drop)) == []


def test_a_mask_of_training_only_is_told_if_the_model_is_not_switched(watched):
    assert answers(watched, Net(by_hand, always=False)) == []
    (answer,) = answers(watched, Net(by_hand, always=False), evaluates=False)
    assert answer["after_eval"] is False


def test_functional_dropout_of_a_model_in_training_mode_is_told(watched):
    assert answers(watched, Graph(None)) == []
    (answer,) = answers(watched, Graph(None), evaluates=False, batches=1, rounds=6)
    assert answer["after_eval"] is False
    with open(answer["file"], encoding="utf-8") as file:
        assert "# here" in file.read().splitlines()[answer["line"] - 1]


def test_evaluations_of_one_batch_are_asked_about_too(watched):
    assert len(answers(watched, Net(by_hand), batches=1, rounds=6)) == 1


def test_a_model_with_dropout_in_training_mode_is_left_to_its_own_event(watched):
    model = Net(nn.Dropout(0.5))
    assert answers(watched, model, evaluates=False) == []


class Masked(nn.Module):
    """Learns what is behind its masks: a loss comes out."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        mask = (torch.rand(x.shape) > 0.5).float()
        return ((self.layer(x * mask) * (1 - mask) - x) ** 2).mean()


def test_masks_that_are_learnt_from_are_not_told(watched):
    hook, session = watched()
    model = Masked()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(12):
        model.train()
        optimizer.zero_grad()
        model(torch.randn(16, 8)).backward()
        optimizer.step()
        model.eval()
        if step % 3 == 2:
            with torch.no_grad():
                for _ in range(3):
                    model(torch.randn(16, 8))
    hook.close()
    assert told(session, "random_mask") == []


class Reconstructs(nn.Module):
    """Learns what is behind its masks, and gives them out: the loss is the script's."""

    def __init__(self, gives_out):
        super().__init__()
        self.first, self.last = nn.Linear(8, 32), nn.Linear(32, 8)
        self.token = nn.Parameter(torch.zeros(32))
        self.gives_out = gives_out

    def forward(self, x):
        mask = (torch.rand(len(x), 1) < 0.5).float()
        hidden = self.first(x) * (1 - mask) + self.token * mask
        answer = self.last(torch.relu(hidden))
        return {"answer": answer, "mask": mask} if self.gives_out else {"answer": answer}


@pytest.mark.parametrize("gives_out", [True, False])
def test_masks_that_a_model_gives_out_are_not_told(watched, gives_out):
    hook, session = watched()
    torch.manual_seed(0)
    model = Reconstructs(gives_out)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        for _ in range(3):
            x = torch.randn(32, 8)
            optimizer.zero_grad()
            F.mse_loss(model(x)["answer"], x).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for x in torch.randn(2, 32, 8):
                model(x)
        model.train()
    hook.close()
    assert bool(told(session, "random_mask")) is not gives_out


def test_the_training_is_the_same(watched):
    def weights():
        torch.manual_seed(3)
        model = Net(by_hand)
        train(model)
        return [*model.parameters()], torch.get_rng_state()

    bare, state = weights()
    hook, _ = watched()
    seen, after = weights()
    hook.close()
    assert all(torch.equal(one, other) for one, other in zip(bare, seen, strict=True))
    assert torch.equal(state, after)
