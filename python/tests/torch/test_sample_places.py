"""Models that are asked whether places of the batch matter to them."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from luff.torch.evidence import _evidence
from luff.torch.evidence._places import Places, _question, evaluate
from test_evidence import told
from torch import nn

SAMPLE = 14
ROWS, LENGTH, WIDTH = 12, 7, 8


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A loaded machine may keep a child waiting for long."""
    monkeypatch.setattr(_evidence, "_WAIT_S", 60.0)


def asked(model, args, kwargs=None):
    question = _question(lambda: model, args, kwargs or {})
    return None if question is None else evaluate([question])


class Attending(nn.Module):
    """Adds positions along the sequence, or along the batch, as the encoding for (length, batch, width) does."""

    def __init__(self, along=1, batch_first=True, causal=False):
        super().__init__()
        self.along, self.batch_first, self.causal = along, batch_first, causal
        self.table = nn.Embedding(20, WIDTH)
        self.register_buffer("encoding", torch.randn(64, WIDTH))
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=batch_first)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, ids):
        places = self.encoding[: ids.shape[self.along]]
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
        hidden = (
            self.table(ids) + self.encoding[: ids.shape[1]] + self.sensors(torch.arange(len(ids)))[:, None]
        )
        return self.head(self.layer(hidden).mean(1))


class Team(Attending):
    """Agents that look at entities without an order; `most`: rows of the table, or of places that are given."""

    def __init__(self, most, learnt=True):
        super().__init__()
        agents = torch.randn(most, WIDTH)
        if learnt:
            self.agents = nn.Parameter(agents)
        else:
            self.register_buffer("agents", agents)

    def forward(self, ids):
        hidden = self.table(ids) + self.agents[: len(ids), None]
        return self.head(self.layer(hidden).mean(1))


class TeamOfATable(Attending):
    """Likewise, with an embedding that has room for more agents than there are."""

    def __init__(self):
        super().__init__()
        self.agents = nn.Embedding(64, WIDTH)

    def forward(self, ids):
        hidden = self.table(ids) + self.agents(torch.arange(len(ids)))[:, None]
        return self.head(self.layer(hidden).mean(1))


@pytest.mark.parametrize("model", [Team(ROWS), Team(ROWS, learnt=False), Team(3 * ROWS), TeamOfATable()])
def test_sets_that_are_known_by_their_places_are_silent(model):
    answer = asked(model, (ids(),))
    assert answer is None or answer == {"rows": ROWS, "asked": True}


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
            hidden = self.table(ids) + self.encoding[: len(ids), None]
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
    model = Attending(along=0)
    weights = []

    def given():
        weights.append(model.head.weight.detach().clone())
        return (ids(),)

    train(hook, model, given)
    (event,) = told(session, "places")
    assert event["step"] == 2
    assert event["answers"] == ROWS
    assert model.training
    assert float((weights[3] - weights[2]).abs().max()) < 0.1  # what changed tables was the child


def test_places_are_asked_about_at_two_steps_at_most():
    places = Places()
    places.begins(1)
    assert not places.due
    for step in (2, 64):
        places.begins(step)
        assert places.due
    places.answered = True
    places.begins(64)
    assert not places.due


def test_arguments_of_a_step_without_a_backward_pass_are_not_kept(watched):
    hook, session = watched({SAMPLE})
    model = Attending()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        model(ids()).square().mean().backward()
        optimizer.step()
    given = ids()
    kept = weakref.ref(given)
    model(given)
    del given
    hook.close()
    gc.collect()
    assert kept() is None
    assert told(session, "places") == []


class Half(nn.Module):
    """Takes features by an index, which the graph does not tell from a choice of samples."""

    def forward(self, h):
        return h[:, torch.arange(2)]


def test_models_without_attention_are_only_asked_for_their_order(watched):
    hook, session = watched({SAMPLE})
    model = nn.Sequential(nn.Linear(4, 4), Half())
    train(hook, model, lambda: (torch.randn(ROWS, 4),))
    (event,) = told(session, "places")
    assert event == {"kind": "places", "step": 2, "asked": True}
