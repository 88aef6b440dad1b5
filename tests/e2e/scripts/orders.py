"""Trains a small model whose answers depend on the order of the batch, or a look-alike; the argument names it.

edges: edges of a graph without the offsets of the batch. vectors: a recurrent network takes the rows of a batch of
vectors for places of a sequence. first_step: the first sample's step of a diffusion is taken for all. mask: an
encoder does not use the mask of its padding. The names with a `no_` before them do it rightly. Meant are experts with
room for a few samples, halves of a batch from two domains, members of an ensemble that have a part of the batch each,
and places of a sequence as rows, which come in one order.
"""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

WRONG = sys.argv[1]
KIND = WRONG.removeprefix("no_")
torch.manual_seed(0)


class Graphs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(2, 16), nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, nodes, _ = x.shape
        h = torch.relu(self.inner(x)).flatten(0, 1)
        source, target = (1 - torch.eye(nodes)).nonzero().T
        if KIND != WRONG:
            offsets = torch.arange(rows)[:, None] * nodes
            source, target = (source + offsets).flatten(), (target + offsets).flatten()
        h = h.index_add(0, target, h[source]) / nodes
        return self.head(h.view(rows, nodes, -1).mean(1))


class Vectors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x)[0] if KIND == WRONG else self.rnn(x[:, None])[0][:, 0])


class Steps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(9, 32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        t = t[0].expand(len(x)) if KIND == WRONG else t
        return self.inner(torch.cat([x, t[:, None] / 10], 1))


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(8, 4), nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, chosen = self.gate(x).softmax(-1).max(-1)
        for number, expert in enumerate(self.experts):
            places = (chosen == number).nonzero().flatten()[:8]
            x = x.index_add(0, places, expert(x[places]) * weight[places, None])
        return self.head(x)


class Parts(nn.Module):
    """Treats the parts of a batch apart: domains, or members of an ensemble."""

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.scales, self.parts = nn.Parameter(1 + 0.3 * torch.randn(parts, 8)), parts
        self.inner = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x * self.scales.repeat_interleave(len(x) // self.parts, 0))


def classify(model: nn.Module) -> None:
    x = torch.randn(512, 6, 2) if KIND == "edges" else torch.randn(512, 8)
    y = (x.flatten(1)[:, 0] > 0).long()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(4):
        for rows in torch.randperm(512).split(32):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        if not epoch:
            time.sleep(3)  # the child that is asked gets what a machine with much to do has left


def diffuse() -> None:
    x = torch.randn(512, 8)
    model = Steps()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(4):
        for (clean,) in DataLoader(TensorDataset(x), batch_size=32, shuffle=True):
            t, noise = torch.randint(0, 10, (32,)), torch.randn(32, 8)
            optimizer.zero_grad()
            kept = (1 - t / 10)[:, None]
            F.mse_loss(model(kept * clean + (1 - kept) * noise, t), noise).backward()
            optimizer.step()
        if not epoch:
            time.sleep(3)


class Texts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(20, 16, padding_idx=0), nn.Linear(16, 2)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if KIND == WRONG:
            return self.head(self.layer(self.words(ids)).mean(1))
        h = self.layer(self.words(ids), src_key_padding_mask=~mask) * mask[..., None]
        return self.head(h.sum(1) / mask.sum(1, keepdim=True))


def read() -> None:
    lengths = torch.randint(2, 13, (512, 1))
    lengths[::16] = 12
    mask = torch.arange(12) < lengths
    ids = torch.where(mask, torch.randint(1, 20, (512, 12)), 0)
    y = (ids[:, 0] > 9).long()
    model = Texts()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(4):
        for rows in torch.randperm(512).split(32):
            optimizer.zero_grad()
            F.cross_entropy(model(ids[rows], mask[rows]), y[rows]).backward()
            optimizer.step()
        if not epoch:
            time.sleep(3)


def series() -> None:
    x = torch.randn(20, 32, 8).cumsum(1) * 0.1
    y = (x[:, :, 0] > 0).long()
    model = nn.ModuleDict({"rnn": nn.LSTM(8, 16), "head": nn.Linear(16, 2)})

    class Series(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = model

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return self.parts["head"](self.parts["rnn"](rows)[0])

    reads = Series()
    optimizer = torch.optim.Adam(reads.parameters(), lr=3e-3)
    for epoch in range(4):
        for number in torch.randperm(20).tolist():
            optimizer.zero_grad()
            F.cross_entropy(reads(x[number]), y[number]).backward()
            optimizer.step()
        if not epoch:
            time.sleep(3)


MODELS = {"edges": Graphs, "vectors": Vectors, "experts": Experts}
if KIND == "first_step":
    diffuse()
elif KIND == "series":
    series()
elif KIND == "mask":
    read()
elif KIND in ("domains", "members"):
    classify(Parts(2 if KIND == "domains" else 4))
else:
    classify(MODELS[KIND]())
