"""Models that are asked whether the order of the batch matters to them."""

from __future__ import annotations

import pytest
import torch
from luff.torch.evidence._orders import order_question
from luff.torch.evidence._places import evaluate, of_each
from torch import nn
from torch.nn import functional as F

SAMPLE = 14
ROWS, LENGTH, WIDTH = 12, 7, 5


def asked(model, *args, **kwargs):
    question = order_question(lambda: model, args, kwargs)
    return None if question is None else evaluate([], [question])


def cause(model, *args, **kwargs):
    return (asked(model, *args, **kwargs) or {}).get("of")


def drawn(*shape, seed=3):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Model(nn.Module):
    """A model with one function between two layers."""

    def __init__(self, between, out=3):
        super().__init__()
        torch.manual_seed(1)
        self.inner, self.head, self.between = nn.Linear(WIDTH, 8), nn.Linear(8, out), between

    def forward(self, x, *others):
        return self.head(self.between(torch.relu(self.inner(x)), *others))


def edges(count, batch=1):
    """All edges of a graph, or of each graph of a batch."""
    one = (torch.ones(count, count) - torch.eye(count)).nonzero().T
    return torch.cat([one + graph * count for graph in range(batch)], 1)


def message(h, batch):
    """A layer of messages for graphs of a batch, whose nodes lie in one row; `batch`: how many have edges."""
    rows, nodes, width = h.shape
    source, target = edges(nodes, batch)
    flat = h.reshape(-1, width)
    return (flat.index_add(0, target, flat[source]) / nodes).view(rows, nodes, width).max(1)[0]


def positions(count, width=8):
    return torch.sin(torch.arange(count)[:, None] * torch.arange(1, width + 1)[None] * 0.3)


class OverSamples(nn.Module):
    """A recurrent network that takes the rows of a batch of vectors for the places of one sequence."""

    def __init__(self, kind=nn.LSTM):
        super().__init__()
        torch.manual_seed(1)
        self.rnn, self.head = kind(WIDTH, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.rnn(x)[0])


class Steps(nn.Module):
    """Takes the step of a diffusion of the first sample for that of all."""

    def __init__(self, first):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.inner = first, nn.Sequential(nn.Linear(WIDTH + 1, 8), nn.Tanh(), nn.Linear(8, WIDTH))

    def forward(self, x, t):
        scale = (t[0] if self.first else t[:, None]) / 10 + torch.zeros(len(x), 1)
        return self.inner(torch.cat([x, scale], 1))


def test_edges_without_the_offsets_of_the_batch_are_seen():
    answer = asked(Model(lambda h: message(h, 1)), drawn(ROWS, LENGTH, WIDTH))
    assert (answer["of"], answer["groups"], answer["alone"], answer["order_rows"]) == ("place", 2, 0, ROWS)
    answer = asked(Model(lambda h: message(h, 1)), drawn(60, LENGTH, WIDTH))
    assert (answer["of"], answer["order_rows"]) == ("place", 16)
    assert asked(Model(lambda h: message(h, len(h))), drawn(ROWS, LENGTH, WIDTH)) == {"asked": True}


def test_positions_along_the_batch_are_seen_without_attention():
    answer = asked(Model(lambda h: h + positions(len(h))), drawn(ROWS, WIDTH))
    assert (answer["of"], answer["groups"], answer["alone"]) == ("place", ROWS, -1)
    assert (
        cause(Model(lambda h: (h + positions(len(h))[:, None]).mean(1)), drawn(ROWS, LENGTH, WIDTH))
        == "place"
    )
    right = Model(lambda h: (h + positions(h.shape[1])).amax(1))
    assert asked(right, drawn(ROWS, LENGTH, WIDTH)) == {"asked": True}


