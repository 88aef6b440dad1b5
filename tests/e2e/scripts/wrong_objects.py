"""Trains a small model of one of four kinds; the argument names what is taken in the place of what is meant.

accuracy_to_fall: ReduceLROnPlateau gets an accuracy, and its mode is that of a loss. last_of_both: the last output of
a bidirectional layer, whose other direction has seen one element by then. same_reference: a model is compared with
itself. other_optimizer: the optimizer holds the reference. other_noise: the target of a denoiser is drawn anew.
The names with a `no_` before them do it rightly.
"""

import copy
import sys

import torch
from torch import nn
from torch.nn import functional as F

WRONG = sys.argv[1]
KIND = WRONG.removeprefix("no_")
torch.manual_seed(0)


def classify() -> None:
    x = torch.randn(512, 8)
    y = (x[:, 0] + 0.7 * torch.randn(512) > 0).long()
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    mode = "min" if KIND == WRONG else "max"
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode=mode, patience=1)
    for _ in range(8):
        for rows in torch.randperm(384).split(32):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            answers = model(x[384:])
            print(float(F.cross_entropy(answers, y[384:])))
            scheduler.step((answers.argmax(1) == y[384:]).float().mean())


def read() -> None:
    x = torch.randint(0, 10, (512, 12))
    y = (x < 5).float().mean(1).gt(0.5).long()
    words, layer = nn.Embedding(10, 8), nn.GRU(8, 16, batch_first=True, bidirectional=True)
    model = nn.ModuleDict({"words": words, "layer": layer, "head": nn.Linear(32, 2)})
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(6):
        for rows in torch.randperm(512).split(32):
            outputs, last = layer(words(x[rows]))
            states = outputs[:, -1] if KIND == WRONG else torch.cat([last[0], last[1]], 1)
            optimizer.zero_grad()
            F.cross_entropy(model["head"](states), y[rows]).backward()
            optimizer.step()


def prefer() -> None:
    better, worse = torch.randn(512, 8) + 0.5, torch.randn(512, 8)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    reference = model if WRONG == "same_reference" else copy.deepcopy(model)
    trained = reference if WRONG == "other_optimizer" else model
    optimizer = torch.optim.Adam(trained.parameters(), lr=1e-3)
    for _ in range(6):
        for rows in torch.randperm(512).split(32):
            gain = model(better[rows]) - model(worse[rows])
            with torch.no_grad():
                gain_of_reference = reference(better[rows]) - reference(worse[rows])
            optimizer.zero_grad()
            F.softplus(gain_of_reference - gain).mean().backward()
            optimizer.step()


def denoise() -> None:
    x = torch.randn(512, 1).repeat(1, 16) + torch.linspace(-1, 1, 16)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(24):
        for rows in torch.randperm(512).split(64):
            noise = torch.randn(len(rows), 16)
            target = torch.randn(len(rows), 16) if KIND == WRONG else noise
            optimizer.zero_grad()
            F.mse_loss(model(0.8 * x[rows] + 0.6 * noise), target).backward()
            optimizer.step()


KINDS = {"accuracy_to_fall": classify, "last_of_both": read, "other_noise": denoise}
KINDS.get(KIND, prefer)()
