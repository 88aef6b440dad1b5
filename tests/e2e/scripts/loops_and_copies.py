"""Trains a small model of one of seven kinds; the argument names the mistake.

clipped_scaled: gradients are clipped before the scale of the loss is taken off. cleared_between: gradients that are to
add up are cleared before each batch. buffers_left_out: an average of weights leaves the buffers out.
target_stands: the target network is never brought up to date. worst_restored: the state of the largest loss is kept as
the best. moving_gain: the advantage of a policy is not detached. teacher_at_chance: nothing is wrong, and a network as
it was drawn is evaluated, too. The names with a `no_` before them do it rightly.
"""

import copy
import sys

import torch
from torch import nn
from torch.nn import functional as F

WRONG = sys.argv[1]
KIND = WRONG.removeprefix("no_")
torch.manual_seed(0)

x = torch.randn(640, 8)
y = (x[:, 0] + 0.3 * torch.randn(640) > 0).long() + (x[:, 1] > 0.5).long()
HELD_OUT = slice(512, 640)


def net(norm: bool = False) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(8, 32), nn.BatchNorm1d(32) if norm else nn.Identity(), nn.ReLU(), nn.Linear(32, 3)
    )


def batches() -> tuple[torch.Tensor, ...]:
    return torch.randperm(512).split(32)


def evaluate(model: nn.Module) -> float:
    model.eval()
    with torch.no_grad():
        loss = F.cross_entropy(model(x[HELD_OUT]), y[HELD_OUT]).item()
    model.train()
    return loss


def clip() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(4):
        for rows in batches():
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(model(x[rows]), y[rows])).backward()
            if KIND != WRONG:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            scaler.step(optimizer)
            scaler.update()


def accumulate() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(4):
        for number, rows in enumerate(batches()):
            if KIND == WRONG or number % 4 == 0:
                optimizer.zero_grad()
            (F.cross_entropy(model(x[rows]), y[rows]) / 4).backward()
            if number % 4 == 3:
                optimizer.step()


def average() -> None:
    model = net(norm=True)
    mean = copy.deepcopy(model)
    mean.requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(6):
        for rows in batches():
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
            with torch.no_grad():
                for mine, given in zip(mean.parameters(), model.parameters(), strict=True):
                    mine.lerp_(given, 0.1)
                for mine, given in zip(mean.buffers(), model.buffers(), strict=True):
                    if KIND != WRONG:
                        mine.copy_(given)
        evaluate(mean)


def value() -> None:
    def q() -> nn.Sequential:
        return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))

    model, target = q(), q()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(260):
        state = torch.randn(32, 8)
        following = state.roll(1, 1) + 0.1 * torch.randn(32, 8)
        chosen = model(state)[:, 0]
        with torch.no_grad():
            goal = state[:, 0] + 0.9 * target(following).max(1).values
        optimizer.zero_grad()
        F.smooth_l1_loss(chosen, goal).backward()
        optimizer.step()
        if KIND != WRONG and step % 20 == 0:
            target.load_state_dict(model.state_dict())


def keep() -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    best, kept = (-1.0 if KIND == WRONG else 9.0), None
    for _ in range(6):
        for rows in batches():
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        loss = evaluate(model)
        if loss > best if KIND == WRONG else loss < best:
            best, kept = loss, copy.deepcopy(model.state_dict())
    model.load_state_dict(kept)
    evaluate(model)


def act() -> None:
    trunk = nn.Sequential(nn.Linear(8, 32), nn.Tanh())
    policy, critic = nn.Linear(32, 3), nn.Linear(32, 1)
    model = nn.ModuleDict({"trunk": trunk, "policy": policy, "critic": critic})
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(60):
        rows = torch.randint(0, 512, (32,))
        hidden = trunk(x[rows])
        drawn = torch.distributions.Categorical(logits=policy(hidden))
        action = drawn.sample()
        reward, values = (action == y[rows]).float(), critic(hidden).squeeze(-1)
        gain = reward - values
        if KIND != WRONG:
            gain = gain.detach()
        loss = -(drawn.log_prob(action) * gain).mean() + 0.5 * (reward - values).pow(2).mean()
        optimizer.zero_grad()
        (loss - 0.01 * drawn.entropy().mean()).backward()
        optimizer.step()


def beside() -> None:
    model, teacher = net(), net()
    for parameter in teacher.parameters():
        parameter.requires_grad_(False).mul_(4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(20):
        for rows in batches():
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        for one in (model, teacher):
            evaluate(one)


{
    "clipped_scaled": clip,
    "cleared_between": accumulate,
    "buffers_left_out": average,
    "target_stands": value,
    "worst_restored": keep,
    "moving_gain": act,
    "teacher_at_chance": beside,
}[KIND]()
