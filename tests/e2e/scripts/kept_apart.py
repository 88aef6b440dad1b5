"""Trainings of small networks. The argument names a mistake, or what looks like it and is meant."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

name = sys.argv[1]
torch.manual_seed(0)
torch.set_num_threads(1)


def points(count):
    x = torch.randn(count, 12)
    return x, (x @ torch.linspace(-1, 1, 36).view(12, 3).sin()).argmax(1)


def network(outputs):
    return nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, outputs))


x, y = points(640)
model = network(3)
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
loss_of = nn.CrossEntropyLoss()


def batches(passes=8, size=16):
    for _ in range(passes):
        yield from torch.randperm(len(x)).split(size)


def cleared():
    """Gradients of eight batches that are meant to add up, and are cleared for each."""
    for number, rows in enumerate(batches()):
        optimizer.zero_grad()
        loss_of(model(x[rows]), y[rows]).backward()
        if number % 8 == 7:
            optimizer.step()


def attacked():
    """Each batch is made harder in seven small steps before it is learnt."""
    for rows in batches(3, 32):
        inputs = x[rows]
        for _ in range(7):
            inputs = inputs.detach().requires_grad_()
            optimizer.zero_grad()
            loss_of(model(inputs), y[rows]).backward()
            inputs = inputs + 0.01 * inputs.grad.sign()
        optimizer.zero_grad()
        loss_of(model(inputs.detach()), y[rows]).backward()
        optimizer.step()


def gathered():
    """Gradients of four parts are clipped one by one, and added up by the script."""
    for rows in batches(5, 32):
        sums = [torch.zeros_like(one) for one in model.parameters()]
        for part in rows.split(8):
            optimizer.zero_grad()
            loss_of(model(x[part]), y[part]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            for total, one in zip(sums, model.parameters(), strict=True):
                total += one.grad / 4
        for total, one in zip(sums, model.parameters(), strict=True):
            one.grad = total
        optimizer.step()


def added():
    """Gradients of eight batches add up."""
    for number, rows in enumerate(batches()):
        (loss_of(model(x[rows]), y[rows]) / 8).backward()
        if number % 8 == 7:
            optimizer.step()
            optimizer.zero_grad()


def own_answers(labels=lambda out, rows: out.argmax(1)):
    for rows in batches(2):
        optimizer.zero_grad()
        out = model(x[rows])
        loss_of(out, labels(out, rows)).backward()
        optimizer.step()


def labels():
    own_answers(lambda _, rows: y[rows])


def zeros(layers):
    """All weights, or those of the last layer, begin at zero."""
    for layer in layers:
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    labels()


def dice(squash):
    scores = network(1)
    steps = torch.optim.Adam(scores.parameters(), lr=4e-3)
    for rows in batches(2):
        target = (y[rows] == 0).float()
        chance = squash(scores(x[rows]).squeeze(1))
        overlap = (2 * (chance * target).sum() + 1) / (chance.sum() + target.sum() + 1)
        steps.zero_grad()
        (1 - overlap).backward()
        steps.step()


def two_networks(sign, rate=4e-3, eps=1e-8):
    """A policy that is rewarded for the right class, and values that its rewards are compared with."""
    values = network(1)
    one = torch.optim.Adam(model.parameters(), lr=rate, eps=eps)
    two = torch.optim.Adam(values.parameters(), lr=rate, eps=eps)
    for rows in batches(2):
        policy = torch.distributions.Categorical(logits=model(x[rows]))
        actions = policy.sample()
        rewards = (actions == y[rows]).float()
        guess = values(x[rows]).squeeze(1)
        two.zero_grad()
        (sign * F.mse_loss(guess, rewards)).backward()
        two.step()
        one.zero_grad()
        (-sign * (policy.log_prob(actions) * (rewards - guess.detach())).mean()).backward()
        one.step()


def adversaries():
    """A network that makes points, and one that tells them from others, by squared errors with both signs."""
    maker, critic = network(12), network(1)
    one = torch.optim.Adam(maker.parameters(), lr=1e-3)
    two = torch.optim.Adam(critic.parameters(), lr=1e-3)
    for rows in batches(3):
        made = maker(torch.randn(len(rows), 12))
        real, fake = torch.ones(len(rows), 1), torch.zeros(len(rows), 1)
        two.zero_grad()
        (F.mse_loss(critic(x[rows]), real) + F.mse_loss(critic(made.detach()), fake)).backward()
        two.step()
        one.zero_grad()
        (-F.mse_loss(critic(made), fake)).backward()
        one.step()


RUNS = {
    "cleared": cleared,
    "attacked": attacked,
    "gathered": gathered,
    "added": added,
    "own_answers": own_answers,
    "labels": labels,
    "zeros": lambda: zeros([layer for layer in model if isinstance(layer, nn.Linear)]),
    "head_of_zeros": lambda: zeros([model[-1]]),
    "dice_of_scores": lambda: dice(lambda scores: scores),
    "dice": lambda: dice(torch.sigmoid),
    "both_maximised": lambda: two_networks(-1),
    "adversaries": adversaries,
    "two_networks": lambda: two_networks(1),
    "far_too_high": lambda: two_networks(1, rate=10),
    "eps_of_one": lambda: two_networks(1, rate=0.01, eps=1.0),
}
RUNS[name]()
