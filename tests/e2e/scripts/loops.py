"""Training loops of several shapes, each with one bad step. Prints its mode, its number and the updates before it."""

import sys

import torch
from torch import nn

kind = sys.argv[1]
torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(64, 4)
y = x.sum(1, keepdim=True)
loss_fn = nn.MSELoss()


def network(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, outputs))


def loss_of(model, bad):
    return loss_fn(model(x), y * (float("nan") if bad else 1.0))


def evaluate(model, bad_batch=-1):
    model.eval()
    with torch.no_grad():
        for batch in range(3):
            loss_fn(model(x * (1e4 if batch == bad_batch else 1.0)), y)
    model.train()


def gan():
    """Two optimizers take turns: an iteration is two steps, and an update of each."""
    maker, judge = network(2, 4), network(4, 1)
    maker_optimizer = torch.optim.Adam(maker.parameters(), lr=1e-3)
    judge_optimizer = torch.optim.Adam(judge.parameters(), lr=1e-3)
    scores = nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)
    for iteration in range(20):
        fake = maker(torch.randn(64, 2))
        judge_optimizer.zero_grad()
        (scores(judge(x), ones) + scores(judge(fake.detach()), zeros)).backward()
        judge_optimizer.step()
        maker_optimizer.zero_grad()
        scores(judge(fake), ones * (float("nan") if iteration == 13 else 1.0)).backward()
        maker_optimizer.step()
    print("TRAIN", 2 * 13 + 1, 13)


def accumulation():
    """Four steps, one update. Gradients are seen as the update uses them, at its last step."""
    model = network(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(60):
        (loss_of(model, step == 37) / 4).backward()
        if step % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    print("TRAIN", 39, 39 // 4)


def evaluation():
    """An evaluation of three batches after every ten updates; the second batch of the third one is bad."""
    model = network(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(50):
        optimizer.zero_grad()
        loss_of(model, False).backward()
        optimizer.step()
        if step % 10 == 9:
            evaluate(model, 1 if step == 29 else -1)
    print("EVAL", 2 * 3 + 1, 30)


def trainer():
    """As a trainer does it: accumulation, clipping, a schedule, evaluations in between."""
    model = network(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 1 / (1 + update))
    for step in range(60):
        (loss_of(model, step == 45) / 2).backward()
        if step % 2 == 1:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if step % 20 == 19:
            evaluate(model)
    print("TRAIN", 45, 45 // 2)


{"gan": gan, "accumulation": accumulation, "evaluation": evaluation, "trainer": trainer}[kind]()
