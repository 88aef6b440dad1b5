"""Models of padded rows, which are asked whether their answers depend on the padding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from luff.torch.evidence import _evidence
from luff.torch.evidence._padding import _Question, evaluate, lengths_of
from test_evidence import told
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

SAMPLE = 14
ROWS, WORDS, WIDTH = 12, 30, 16
CHANGE = 1.0  # of SampleMixing


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A loaded machine may keep a child waiting for long."""
    monkeypatch.setattr(_evidence, "_WAIT_S", 60.0)


class Model(nn.Module):
    def __init__(self, padding_idx=0):
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH, padding_idx=padding_idx)
        self.rnn = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, 3)
        self.norm = nn.LayerNorm(WIDTH)


class Mean(Model):
    def forward(self, ids):
        return self.head(torch.relu(self.table(ids)).mean(1))


class MaskedMean(Model):
    def forward(self, ids):
        mask = (ids != 0)[..., None]
        return self.head((torch.relu(self.table(ids)) * mask).sum(1) / mask.sum(1))


class MaskIsAnArgument(Model):
    def forward(self, ids, mask):
        return self.head((self.table(ids) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


class Last(Model):
    def forward(self, ids):
        return self.head(self.rnn(self.table(ids))[0][:, -1])


class Packed(Model):
    def forward(self, ids, lengths):
        packed = pack_padded_sequence(self.table(ids), lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.rnn(packed)[1][0])


class Attention(Model):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True)

    def forward(self, ids):
        hidden = self.layer(self.table(ids), src_key_padding_mask=ids == 0)
        return self.head(hidden[:, 0])


class Convolution(Model):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, ids):
        return self.head(torch.relu(self.conv(self.table(ids).transpose(1, 2))).amax(2))


class Sums(Model):
    """Padding has a vector of zeros, which adds nothing."""

    def forward(self, ids):
        return self.head(self.table(ids).sum(1))


def batch(seed, padding=0, shortest=3):
    generator = torch.Generator().manual_seed(seed)
    length = 10 + seed % 3
    ids = torch.randint(1, WORDS - 1, (ROWS, length), generator=generator)
    lengths = torch.randint(shortest, length - 2, (ROWS,), generator=generator)
    lengths[0] = length
    for row, end in enumerate(lengths):
        ids[row, end:] = padding
    return ids, lengths, torch.randint(0, 3, (ROWS,), generator=generator)


def train(model, given=lambda ids, lengths: (ids,), steps=6, **kind):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for seed in range(steps):
        ids, lengths, labels = batch(seed, **kind)
        optimizer.zero_grad()
        nn.CrossEntropyLoss()(model(*given(ids, lengths)), labels).backward()
        optimizer.step()


@pytest.mark.parametrize("make", [Mean, Last])
def test_a_model_that_reads_the_padding_says_so(watched, make):
    hook, session = watched({SAMPLE})
    model = make()
    before = torch.get_rng_state()
    train(model)
    hook.close()
    (event,) = told(session, "padding")
    assert event["step"] == 2
    assert event["rows"] == 8
    assert event["change"] > CHANGE
    assert event["shortest"] < event["length"] - 2
    assert torch.equal(before, torch.get_rng_state())
    assert model.training


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (MaskedMean, lambda ids, lengths: (ids,)),
        (MaskIsAnArgument, lambda ids, lengths: (ids, ids != 0)),
        (Packed, lambda ids, lengths: (ids, lengths)),
        (Attention, lambda ids, lengths: (ids,)),
        (Sums, lambda ids, lengths: (ids,)),
    ],
)
def test_a_model_that_leaves_padding_out_says_that_it_does(watched, make, given):
    hook, session = watched({SAMPLE})
    train(make(), given)
    hook.close()
    (event,) = told(session, "padding")
    assert event["change"] < 1e-3


