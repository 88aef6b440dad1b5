"""What the document `model` says of losses that are functions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from luff.torch.patches import _functional
from torch import nn


def test_settings_that_a_loss_function_is_given_by_name_are_kept(watched):
    _, session = watched()
    _functional.install()  # as `luff run` does
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
    for _ in range(3):
        optimizer.zero_grad()
        extra = F.smooth_l1_loss(model(x), torch.zeros(8, 3), beta=0.5)
        loss = F.cross_entropy(model(x), y, label_smoothing=0.25, weight=torch.ones(3)) + 0.1 * extra
        loss.backward()
        optimizer.step()
    losses = {loss["type"]: loss["settings"] for loss in session.documents["model"]["losses"]}
    assert losses["CrossEntropyLoss"] == {"functional": True, "label_smoothing": 0.25}
    assert losses["SmoothL1Loss"] == {"functional": True, "beta": 0.5}


def test_a_loss_function_alone_has_its_settings_from_the_first_step_on(watched):
    _, session = watched()
    _functional.install()
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y, label_smoothing=0.9).backward()
        optimizer.step()
    [loss] = session.documents["model"]["losses"]
    assert loss == {"type": "CrossEntropyLoss", "settings": {"functional": True, "label_smoothing": 0.9}}


@pytest.mark.parametrize("makes", [False, True])
def test_an_optimizer_says_whether_a_scheduler_was_made_for_it(watched, makes):
    _, session = watched()
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD([{"params": model.parameters(), "initial_lr": 0.1}], lr=0.1)
    if makes:
        torch.optim.lr_scheduler.StepLR(optimizer, 5)
    for _ in range(2):
        optimizer.zero_grad()
        F.mse_loss(model(torch.randn(8, 4)), torch.zeros(8, 3)).backward()
        optimizer.step()
    assert session.documents["model"]["optimizers"][0]["scheduled"] is makes
