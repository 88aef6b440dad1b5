"""Trainings of small networks whose loss has a part that cannot be meant; after `no_`, the same as they should be."""

import sys

import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F

right = sys.argv[1].startswith("no_")
name = sys.argv[1].removeprefix("no_")
torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(640, 12)
y = (x @ torch.linspace(-1, 1, 36).view(12, 3).sin()).argmax(1)


def network(outputs, activation=nn.Tanh):
    layers = [nn.Linear(12, 32), activation(), nn.Linear(32, 32), activation(), nn.Linear(32, outputs)]
    return nn.Sequential(*layers)


def train(loss_of, *models, passes=3, size=32):
    optimizer = torch.optim.Adam([p for model in models for p in model.parameters()], lr=2e-3)
    for _ in range(passes):
        for rows in torch.randperm(len(x)).split(size):
            optimizer.zero_grad()
            loss_of(rows).backward()
            optimizer.step()


def deviation_unlike():
    encoder, decoder = network(16), nn.Linear(8, 12)

    def loss_of(rows):
        mean, log_var = encoder(x[rows]).chunk(2, 1)
        deviation = ((0.5 if right else 1.0) * log_var).exp()
        made = decoder(mean + deviation * torch.randn_like(mean))
        cost = -0.5 * (1 + log_var - mean**2 - log_var.exp()).sum(1)
        return ((made - x[rows]) ** 2).sum(1).mean() + cost.mean()

    train(loss_of, encoder, decoder)


def surrogate_upside_down():
    policy, value = network(3), network(1)
    for _ in range(8):
        with torch.no_grad():
            drawn = Categorical(logits=policy(x))
            actions = drawn.sample()
            old, base = drawn.log_prob(actions), value(x).squeeze(1)
        rewards = (actions == y).float()
        gains = rewards - base

        def loss_of(rows, actions=actions, old=old, gains=gains, rewards=rewards):
            now = Categorical(logits=policy(x[rows]))
            ratio = (now.log_prob(actions[rows]) - old[rows]).exp()
            both = ratio * gains[rows], ratio.clamp(0.8, 1.2) * gains[rows]
            bound = torch.min(*both) if right else torch.max(*both)
            return -bound.mean() + F.mse_loss(value(x[rows]).squeeze(1), rewards[rows])

        train(loss_of, policy, value, passes=1)


def same_view():
    model = network(8)

    def loss_of(rows):
        view = x[rows] + 0.2 * torch.randn(len(rows), 12)
        other = x[rows] + 0.2 * torch.randn(len(rows), 12) if right else view
        distance = F.pairwise_distance(model(view), model(other))
        return (distance**2).mean() + F.relu(1 - F.pairwise_distance(model(view), model(view.flip(0)))).mean()

    train(loss_of, model)


def softmax_between():
    model = network(3, nn.GELU if right else lambda: nn.Softmax(dim=1))
    train(lambda rows: F.cross_entropy(model(x[rows]), y[rows]), model)


globals()[name]()
