"""Trainings that hold several copies of a model: `several_copies.py WHICH`."""

from __future__ import annotations

import copy
import sys

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
centres = torch.randn(4, 8) * 1.5
labels = torch.randint(0, 4, (1600,))
rows = centres[labels] + torch.randn(1600, 8)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))


def loss_of(model: nn.Module, chosen: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(rows[chosen]), labels[chosen])


def drawn(count: int = 32) -> torch.Tensor:
    return torch.randint(0, 1600, (count,))


def tasks() -> None:
    """First-order meta-learning: inner steps by hand on a copy, whose gradients are added up for the model."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        for _ in range(2):
            learner = copy.deepcopy(model)
            for _ in range(2):
                slopes = torch.autograd.grad(loss_of(learner, drawn()), list(learner.parameters()))
                with torch.no_grad():
                    for weight, slope in zip(learner.parameters(), slopes, strict=True):
                        weight -= 0.01 * slope
            loss_of(learner, drawn()).backward()
            for weight, adapted in zip(model.parameters(), learner.parameters(), strict=True):
                assert adapted.grad is not None
                weight.grad = adapted.grad if weight.grad is None else weight.grad + adapted.grad
        optimizer.step()


def full_weights() -> None:
    """Weights of full precision beside a model of half."""
    model = net().bfloat16()
    weights = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.SGD(weights, 0.1)
    for _ in range(120):
        model.zero_grad()
        chosen = drawn()
        F.cross_entropy(model(rows[chosen].bfloat16()).float(), labels[chosen]).backward()
        for own, half in zip(weights, model.parameters(), strict=True):
            assert half.grad is not None
            own.grad = half.grad.float()
        optimizer.step()
        with torch.no_grad():
            for own, half in zip(weights, model.parameters(), strict=True):
                half.copy_(own)


def federation() -> None:
    """Clients that live on, with optimizers of their own, and are averaged after 20 updates each."""
    server = net()
    clients = [copy.deepcopy(server) for _ in range(4)]
    optimizers = [torch.optim.SGD(client.parameters(), 0.05) for client in clients]
    for _ in range(4):
        for number, (client, optimizer) in enumerate(zip(clients, optimizers, strict=True)):
            client.load_state_dict(server.state_dict())
            for chosen in (torch.randperm(400) + 400 * number).split(20):
                optimizer.zero_grad()
                loss_of(client, chosen).backward()
                optimizer.step()
        states = [client.state_dict() for client in clients]
        server.load_state_dict({name: sum(s[name] for s in states) / 4 for name in states[0]})


def older_copy() -> None:
    """The mistake: the optimizer was made before the model was copied."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model = copy.deepcopy(model)
    for _ in range(120):
        optimizer.zero_grad()
        loss_of(model, drawn()).backward()
        optimizer.step()


globals()[sys.argv[1]]()
