"""Models that are evaluated beside the one that is trained: how far an average has come, and labels of a copy."""

from __future__ import annotations

import copy

import pytest
import torch
from fake_session import DEFAULT_ROLES
from luff._codes import Role
from test_evidence import told
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))


def train(model, evaluated, move, rate=0.05, epochs=8):
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(epochs):
        for _ in range(10):
            x = torch.randn(16, 8, generator=generator)
            optimizer.zero_grad()
            F.cross_entropy(model(x), (x[:, :4]).argmax(1)).backward()
            optimizer.step()
            move(model, evaluated)
        with torch.no_grad():
            evaluated(torch.randn(16, 8, generator=generator))


def shares(session):
    return [event["share"] for event in told(session, "average")]


@pytest.mark.parametrize(("decay", "least", "most"), [(0.9999, 0.0, 0.05), (0.9, 0.8, 1.2)])
def test_how_far_an_average_has_come_is_told(watched, decay, least, most):
    hook, session = watched()
    model = net()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    train(model, average, lambda model, average: average.update_parameters(model))
    hook.close()
    assert shares(session)
    assert least < shares(session)[-1] < most
    event = told(session, "average")[-1]
    assert event["steady"] > 0.8
    assert event["model"] != event["of"] == "Sequential"


def test_models_that_do_not_move_or_are_of_other_shapes_are_not_told(watched):
    hook, session = watched()
    model = net()
    train(model, copy.deepcopy(model), lambda *_: None)
    hook.close()
    assert not shares(session)

    hook, session = watched()
    other = nn.Linear(8, 4)

    def move(_, other):
        with torch.no_grad():
            other.weight.add_(0.01)

    train(net(), other, move)
    hook.close()
    assert not shares(session)


def test_labels_that_answers_of_a_copy_are_compared_with_are_seen(watched):
    for evaluated, seen in ((copy.deepcopy, True), (lambda _: nn.Linear(8, 4), False)):
        hook, session = watched(DEFAULT_ROLES | {Role.SAMPLE})
        model = net()
        beside = evaluated(model)
        x = torch.randn(24, 8)
        y = x[:, :4].argmax(1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            nn.CrossEntropyLoss()(model(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            for _ in range(2):
                beside.eval()
                (beside(x).argmax(1) == y).sum()
        hook.close()
        names = [name for step in session.eval() for name in step.values]
        assert ("sample/CrossEntropyLoss_input_1" in names) is seen