class Pair(Model):
    """Says how two texts go together."""

    def __init__(self, masked):
        super().__init__()
        self.masked, self.both = masked, nn.Linear(3 * WIDTH, 3)

    def forward(self, one, other, types):
        vectors = []
        for ids in (one, other):
            mask = (ids != 0)[..., None] if self.masked else torch.ones_like(ids)[..., None]
            hidden = torch.relu(self.table(ids) + types[..., None])
            vectors.append((hidden * mask).sum(1) / mask.sum(1))
        return self.both(torch.cat([*vectors, vectors[0] * vectors[1]], 1))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("second", ["longer", "whole", "mixed"])
def test_a_second_text_is_not_cut_to_the_length_of_the_first(second, seed):
    torch.manual_seed(seed)
    ids, _, _ = batch(2)
    other = ids[torch.randperm(ROWS)]
    if second != "mixed":
        width = ids.shape[1]
        other = torch.randint(1, WORDS - 1, ids.shape)
        other[1:, width - 1 if second == "longer" else width :] = 0
    question = _Question(
        Pair(True), (ids, other, torch.zeros_like(ids)), {}, tuple(ids.shape), lengths_of(ids.numpy(), 0)
    )
    answer = evaluate([question])
    assert answer is None or answer["change"] < 1e-3
    assert (answer is not None) == (second == "mixed")


def test_two_texts_of_one_length_whose_padding_counts_say_so():
    torch.manual_seed(0)
    ids, _, _ = batch(2)
    other = ids.where(ids == 0, ids.flip(0).clamp(min=1))
    question = _Question(
        Pair(False), (ids, other, torch.zeros_like(ids)), {}, tuple(ids.shape), lengths_of(ids.numpy(), 0)
    )
    answer = evaluate([question])
    assert answer is not None
    assert answer["change"] > CHANGE


@pytest.mark.parametrize(
    "beside",
    [
        lambda ids: torch.randn(ids.shape),  # a number for each place, by chance or not
        lambda ids: torch.arange(ids.shape[1]).expand(ids.shape),  # its place
        lambda ids: (torch.arange(ids.shape[1]) % 2).expand(ids.shape),  # 0 among others
    ],
)
def test_values_that_go_on_behind_the_padding_leave_the_question_out(beside):
    class Beside(Model):
        def forward(self, ids, values):
            mask = (ids != 0)[..., None]
            pooled = (torch.relu(self.table(ids)) * mask).sum(1) / mask.sum(1)
            return self.head(pooled) + 9 * values.float().cumsum(1).mean(1, keepdim=True)

    ids, _, _ = batch(2)
    question = _Question(Beside(), (ids, beside(ids)), {}, tuple(ids.shape), lengths_of(ids.numpy(), 0))
    assert evaluate([question]) is None


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (Convolution, {}),  # the end of a row is not like its middle
        (Mean, {"padding": WORDS - 1}),  # an id that no table takes for padding
        (Mean, {"shortest": 7}),  # hardly any padding: see below
    ],
)
def test_models_with_convolutions_and_rows_that_are_not_padded_are_not_asked(watched, make, kind):
    hook, session = watched({SAMPLE})
    if "shortest" in kind:  # all rows are as long as their batch, or one shorter
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for seed in range(6):
            ids = torch.randint(1, WORDS, (ROWS, 9), generator=torch.Generator().manual_seed(seed))
            ids[:4, -1] = 0
            optimizer.zero_grad()
            model(ids).square().mean().backward()
            optimizer.step()
    else:
        train(make(), **kind)
    hook.close()
    assert told(session, "padding") == []


def test_a_padding_of_another_id_is_known_by_the_table(watched):
    hook, session = watched({SAMPLE})
    train(Mean(padding_idx=WORDS - 1), padding=WORDS - 1)
    hook.close()
    (event,) = told(session, "padding")
    assert event["change"] > CHANGE


