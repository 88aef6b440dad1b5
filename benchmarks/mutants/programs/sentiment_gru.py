"""Sentiment of made-up reviews, with negation: embedding and GRU over padded batches."""

import os
import random

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

seed = int(os.environ.get("SEED", "0"))
random.seed(seed)
torch.manual_seed(seed)
torch.set_num_threads(1)

GOOD = ["good", "great", "lovely", "brilliant", "fun"]
BAD = ["bad", "awful", "boring", "poor", "dull"]
FILLER = [
    "the",
    "a",
    "film",
    "plot",
    "actor",
    "scene",
    "music",
    "was",
    "is",
    "with",
    "and",
    "it",
    "this",
    "some",
]
VOCAB = {word: i + 1 for i, word in enumerate([*GOOD, *BAD, *FILLER, "not"])}  # 0 is the padding


def make_review():
    """Two to four opinions between filler words; the label is that of the majority."""
    words, mood = [], 0
    for _ in range(random.choice([1, 3])):
        words += random.choices(FILLER, k=random.randint(1, 4))
        positive, negated = random.random() < 0.5, random.random() < 0.3
        if negated:
            words.append("not")
        words.append(random.choice(GOOD if positive else BAD))
        mood += 1 if positive != negated else -1
    return torch.tensor([VOCAB[w] for w in words]), int(mood > 0)


class Reviews(Dataset):
    def __init__(self, size):
        self.rows = [make_review() for _ in range(size)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    tokens, labels = zip(*rows, strict=True)
    lengths = torch.tensor([len(t) for t in tokens])
    return pad_sequence(tokens, batch_first=True), lengths, torch.tensor(labels)


class SentimentGRU(nn.Module):
    def __init__(self, vocab_size, embed_dim=32, hidden_dim=48):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embed_dim, padding_idx=0)
        self.gru = nn.GRU(embed_dim, hidden_dim, batch_first=True)
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(hidden_dim, 2)

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False)
        _, hidden = self.gru(packed)
        return self.fc(self.dropout(hidden[-1]))


train_set, test_set = Reviews(2000), Reviews(600)
train_dl = DataLoader(train_set, batch_size=32, shuffle=True, collate_fn=collate)
test_dl = DataLoader(test_set, batch_size=200, shuffle=False, collate_fn=collate)

net = SentimentGRU(len(VOCAB) + 1)
loss_fn = nn.CrossEntropyLoss()
optim = torch.optim.Adam(net.parameters(), lr=3e-3)


def test_accuracy():
    net.eval()
    hits = 0
    with torch.no_grad():
        for tokens, lengths, labels in test_dl:
            hits += (net(tokens, lengths).argmax(dim=1) == labels).sum().item()
    return hits / len(test_set)


for epoch in range(4):
    net.train()
    total = 0.0
    for tokens, lengths, labels in train_dl:
        loss = loss_fn(net(tokens, lengths), labels)
        optim.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optim.step()
        total += loss.item()
    print(f"epoch={epoch} loss={total / len(train_dl):.4f} acc={test_accuracy():.4f}")
print("score", test_accuracy())
