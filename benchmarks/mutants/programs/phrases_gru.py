"""Next letters of babble: words of a small language that follow each other by rules, windows, a GRU."""

import os

import numpy as np
import torch
from torch import nn

seed = int(os.environ.get("SEED", "0"))
torch.manual_seed(seed)
torch.set_num_threads(1)
rng = np.random.default_rng(seed)


def babble(words=7000):
    language = np.random.default_rng(3)
    known = [
        "".join(chr(97 + c) for c in language.integers(0, 20, language.integers(2, 6))) for _ in range(50)
    ]
    following = {word: language.choice(known, 3) for word in known}
    text, word = [], known[0]
    for _ in range(words):
        text.append(word)
        word = rng.choice(following[word])
    return " ".join(text)


text = babble()
vocabulary = sorted(set(text))
number = {letter: i for i, letter in enumerate(vocabulary)}
ids = torch.tensor([number[letter] for letter in text])
cut = int(0.9 * len(ids))
train_ids, test_ids = ids[:cut], ids[cut:]
LENGTH, BATCH = 32, 40


def sample(data):
    """Returns BATCH windows (BATCH, LENGTH + 1) from random places."""
    starts = torch.randint(len(data) - LENGTH - 1, (BATCH,))
    return data[starts[:, None] + torch.arange(LENGTH + 1)]


class Babbler(nn.Module):
    def __init__(self, size=64):
        super().__init__()
        self.letters = nn.Embedding(len(vocabulary), 32)
        self.gru = nn.GRU(32, size, batch_first=True)
        self.head = nn.Linear(size, len(vocabulary))

    def forward(self, x):
        return self.head(self.gru(self.letters(x))[0])


model = Babbler()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
criterion = nn.CrossEntropyLoss()
for step in range(240):
    model.train()
    windows = sample(train_ids)
    x, y = windows[:, :-1], windows[:, 1:].contiguous()
    scores = model(x)
    loss = criterion(scores.reshape(-1, len(vocabulary)), y.view(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 39:
        model.eval()
        with torch.no_grad():
            windows = torch.cat([sample(test_ids) for _ in range(4)])
            scores, y = model(windows[:, :-1]), windows[:, 1:]
            print(step, loss.item(), criterion(scores.reshape(-1, len(vocabulary)), y.reshape(-1)).item())
print("score", (scores.argmax(-1) == y).float().mean().item())
