"""Topics of token sequences with a transformer encoder: warm-up then decay per step, label smoothing."""

import math
import os
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn


@dataclass
class Config:
    vocab: int = 200
    topics: int = 5
    max_len: int = 24
    d_model: int = 32
    heads: int = 4
    layers: int = 2
    lr: float = 3e-3
    warmup: int = 30
    epochs: int = 4
    batch: int = 50
    seed: int = int(os.environ.get("SEED", "0"))


cfg = Config()
torch.manual_seed(cfg.seed)
torch.set_num_threads(1)
rng = np.random.default_rng(cfg.seed)

# Each topic prefers 12 words of its own, a third of a document's; the rest is common to all. 0 pads.
own_words = rng.permutation(np.arange(1, cfg.vocab))[: 12 * cfg.topics].reshape(cfg.topics, 12)


def documents(n):
    tokens = np.zeros((n, cfg.max_len), dtype=np.int64)
    topics = rng.integers(0, cfg.topics, n)
    for row, topic in zip(tokens, topics, strict=True):
        length = rng.integers(10, cfg.max_len + 1)
        common = rng.integers(1, cfg.vocab, length)
        row[:length] = np.where(rng.random(length) < 0.3, rng.choice(own_words[topic], length), common)
    return torch.from_numpy(tokens), torch.from_numpy(topics)


train_x, train_y = documents(1500)
test_x, test_y = documents(500)


class Encoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tokens = nn.Embedding(c.vocab, c.d_model, padding_idx=0)
        self.positions = nn.Parameter(torch.randn(1, c.max_len, c.d_model) * 0.02)
        layer = nn.TransformerEncoderLayer(
            c.d_model,
            c.heads,
            4 * c.d_model,
            dropout=0.1,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.blocks = nn.TransformerEncoder(layer, c.layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(c.d_model)
        self.classifier = nn.Linear(c.d_model, c.topics)

    def forward(self, x):
        padded = x == 0
        h = self.blocks(self.tokens(x) + self.positions, src_key_padding_mask=padded)
        keep = (~padded).unsqueeze(-1)
        return self.classifier(self.norm((h * keep).sum(1) / keep.sum(1)))


model = Encoder(cfg)
steps = cfg.epochs * math.ceil(len(train_x) / cfg.batch)
optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.01, betas=(0.9, 0.98))
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda i: min((i + 1) / cfg.warmup, max(0.05, (steps - i) / max(1, steps - cfg.warmup)))
)
criterion = nn.CrossEntropyLoss(label_smoothing=0.05)

for epoch in range(cfg.epochs):
    model.train()
    for ids in torch.randperm(len(train_x)).split(cfg.batch):
        optimizer.zero_grad(set_to_none=True)
        loss = criterion(model(train_x[ids]), train_y[ids])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        scheduler.step()
    model.eval()
    with torch.inference_mode():
        acc = (model(test_x).argmax(-1) == test_y).float().mean().item()
    print(f"epoch {epoch} loss {loss.item():.3f} lr {scheduler.get_last_lr()[0]:.2e} accuracy {acc:.3f}")
print("score", acc)