def test_models_that_answer_for_each_place_or_take_one_length_give_no_answer(watched):
    class Places(Model):
        def forward(self, ids):
            return self.head(self.rnn(self.table(ids))[0])[:, :, 0]

    class Strict(Model):
        def forward(self, ids):
            if ids.shape[1] < 10:
                raise ValueError("another length")
            return self.head(self.table(ids).mean(1))

    for model in (Places(), Strict()):
        hook, session = watched({SAMPLE})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for seed in range(6):
            optimizer.zero_grad()
            model(batch(seed)[0]).square().mean().backward()
            optimizer.step()
        hook.close()
        assert told(session, "padding") == []
        assert told(session, "hook_error") == []


def test_calls_are_kept_at_two_steps_only_and_never_without_training(watched):
    hook, _ = watched({SAMPLE})
    model = Mean()
    with torch.no_grad():
        model(batch(0)[0])
    assert hook.machine.evidence.padding._calls == []
    train(model)
    assert hook.machine.evidence.padding._calls == []


class Looks(Model):
    """Attention that is written by hand."""

    def __init__(self, mask, heads=1):
        super().__init__()
        self.mask, self.heads = mask, heads

    def forward(self, ids):
        hidden = self.table(ids) + 0.1
        keys = hidden.unflatten(2, (self.heads, -1)).transpose(1, 2)
        scores = self.mask(keys @ keys.transpose(2, 3), (ids == 0)[:, None, None])
        return self.head((scores.softmax(-1) @ keys).transpose(1, 2).flatten(2)[:, 0])


@pytest.mark.parametrize("heads", [1, 4])
def test_attention_that_looks_at_the_padding_only_is_told(watched, heads):
    hook, session = watched({SAMPLE})
    train(Looks(lambda scores, pads: scores.masked_fill(~pads, -1e9), heads))
    hook.close()
    (event,) = told(session, "padded_attention")
    assert event["layers"] == 1
    assert event["rows"] >= 8


def test_attention_of_torch_with_the_mask_turned_is_told(watched):
    class Torch(Model):
        def __init__(self, turned):
            super().__init__()
            self.turned, self.looks = turned, nn.MultiheadAttention(WIDTH, 4, batch_first=True)

        def forward(self, ids):
            hidden = self.table(ids) + 0.1
            pads = ids != 0 if self.turned else ids == 0
            mask = torch.zeros(pads.shape).masked_fill(pads, -1e9)
            return self.head(self.looks(hidden, hidden, hidden, key_padding_mask=mask)[0][:, 0])

    for turned in (True, False):
        hook, session = watched({SAMPLE})
        train(Torch(turned))
        hook.close()
        assert len(told(session, "padded_attention")) == int(turned)


@pytest.mark.parametrize(
    "mask",
    [
        lambda scores, pads: scores.masked_fill(pads, -1e9),
        lambda scores, pads: scores,  # none
        lambda scores, pads: scores + pads * 1.0,  # a little more of the padding
        lambda scores, pads: scores.masked_fill(~pads, -6.0),  # hardly anything of the words
    ],
)
def test_attention_that_looks_at_words_is_not(watched, mask):
    hook, session = watched({SAMPLE})
    train(Looks(mask))
    hook.close()
    assert told(session, "padded_attention") == []


def test_lengths_without_padding():
    rows = np.array([[5, 6, 7, 8, 9], [5, 6, 7, 0, 0], [5, 0, 0, 0, 0], [1, 2, 0, 0, 0]])
    assert lengths_of(rows, 0) == [5, 3, 1, 2]
    assert lengths_of(rows, 9) is None
    assert lengths_of(rows[:, ::-1], 0) is None  # padded in front
    assert lengths_of(np.array([[5, 0, 7, 8], [5, 6, 0, 0]]), 0) is None  # an id as any other
    assert lengths_of(np.zeros((4, 5), int), 0) is None
    assert lengths_of(np.array([[5, 6, 0, 0]] * 4), 0) is None  # a field of its own
    assert lengths_of(np.array([[5, 6, 7, 0], [5, 6, 7, 8]]), 0) is None  # one place
