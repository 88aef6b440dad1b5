"""Trains a small model of one of seven kinds; the argument names the mistake.

hidden_time: a denoiser gets the same time for all rows. overlap_added: a Dice coefficient is added to the loss of a
segmentation, not taken from it. similarity_added: a student's cosine to its teacher is made small. padding_counted: a
decoder's loss counts the padding. padding_read: the mean over the words of a text includes its padding. shifted_twice:
targets of next tokens begin one place too late. one_column: two tables look up the same column of ids. The names with a
`no_` before them do it rightly.
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

WRONG = sys.argv[1]
KIND = WRONG.removeprefix("no_")
torch.manual_seed(0)


def answering() -> bool:
    """Returns whether a child still works on a question to the model: a machine with much to do is slow."""
    me = os.getpid()
    try:
        for child in Path(f"/proc/{me}/task/{me}/children").read_text().split():
            if Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                return True
    except OSError:  # it has ended since, or the system keeps no such list
        pass
    return False


def denoise() -> None:
    class Denoiser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.time = nn.Linear(32, 64), nn.Linear(1, 64)
            self.last = nn.Linear(64, 32)

        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            return self.last(torch.relu(self.first(x) + self.time(t[:, None] / 100)))

    rows = torch.rand(1024, 1) * 6 + torch.arange(32) * 0.3
    data = rows.sin()
    kept = torch.linspace(1, 0.02, 100)
    model = Denoiser()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(8):
        for x in data[torch.randperm(1024)].split(64):
            t = torch.randint(0, 100, (64,))
            noise = torch.randn_like(x)
            mixed = kept[t, None].sqrt() * x + (1 - kept[t, None]).sqrt() * noise
            optimizer.zero_grad()
            F.mse_loss(model(mixed, torch.zeros_like(t) if KIND == WRONG else t), noise).backward()
            optimizer.step()


def segment() -> None:
    place = torch.rand(256, 2, 1, 1) * 12 + 2
    grid = torch.arange(16.0)
    masks = ((grid[:, None] - place[:, :1]) ** 2 + (grid - place[:, 1:]) ** 2 < 12).float()
    images = masks + 0.3 * torch.randn(256, 1, 16, 16)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(8):
        for rows in torch.randperm(256).split(32):
            scores, mask = model(images[rows]), masks[rows]
            shares = scores.sigmoid()
            both = (shares * mask).sum((1, 2, 3))
            dice = ((2 * both + 1) / (shares.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)).mean()
            loss = F.binary_cross_entropy_with_logits(scores, mask)
            optimizer.zero_grad()
            (loss + (dice if KIND == WRONG else 1 - dice)).backward()
            optimizer.step()


def distil() -> None:
    x = torch.randn(512, 12)
    teacher = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 8)).requires_grad_(False)
    student = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 8))
    optimizer = torch.optim.Adam(student.parameters(), lr=2e-3)
    for _ in range(8):
        for rows in torch.randperm(512).split(32):
            like = F.cosine_similarity(student(x[rows]), teacher(x[rows]), dim=1).mean()
            optimizer.zero_grad()
            (like if KIND == WRONG else 1 - like).backward()
            optimizer.step()


def decode() -> None:
    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.layer = nn.Embedding(14, 16, padding_idx=0), nn.GRU(16, 32, batch_first=True)
            self.start, self.head = nn.Linear(1, 32), nn.Linear(32, 14)

        def forward(self, what: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
            return self.head(self.layer(self.words(known), self.start(what[None]))[0])

    number = torch.randint(1, 9, (768,))
    texts = [torch.tensor([1, *[3 + int(n)] * int(n), *[9 + int(n) % 5] * (int(n) // 3), 2]) for n in number]
    model = Decoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(4):
        for rows in torch.randperm(768).split(32):
            text = pad_sequence([texts[row] for row in rows], batch_first=True)
            scores = model(number[rows, None] / 8, text[:, :-1])
            ignored = -100 if KIND == WRONG else 0
            optimizer.zero_grad()
            F.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten(), ignore_index=ignored).backward()
            optimizer.step()


def read() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.inner = nn.Embedding(40, 16, padding_idx=0), nn.Linear(16, 16)
            self.head = nn.Linear(16, 2)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            h = torch.relu(self.inner(self.words(ids)))
            mask = (ids != 0)[..., None]
            return self.head(h.mean(1) if KIND == WRONG else (h * mask).sum(1) / mask.sum(1))

    labels = torch.randint(0, 2, (768,))
    lengths = torch.randint(3, 25, (768,))
    texts = [torch.randint(1, 21, (int(n),)) + 18 * y for n, y in zip(lengths, labels, strict=True)]
    model = Reader()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(4):
        for rows in torch.randperm(768).split(32):
            ids = pad_sequence([texts[row] for row in rows], batch_first=True)
            optimizer.zero_grad()
            F.cross_entropy(model(ids), labels[rows]).backward()
            optimizer.step()


def write() -> None:
    class Writer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.layer = nn.Embedding(12, 16), nn.GRU(16, 32, batch_first=True)
            self.head = nn.Linear(32, 12)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.layer(self.words(ids))[0])

    following = torch.randperm(12)
    text = [0]
    for often in torch.rand(6000):
        text.append(int(following[text[-1]]) if often < 0.9 else int(often * 1e6) % 12)
    text = torch.tensor(text)
    model = Writer()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    shift = 2 if KIND == WRONG else 1
    for _ in range(120):
        starts = torch.randint(0, 5900, (32,))
        ids = torch.stack([text[at : at + 16] for at in starts])
        after = torch.stack([text[at + shift : at + shift + 16] for at in starts])
        optimizer.zero_grad()
        F.cross_entropy(model(ids).flatten(0, 1), after.flatten()).backward()
        optimizer.step()


def score() -> None:
    class Scorer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList([nn.Embedding(12, 4), nn.Embedding(30, 8)])
            self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))

        def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            column = 0 if KIND == WRONG else 1
            found = [self.tables[0](ids[:, 0]), self.tables[1](ids[:, column])]
            return self.layers(torch.cat([x, *found], 1)).squeeze(1)

    x = torch.randn(3000, 4)
    ids = torch.stack([torch.randint(0, 12, (3000,)), torch.randint(0, 30, (3000,))], 1)
    z = x[:, 0] + torch.randn(12)[ids[:, 0]] + torch.randn(30)[ids[:, 1]]
    y = (torch.rand(3000) < z.sigmoid()).float()
    model = Scorer()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(4):
        for rows in torch.randperm(3000).split(64):
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(model(x[rows], ids[rows]), y[rows]).backward()
            optimizer.step()


KINDS = {
    "hidden_time": denoise,
    "overlap_added": segment,
    "similarity_added": distil,
    "padding_counted": decode,
    "padding_read": read,
    "shifted_twice": write,
    "one_column": score,
}
KINDS[KIND]()
until = time.monotonic() + 60
while KIND == "padding_read" and time.monotonic() < until and answering():
    time.sleep(0.1)
