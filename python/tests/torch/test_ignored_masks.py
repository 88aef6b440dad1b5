"""Models that are asked whether they use the masks and lengths that they get."""

from __future__ import annotations

import pytest
import torch
from luff.torch.evidence._ignored_masks import mask_question
from luff.torch.evidence._places import evaluate
from torch import nn

ROWS, LENGTH, WIDTH = 10, 8, 16
LENGTHS = torch.tensor([8, 3, 5, 4, 6, 2, 7, 5, 3, 4])
MASK = torch.arange(LENGTH)[None] < LENGTHS[:, None]


def ids(padding=0):
    drawn = torch.randint(1, 20, (ROWS, LENGTH), generator=torch.Generator().manual_seed(2))
    return torch.where(MASK, drawn, padding)


LONG = torch.randint(1, 20, (ROWS, 3 * LENGTH), generator=torch.Generator().manual_seed(2))
LONG[torch.arange(3 * LENGTH)[None] >= 3 * LENGTHS[:, None]] = 0


def asked(model, *args, **kwargs):
    question = mask_question(lambda: model, args, kwargs)
    return None if question is None else evaluate([], [], [question])


class Encoder(nn.Module):
    """An encoder of padded texts; `uses`: where the mask goes."""

    def __init__(self, uses="", per_place=False, causal=False, dropout=0.1):
        super().__init__()
        torch.manual_seed(1)
        self.uses, self.per_place, self.causal = uses, per_place, causal
        self.words, self.head = nn.Embedding(20, WIDTH, padding_idx=0), nn.Linear(WIDTH, 3)
        self.positions = nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout, batch_first=True)

    def forward(self, x, mask=None):
        ignored = ~mask.bool() if self.uses == "attention" else None
        causal = nn.Transformer.generate_square_subsequent_mask(x.shape[1]) if self.causal else None
        h = self.words(x) if x.dim() == 2 else x
        h = self.layer(h + self.positions, causal, src_key_padding_mask=ignored)
        if self.per_place:
            return self.head(h)
        if self.uses == "attention":
            return self.head((h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))
        return self.head(h.mean(1))


class Recurrent(nn.Module):
    """A recurrent network that gets lengths; `uses`: it packs."""

    def __init__(self, uses):
        super().__init__()
        torch.manual_seed(1)
        self.uses, self.words, self.rnn = uses, nn.Embedding(20, WIDTH), nn.GRU(WIDTH, 8, batch_first=True)

    def forward(self, x, lengths):
        h = self.words(x)
        if self.uses:
            h = nn.utils.rnn.pack_padded_sequence(h, lengths, batch_first=True, enforce_sorted=False)
        return self.rnn(h)[1][0]


class WithLoss(Encoder):
    """Uses the mask for the loss that it computes while it trains."""

    def forward(self, x, mask):
        scores = super().forward(x)
        return {"scores": scores, "loss": (scores.sum(-1) * mask.sum(1)).mean()} if self.training else scores


class Convolution(nn.Module):
    """Ignores its mask, and reads the first places only."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(20, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x, mask):
        return self.head(self.words(x[:, 0]))


class Largest(nn.Module):
    """Takes the largest values of convolutions, which zeros behind a text hardly change; gets lengths as others do."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.words, self.head = nn.Embedding(20, WIDTH, padding_idx=0), nn.Linear(32, 3)
        self.inner = nn.Conv1d(WIDTH, 32, 3, padding=1)

    def forward(self, x, lengths):
        return self.head(torch.relu(self.inner(self.words(x).transpose(1, 2))).amax(-1))


@pytest.mark.parametrize(
    ("model", "args", "kwargs"),
    [
        (Encoder(), (ids(), MASK), {}),
        (Encoder(), (ids(), MASK.long()), {}),
        (Encoder(), (ids(),), {"mask": MASK.float()}),
        (Encoder(), (ids(), ~MASK), {}),
        (Encoder(), (ids(7), MASK[:, None, None]), {}),
        (Encoder(), (torch.randn(ROWS, LENGTH, WIDTH) * MASK[..., None], MASK), {}),
        (Encoder(per_place=True), (ids(), MASK), {}),
        (Recurrent(False), (ids(), LENGTHS), {}),
    ],
)
def test_masks_and_lengths_that_are_ignored_are_seen_where_padding_counts(model, args, kwargs):
    answer = asked(model, *args, **kwargs)
    assert answer["mask"] == ("mask" if kwargs else "1")
    assert answer["padding"] > 0.1
    assert answer["padded_rows"] == 8


@pytest.mark.parametrize(
    ("model", "args"),
    [
        (Encoder("attention"), (ids(), MASK)),
        (Largest(), (LONG, 3 * LENGTHS)),
        (Recurrent(True), (ids(), LENGTHS)),
        (WithLoss(), (ids(), MASK)),
        (Convolution(), (ids(), MASK)),  # padding does not count
        (Encoder(causal=True, per_place=True), (ids(), MASK)),  # likewise: it comes behind
        (Encoder(), (ids(), torch.ones_like(MASK))),  # nothing is padded
        (Encoder(), (ids(), torch.rand(ROWS, LENGTH) < 0.5)),  # masked tokens
        (Encoder(), (torch.randint(1, 20, (ROWS, LENGTH)), MASK.long())),  # segments
        (Encoder(), (ids(), torch.randint(1, 8, (ROWS,)))),  # classes
        (Encoder(), (ids(), torch.randn(ROWS, LENGTH))),
        (Encoder(), (ids(),)),
        (nn.Bilinear(4, 4, 2), (torch.randn(ROWS, 4), torch.randn(ROWS, 4))),
    ],
)
def test_masks_that_are_used_or_mask_no_padding_are_silent(model, args):
    assert asked(model, *args) is None
