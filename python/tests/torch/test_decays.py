"""What an optimizer does to weights without a gradient: `shift` and `growth` of the event `rounding`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fake_session import DEFAULT_ROLES
from luff.torch.evidence._decays import moved_alike
from torch import nn


class Own(torch.optim.Optimizer):
    """Descent with a decay, as people write it."""

    def __init__(self, parameters, decay, lr=0.05, momentum=0.0, of_adam=False):
        super().__init__(parameters, {"lr": lr})
        self.decay, self.momentum, self.of_adam = decay, momentum, of_adam

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                move = p.grad
                if self.momentum:
                    kept = self.state[p].setdefault("kept", torch.zeros_like(p))
                    move = kept.mul_(self.momentum).add_(move)
                self.decay(p, group["lr"])
                p.sub_(move, alpha=group["lr"])


def without_the_weight(p, lr):
    p.add_(0.01, alpha=-lr)


def upside_down(p, lr):
    p.mul_(1 + lr * 0.01)


def usual(p, lr):
    p.mul_(1 - lr * 0.01)


def none(p, lr):
    pass


def of_signs(p, lr):
    p.sub_(lr * 0.01 * p.sign())


def noise(p, lr):
    p.add_(torch.randn_like(p), alpha=0.01 * lr)


def towards_a_norm(p, lr):
    p.mul_(3 / p.norm())


def centred(p, lr):
    p.sub_(p.mean())


def clipped(p, lr):
    p.clamp_(-0.1, 0.1)


def told(watched, make, steps=40, dead=8):
    _, session = watched(DEFAULT_ROLES)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 3))
    optimizer = make(model.parameters())
    for _ in range(steps):
        x = torch.randn(16, 24)
        x[:, :dead] = 0  # as at the edges of pictures
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), torch.randint(3, (16,))).backward()
        optimizer.step()
    found = [e["parameters"] for e in session.json_events if e["kind"] == "rounding"]
    of = [{key: p[key] for key in ("shift", "growth") if key in p} for ps in found for p in ps]
    return [one for one in of if one]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_decay_without_the_weight(watched, momentum):
    found = told(watched, lambda ps: Own(ps, without_the_weight, momentum=momentum))
    assert len(found) >= 4
    assert all(one["shift"] == pytest.approx(-0.05 * 0.01, rel=1e-2) for one in found)


def test_a_gradient_with_a_number_added(watched):
    class Added(torch.optim.Adam):
        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                p.grad.add_(0.01)
            return super().step(closure)

    found = told(watched, lambda ps: Added(ps, lr=0.01))
    assert len(found) >= 4
    assert all(one["shift"] == pytest.approx(-0.01, rel=1e-2) for one in found)


def test_a_decay_with_the_wrong_sign(watched):
    found = told(watched, lambda ps: Own(ps, upside_down))
    assert len(found) >= 4
    assert all(one["growth"] == pytest.approx(0.05 * 0.01, rel=1e-2) for one in found)


@pytest.mark.parametrize("decay", [usual, none, of_signs, noise, clipped])
def test_other_moves(watched, decay):
    assert told(watched, lambda ps: Own(ps, decay)) == []


@pytest.mark.parametrize("decay", [centred, towards_a_norm])
def test_moves_that_are_others_each_time(watched, decay):
    found = told(watched, lambda ps: Own(ps, decay))
    rates = [one.get("shift", one.get("growth")) for one in found]
    assert not any(abs(one - other) < 0.02 * abs(one) for one, other in zip(rates, rates[1:], strict=False))


@pytest.mark.parametrize(
    "make",
    [
        lambda ps: torch.optim.AdamW(ps, lr=0.01, weight_decay=0.1),
        lambda ps: torch.optim.Adam(ps, lr=0.01, weight_decay=0.1),
        lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
        lambda ps: torch.optim.RMSprop(ps, lr=0.01, weight_decay=0.1),
        lambda ps: torch.optim.SGD(ps, lr=0.1),
        lambda ps: torch.optim.Adagrad(ps, lr=0.1, weight_decay=0.1),
        lambda ps: torch.optim.SGD(ps, lr=0.1, maximize=True, weight_decay=0.01),
        lambda ps: torch.optim.NAdam(ps, lr=0.01, weight_decay=0.1, decoupled_weight_decay=True),
    ],
)
def test_optimizers_of_torch(watched, make):
    assert told(watched, make) == []


class Lion(torch.optim.Optimizer):
    """Steps by the sign of a momentum, which rows of a table keep while they have no gradient."""

    def __init__(self, parameters, lr=1e-3):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            kept = self.state[p].setdefault("kept", torch.zeros_like(p))
            p.sub_((0.9 * kept + 0.1 * p.grad).sign(), alpha=self.param_groups[0]["lr"])
            kept.mul_(0.99).add_(p.grad, alpha=0.01)


def test_rows_that_go_on_by_the_sign_of_a_momentum(watched):
    _, session = watched(DEFAULT_ROLES)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(64, 16), nn.Linear(16, 64))
    optimizer = Lion(model.parameters())
    for _ in range(200):
        ids = torch.randint(64, (32,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(ids), (7 * ids + 3) % 64).backward()
        optimizer.step()
    looks = [e["parameters"] for e in session.json_events if e["kind"] == "rounding"]
    assert looks and not any("shift" in one or "growth" in one for look in looks for one in look)


def test_few_weights_and_those_of_one_sign_say_nothing():
    weights = np.linspace(-1, 1, 64, dtype=np.float32)
    assert moved_alike(weights, weights - np.float32(1e-3)) == {"shift": pytest.approx(-1e-3, rel=1e-3)}
    assert moved_alike(weights[:8], weights[:8] - np.float32(1e-3)) == {}
    assert moved_alike(np.abs(weights), np.abs(weights) - np.float32(1e-3)) == {}
    assert moved_alike(weights, weights) == {}
    assert moved_alike(weights, weights * np.float32(1.01)) == {"growth": pytest.approx(0.01, rel=1e-3)}
    assert moved_alike(weights, weights * np.float32(0.99)) == {}
    assert moved_alike(weights, weights + np.float32(1e-8)) == {}  # as far as rounding goes
    assert moved_alike(np.zeros(64, np.float32), np.zeros(64, np.float32)) == {}