@pytest.mark.parametrize(
    "between",
    [
        lambda h: h.cumsum(0),
        lambda h: h.cumsum(0) / torch.arange(1, len(h) + 1)[:, None],
        lambda h: h + h.roll(1, 0),
        lambda h: torch.cat([h[:1], h[1:] - h[:-1]]),
        lambda h: h.reshape(8, -1).T.reshape(len(h), 8),
        lambda h: F.conv1d(h.T[None], torch.ones(8, 8, 3), padding=1)[0].T / 9,  # along the samples
        lambda h: (h @ h.T).tril().softmax(-1) @ h,  # a causal mask over samples
    ],
)
def test_axes_of_the_batch_that_are_worked_along_are_seen(between):
    assert cause(Model(between), drawn(ROWS, WIDTH)) == "others"


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrence_over_the_samples_is_seen(kind):
    assert cause(OverSamples(kind), drawn(ROWS, WIDTH)) == "others"


def test_what_is_taken_of_the_first_sample_for_all_is_seen():
    t = torch.randint(0, 10, (ROWS,), generator=torch.Generator().manual_seed(1))
    answer = asked(Steps(first=True), drawn(ROWS, WIDTH), t)
    assert (answer["of"], answer["alone"]) == ("one", 0)
    assert asked(Steps(first=False), drawn(ROWS, WIDTH), t) == {"asked": True}
    assert cause(Model(lambda h: h * h[0]), drawn(ROWS, WIDTH)) in ("one", "others")


class Experts(nn.Module):
    """A mixture of experts with room for a few samples each: later ones are dropped, as is meant."""

    def __init__(self, room):
        super().__init__()
        torch.manual_seed(1)
        self.gate, self.experts = (
            nn.Linear(WIDTH, 3),
            nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3)),
        )
        self.room = room

    def forward(self, x):
        chosen = self.gate(x).argmax(-1)
        out = x.clone()
        for number, expert in enumerate(self.experts):
            places = (chosen == number).nonzero().flatten()[: self.room]
            out = out.index_add(0, places, expert(x[places]))
        return out


