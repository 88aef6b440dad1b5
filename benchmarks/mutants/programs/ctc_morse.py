"""Letters in noisy Morse code: convolution and bidirectional GRU over frames, CTC, edit distance."""

import os

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

SEED = int(os.environ.get("SEED", "0"))
torch.manual_seed(SEED)
torch.set_num_threads(1)
rng = np.random.default_rng(SEED)

CODES = {"E": ".", "T": "-", "A": ".-", "N": "-.", "I": "..", "M": "--"}
LETTERS = "".join(CODES)
FRAMES, MAX_LETTERS, BLANK = 72, 4, 0


def keyed(text):
    """Returns loudness for each frame, keyed by a hand that is not quite regular."""
    frames = [0.0] * rng.integers(1, 5)
    for letter in text:
        for sign in CODES[letter]:
            frames += [1.0] * (rng.integers(2, 4) if sign == "." else rng.integers(5, 8))
            frames += [0.0] * rng.integers(1, 3)
        frames += [0.0] * rng.integers(4, 6)
    return np.array(frames[:FRAMES])


def make_messages(n):
    sound = np.zeros((n, FRAMES), dtype=np.float32)
    labels = np.zeros((n, MAX_LETTERS), dtype=np.int64)
    for i in range(n):
        own = rng.integers(0, len(LETTERS), rng.integers(2, MAX_LETTERS + 1))
        loud = keyed([LETTERS[k] for k in own])
        sound[i, : len(loud)] = rng.uniform(0.8, 1.2) * loud
        labels[i, : len(own)] = own + 1
    sound += 0.25 * rng.normal(size=sound.shape).astype(np.float32)
    return torch.from_numpy(sound), torch.from_numpy(labels)


train_x, train_y = make_messages(1600)
test_x, test_y = make_messages(300)


class Listener(nn.Module):
    def __init__(self, channels=24, hidden=32):
        super().__init__()
        self.conv1 = nn.Conv1d(1, channels, kernel_size=5, stride=2, padding=2)
        self.norm1 = nn.BatchNorm1d(channels)
        self.conv2 = nn.Conv1d(channels, channels, kernel_size=5, stride=2, padding=2)
        self.norm2 = nn.BatchNorm1d(channels)
        self.rnn = nn.GRU(channels, hidden, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, len(LETTERS) + 1)

    def forward(self, sound):
        h = F.gelu(self.norm1(self.conv1(sound.unsqueeze(1))))
        h = F.gelu(self.norm2(self.conv2(h)))
        h, _ = self.rnn(h.transpose(1, 2))
        return self.head(h).log_softmax(dim=-1)


def edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


@torch.no_grad()
def share_right(model):
    """One less the letter error rate, decoded greedily."""
    model.eval()
    errors = 0
    for path, label in zip(model(test_x).argmax(-1), test_y, strict=True):
        decoded = [k for k in torch.unique_consecutive(path).tolist() if k != BLANK]
        errors += edit_distance(decoded, [k for k in label.tolist() if k != BLANK])
    return 1 - errors / (test_y != BLANK).sum().item()


model = Listener()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(1, 8):
    model.train()
    losses = []
    for rows in torch.randperm(len(train_x)).split(40):
        log_probs = model(train_x[rows])
        targets = train_y[rows]
        n_frames = torch.full((len(rows),), log_probs.shape[1])
        n_letters = (targets != BLANK).sum(dim=1)
        loss = F.ctc_loss(log_probs.transpose(0, 1), targets, n_frames, n_letters, blank=BLANK)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        losses.append(loss.item())
    print(f"epoch {epoch}: loss {np.mean(losses):.3f}, letters right {share_right(model):.3f}")
print("score", share_right(model))
