"""Models that are asked whether they use their arguments, and whether places of the batch matter to them."""

from __future__ import annotations

import random

import pytest
import torch
from luff.torch.evidence import _evidence, _inputs
from luff.torch.evidence._inputs import _question, evaluate
from test_evidence import told
from torch import nn

SAMPLE = 14
ROWS, LENGTH, WIDTH = 12, 7, 8


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A loaded machine may keep a child waiting for long."""
    monkeypatch.setattr(_evidence, "_WAIT_S", 60.0)


class Denoiser(nn.Module):
    """Takes points and the time at which they are; `closed`: what it makes of the time begins at 0."""

    def __init__(self, uses=True, closed=False):
        super().__init__()
        self.uses = uses
        self.body, self.time, self.head = nn.Linear(2, WIDTH), nn.Linear(1, WIDTH), nn.Linear(WIDTH, 2)
        self.drop, self.norm = nn.Dropout(0.5), nn.BatchNorm1d(WIDTH)
        if closed:
            nn.init.zeros_(self.time.weight)
            nn.init.zeros_(self.time.bias)

    def forward(self, x, t):
        hidden, told_time = self.body(x), self.time(t[:, None])
        return self.head(self.drop(self.norm(hidden + told_time if self.uses else hidden)))


class OnlyInTraining(Denoiser):
    def forward(self, x, t):
        return super().forward(x, t) if self.training else self.head(self.norm(self.body(x)))


class WithItsLoss(Denoiser):
    """Takes the targets, too, and works out its loss."""

    def forward(self, x, t, targets=None):
        output = super().forward(x, t)
        return {"output": output, "loss": None if targets is None else (output - targets).square().mean()}


class Draws(Denoiser):
    def forward(self, x, t):
        return super().forward(x, t) + random.random()


def points(*extra):
    torch.manual_seed(1)
    return (torch.randn(ROWS, 2), torch.rand(ROWS), *extra)


def asked(model, args, kwargs=None, places=True):
    question = _question(lambda: model, args, kwargs or {}, places)
    return None if question is None else evaluate([question])


def test_an_argument_that_is_not_used_is_named():
    answer = asked(Denoiser(uses=False), points())
    assert answer == {"rows": ROWS, "unused": ["t"], "model": "Denoiser"}
    x, t = points()
    assert asked(Denoiser(uses=False), (x,), {"t": t})["unused"] == ["t"]
    assert asked(WithItsLoss(uses=False), points(torch.randn(ROWS, 2)))["unused"] == ["t"]


@pytest.mark.parametrize(
    ("model", "args"),
    [
        (Denoiser(), points()),
        (Denoiser(closed=True), points()),  # a gate that is still closed
        (OnlyInTraining(), points()),
        (WithItsLoss(), points(torch.randn(ROWS, 2))),
        (Denoiser(uses=False), (points()[0], torch.ones(ROWS))),  # the same for all rows
    ],
)
def test_arguments_that_are_used_or_that_tell_nothing_are_silent(model, args):
    answer = asked(model, args)
    assert answer is not None
    assert answer == {"rows": ROWS, "asked": True}


def test_numbers_of_rows_may_be_left_unused():
    class Indexed(Denoiser):
        def forward(self, x, rows):
            return self.head(self.body(x))

    answer = asked(Indexed(), (points()[0], torch.randperm(1000)[:ROWS]))
    assert answer == {"rows": ROWS, "asked": True}


def test_what_a_pass_leaves_on_the_model_is_a_result():
    class Keeps(Denoiser):
        def forward(self, x, t):
            output = self.head(self.body(x))
            self.losses = [(output.mean(1) - t).square().mean()]
            return output

    assert asked(Keeps(), points()) == {"rows": ROWS, "asked": True}


def test_lengths_may_be_left_unused():
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(20, WIDTH), nn.Linear(WIDTH, 3)

        def forward(self, ids, lengths):
            return self.head((self.table(ids) * (ids > 0)[..., None]).sum(1))

    lengths = torch.tensor([LENGTH, *range(3, LENGTH), *range(3, LENGTH)] + [4] * 20)[:ROWS]
    assert asked(Pooled(), (ids(), lengths)) == {"rows": ROWS, "asked": True}


def test_models_that_draw_elsewhere_give_no_answer():
    assert asked(Draws(uses=False), points()) is None


def test_the_weights_of_large_models_are_not_copied(monkeypatch):
    monkeypatch.setattr(_inputs, "_MOST_BYTES", 100)
    assert asked(Denoiser(uses=False), points()) is None


def test_one_argument_or_few_rows_are_not_asked():
    assert asked(nn.Linear(2, 2), (points()[0],)) is None
    assert asked(Denoiser(uses=False), tuple(one[:4] for one in points())) is None


class Attending(nn.Module):
    """Adds positions along the sequence, or along the batch, as the encoding for (length, batch, width) does."""

    def __init__(self, along=1, batch_first=True, causal=False):
        super().__init__()
        self.along, self.batch_first, self.causal = along, batch_first, causal
        self.table, self.places = nn.Embedding(20, WIDTH), nn.Embedding(64, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=batch_first)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, ids):
        places = self.places(torch.arange(ids.shape[self.along]))
        hidden = self.table(ids) + (places[None] if self.along == 1 else places[:, None])
        length = ids.shape[1 if self.batch_first else 0]
        mask = nn.Transformer.generate_square_subsequent_mask(length) if self.causal else None
        hidden = self.layer(hidden, mask)
        return self.head(hidden if self.causal else hidden.mean(1 if self.batch_first else 0))


def ids(rows=ROWS, length=LENGTH):
    return torch.randint(0, 20, (rows, length), generator=torch.Generator().manual_seed(3))


def test_positions_along_the_batch_are_seen():
    answer = asked(Attending(along=0), (ids(),))
    assert answer["rows"] == ROWS
    assert answer["answers"] == ROWS
    assert answer["placed"] > 0.1


class Sensors(Attending):
    """Knows its samples by their places: the same sensors in each batch."""

    def __init__(self):
        super().__init__()
        self.sensors = nn.Embedding(64, WIDTH)

    def forward(self, ids):
        places = self.places(torch.arange(ids.shape[1]))
        hidden = self.table(ids) + places + self.sensors(torch.arange(len(ids)))[:, None]
        return self.head(self.layer(hidden).mean(1))


@pytest.mark.parametrize(
    "model",
    [
        Sensors(),
        Attending(),
        Attending(causal=True),
        Attending(along=0, batch_first=False, causal=True),  # the first axis is time
    ],
)
def test_positions_along_the_sequence_are_silent(model):
    answer = asked(model, (ids(),))
    assert answer is None or "placed" not in answer


def test_an_answer_for_each_place_or_for_the_last_is_seen_too():
    class Places(Attending):
        def forward(self, ids):
            hidden = self.table(ids) + self.places(torch.arange(len(ids)))[:, None]
            return self.head(self.layer(hidden))

    class Last(Places):
        def forward(self, ids):
            return super().forward(ids)[:, -1]

    assert asked(Places(), (ids(),))["answers"] == ROWS
    assert asked(Last(), (ids(),))["answers"] == ROWS


def test_a_batch_as_long_as_its_rows_is_not_asked():
    assert asked(Attending(along=0), (ids(LENGTH + 1, LENGTH + 1),)) is None


def test_halves_of_a_batch_that_are_treated_in_their_own_way_give_few_answers():
    class Halves(Attending):
        def forward(self, ids):
            output = self.head(self.layer(self.table(ids)).mean(1))
            return torch.cat([output[: ROWS // 2], output[ROWS // 2 :] + 1])

    assert asked(Halves(), (ids(),))["answers"] == 2


def train(hook, model, given, steps=6):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        model(*given()).square().mean().backward()
        optimizer.step()
    hook.close()


def test_a_training_goes_on_as_it_is(watched):
    hook, session = watched({SAMPLE})
    model = Denoiser(uses=False)
    weights = []

    def given():
        weights.append(model.body.weight.detach().clone())
        return torch.randn(ROWS, 2), torch.rand(ROWS)

    train(hook, model, given)
    (event,) = told(session, "inputs")
    assert event["step"] == 2
    assert event["unused"] == ["t"]
    assert model.training
    assert float((weights[3] - weights[2]).abs().max()) < 0.1  # the noise was the child's


def test_an_argument_is_asked_about_twice_and_places_once(watched):
    hook, session = watched({SAMPLE})
    train(hook, Denoiser(uses=False), lambda: (torch.randn(ROWS, 2), torch.rand(ROWS)), steps=70)
    # A child of a loaded machine may have been ended.
    assert {event["step"] for event in told(session, "inputs")} <= {2, 64}


def test_places_are_asked_about_once(watched):
    hook, session = watched({SAMPLE})
    train(hook, Attending(along=0), lambda: (torch.randint(0, 20, (ROWS, LENGTH)),), steps=70)
    assert len(told(session, "inputs")) <= 1


def test_a_signature_that_models_share_is_silent():
    class Linear(Denoiser):
        def forward(self, x, t):
            return self.head(self.body(x))

    assert asked(Linear(), points()) == {"rows": ROWS, "asked": True}


def test_models_of_one_argument_without_attention_start_no_child(watched):
    hook, session = watched({SAMPLE})
    train(hook, nn.Sequential(nn.Linear(4, 4), nn.ReLU()), lambda: (torch.randn(ROWS, 4),))
    assert told(session, "inputs") == []