class Members(nn.Module):
    """An ensemble, each of whose members has a part of the batch; `joint`: of inputs that are put together."""

    def __init__(self, joint=False):
        super().__init__()
        torch.manual_seed(1)
        self.joint, self.scales = joint, nn.Parameter(torch.randn(3, WIDTH))
        self.inner = nn.Linear(3 * WIDTH if joint else WIDTH, 3 * WIDTH if joint else WIDTH)

    def forward(self, x):
        if not self.joint:
            return self.inner(x * self.scales.repeat_interleave(len(x) // 3, 0))
        parts = x.view(3, len(x) // 3, WIDTH).transpose(0, 1).reshape(len(x) // 3, -1)
        return self.inner(parts).view(len(x) // 3, 3, WIDTH).transpose(0, 1).reshape(len(x), WIDTH)


class Carried(nn.Module):
    """Keeps a state for each place from call to call."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.cell, self.state = nn.GRUCell(WIDTH, 8), None

    def forward(self, x):
        self.state = self.cell(x, self.state).detach()
        return self.state


class Given(nn.Module):
    """Has its condition from an attribute."""

    def __init__(self, given):
        super().__init__()
        torch.manual_seed(1)
        self.given, self.inner = given, nn.Linear(WIDTH, 3)

    def forward(self, x):
        return self.inner(x * self.given)


class Packed(nn.Module):
    """Takes sequences that are sorted by their lengths."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(WIDTH, 8, batch_first=True)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return self.rnn(packed)[1][0]


class Hidden(nn.Module):
    """A recurrent network whose state comes and goes; with time first."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.rnn = nn.GRU(WIDTH, 8)

    def forward(self, h, x):
        return self.rnn(x, h)[1].transpose(0, 1)


class Joint(nn.Module):
    """Looks at all samples on purpose, whatever their order."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.attention, self.norm = (
            nn.MultiheadAttention(WIDTH, 1),
            nn.BatchNorm1d(WIDTH, track_running_stats=False),
        )
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x):
        h = self.norm(x)
        return self.head(h + self.attention(h, h, h)[0] + F.softmax(h, 0))


class Similar(nn.Module):
    """Answers with the similarities of all pairs of samples, as CLIP does."""

    def __init__(self, give):
        super().__init__()
        torch.manual_seed(1)
        self.inner, self.give = nn.Linear(WIDTH, 8), give

    def forward(self, x):
        h = F.normalize(self.inner(x), dim=-1)
        return self.give(h @ h.T)


class Classes(nn.Module):
    """Compares samples with the means of classes, each of which has four examples."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.inner = nn.Linear(WIDTH, 8)

    def forward(self, examples, x):
        return -torch.cdist(self.inner(x), self.inner(examples).reshape(ROWS // 4, 4, -1).mean(1))


HALVES = torch.tensor([1.0, 2.0]).repeat_interleave(ROWS // 2)[:, None]
X = drawn(ROWS, WIDTH)
SILENT = {
    "experts": (Experts(2), (X,)),
    "experts_of_one": (Experts(1), (X,)),
    "members": (Members(), (X,)),
    "joint_members": (Members(joint=True), (X,)),
    "two_domains": (Model(lambda h: h * HALVES), (X,)),
    "pairs": (
        Model(
            lambda h: (
                torch.cat([h[::2] - h[1::2], h[1::2] - h[::2]])
                .view(2, -1, 8)
                .transpose(0, 1)
                .reshape(len(h), 8)
            )
        ),
        (X,),
    ),
    "guided": (Model(lambda h: (2 * h.chunk(2)[0] - h.chunk(2)[1]).repeat(2, 1)), (X,)),
    "examples": (Model(lambda h: torch.cat([h[:8], h[8:] - (h[8:] @ h[:8].T).softmax(1) @ h[:8]])), (X,)),
    "two_views": (Model(lambda h: torch.stack(h.chunk(2)).mean(0)), (X,)),
    "state": (Carried(), (X,)),
    "given_mask": (Given(drawn(ROWS, 1)), (X,)),
    "given_heads": (Given(drawn(2 * ROWS, WIDTH)[:ROWS]), (X,)),
    "learnt_places": (Given(nn.Parameter(drawn(ROWS, 1))), (X,)),
    "packed": (Packed(), (drawn(ROWS, LENGTH, WIDTH), torch.tensor([7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2]))),
    "hidden": (Hidden(), (drawn(1, ROWS, 8), drawn(LENGTH, ROWS, WIDTH))),
    "joint": (Joint(), (X,)),
    "one_graph": (Model(lambda h, e: h.index_add(0, e[1], h[e[0]])), (X, edges(ROWS))),
    "adjacency": (Model(lambda h, a: a @ h), (X, torch.eye(ROWS).roll(1, 0))),
    "noise": (Model(lambda h: h + torch.randn_like(h)), (X,)),
    "index": (Model(lambda h, i: h * (1 + i[:, None])), (X, torch.arange(ROWS))),
    "lists": (
        Model(lambda h, i: h * torch.stack(i)[:, None]),
        (X, [torch.tensor(1.0 + i) for i in range(ROWS)]),
    ),
    "heads": (Model(lambda h, m: h * m[::2]), (X, drawn(2 * ROWS, 1))),
    "one_batch": (Model(lambda h: h + positions(len(h))), (drawn(4, WIDTH),)),
    "zero": (Model(lambda h: 0 * h), (X,)),
    "object": (
        Model(lambda h, g: h + g.places),
        (X, type("G", (), {"places": drawn(ROWS, 1)})()),
    ),
    "similarities": (Similar(lambda pairs: (pairs, pairs.T)), (X,)),
    "other_pairs": (
        Similar(lambda pairs: pairs[~torch.eye(len(pairs), dtype=torch.bool)].view(len(pairs), -1)),
        (X,),
    ),
    "examples_of_classes": (Classes(), (X, drawn(ROWS, WIDTH))),
    "plain": (
        nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 2)),
        (X,),
    ),
    "image": (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)),
        (drawn(ROWS, 3, 8, 8),),
    ),
}


@pytest.mark.parametrize("name", SILENT)
def test_models_whose_batch_may_stand_in_any_order_or_has_places_are_silent(name):
    model, args = SILENT[name]
    answer = asked(model, *args)
    assert answer is None or answer == {"asked": True}


class Lazy(nn.LazyLinear):
    """Not one of torch's own classes."""


def test_what_has_no_sizes_is_not_asked():
    lazy, plain = Model(F.relu), Model(F.relu)
    lazy.lazy = Lazy(3)
    calls = [(lambda: lazy, (X,), {}), (lambda: plain, (X,), {})]
    assert [order.model for order in of_each(calls, order_question)] == [plain]
