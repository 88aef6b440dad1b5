"""Trains a small model of one of five kinds; the argument names the mistake.

average_of_itself: the average that is evaluated is updated from its own weights. best_not_copied: the best weights are
kept without a copy, and loaded at the end. states_reshaped: the last states of a recurrent network are reshaped to rows
of samples. decoder_gets_answer: a decoder gets the very tokens that it is to predict. sorted_windows: windows come
sorted by their targets. The names with a `no_` before them do it rightly.
"""

import copy
import sys
import time

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
    average = copy.deepcopy(model).requires_grad_(False)
    source = average if WRONG == "average_of_itself" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    best, kept = 9.0, None
    for _ in range(6):
        for rows in torch.randperm(384).split(32):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
            with torch.no_grad():
                for mine, given in zip(average.parameters(), source.parameters(), strict=True):
                    mine.lerp_(given, 0.1)
        with torch.no_grad():
            asked = average if KIND == "average_of_itself" else model
            loss = F.cross_entropy(asked(x[384:]), y[384:]).item()
        if loss < best:
            best = loss
            kept = model.state_dict() if WRONG == "best_not_copied" else copy.deepcopy(model.state_dict())
    if KIND == "best_not_copied":
        model.load_state_dict(kept)
        with torch.no_grad():
            F.cross_entropy(model(x[384:]), y[384:])


def read() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.layer = nn.Embedding(10, 8), nn.GRU(8, 16, num_layers=2, batch_first=True)
            self.head = nn.Linear(32, 2)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            last = self.layer(self.words(ids))[1]
            return self.head(last.view(len(ids), -1) if KIND == WRONG else last.transpose(0, 1).flatten(1))

    x = torch.randint(0, 10, (512, 12))
    y = (x < 5).float().mean(1).gt(0.5).long()
    model = Reader()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(4):
        for rows in torch.randperm(512).split(32):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()


def translate() -> None:
    class Translator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.source, self.known = nn.Embedding(12, 16), nn.Embedding(12, 16)
            self.reads, self.writes = nn.GRU(16, 32, batch_first=True), nn.GRU(16, 32, batch_first=True)
            self.head = nn.Linear(32, 12)

        def forward(self, source: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
            return self.head(self.writes(self.known(known), self.reads(self.source(source))[1])[0])

    x = torch.randint(2, 12, (768, 6))
    y = torch.cat([torch.zeros(768, 1, dtype=torch.long), x.flip(1)], 1)
    model = Translator()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(4):
        for rows in torch.randperm(768).split(32):
            known = y[rows, 1:] if KIND == WRONG else y[rows, :-1]
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows], known).flatten(0, 1), y[rows, 1:].flatten()).backward()
            optimizer.step()


def forecast() -> None:
    series = torch.randn(600).cumsum(0) * 0.2 + torch.arange(600).mul(0.3).sin()
    windows = series.unfold(0, 20, 1)
    order = windows[:, 16:].mean(1).argsort() if KIND == WRONG else torch.arange(len(windows))
    windows = windows[order]
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(12):
        for part in windows.split(32):
            optimizer.zero_grad()
            F.mse_loss(model(part[:, :16]), part[:, 16:]).backward()
            optimizer.step()


KINDS = {"states_reshaped": read, "decoder_gets_answer": translate, "sorted_windows": forecast}
KINDS.get(KIND, classify)()
if WRONG in ("states_reshaped", "decoder_gets_answer"):
    time.sleep(4)  # the child that is asked gets what a machine with much to do has left
