"""Models that share something out among the samples of a batch: the event `mixing` with `of`."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from luff.torch.evidence import _evidence
from test_evidence import told
from torch import nn

SAMPLE = 14
ROWS, PLACES, WIDTH = 8, 5, 6


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A loaded machine may keep a child waiting for long."""
    monkeypatch.setattr(_evidence, "_WAIT_S", 60.0)


class Net(nn.Module):
    """What a test makes of inputs and scores goes into a layer of its own."""

    def __init__(self, inside, width=WIDTH, classes=3):
        super().__init__()
        self.inside = inside
        self.score, self.one, self.body = (
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, 1),
            nn.Linear(WIDTH, WIDTH),
        )
        self.memory, self.head = nn.Parameter(torch.randn(WIDTH, WIDTH)), nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.inside(self, x))


def pooled(axis):
    return lambda net, x: (net.one(x).softmax(axis) * net.body(x)).sum(1)


def flattened(axis):
    def inside(net, x):
        scores = x @ net.score(x).transpose(1, 2)
        weights = scores.flatten(0, 1).softmax(axis).view_as(scores)
        return (weights @ x).mean(1)

    return inside


def of_hand(axis):
    def inside(net, x):
        raised = net.one(x).squeeze(-1).exp()
        weights = raised / raised.sum(axis, keepdim=True)
        return torch.bmm(weights.unsqueeze(1), net.body(x)).squeeze(1)

    return inside


def scaled(h, by):
    return h / by(h)


def to_a_range(h, axis):
    least = h.amin(axis, keepdim=True)
    return (h - least) / (h.amax(axis, keepdim=True) - least)


def train(model, shape=(ROWS, PLACES, WIDTH), target=(ROWS,), steps=5, prepare=lambda y: y):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for seed in range(steps):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(shape, generator=generator)
        y = prepare(torch.randint(0, 3, target, generator=generator))
        optimizer.zero_grad()
        out = model(x)
        F.cross_entropy(out.flatten(0, -2), y.flatten()).backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("inside", "of"),
    [(pooled(0), "softmax"), (flattened(0), "softmax"), (of_hand(0), "sum")],
    ids=["pooled", "flattened", "hand"],
)
def test_weights_of_places_that_are_shared_out_among_samples(watched, inside, of):
    hook, session = watched({SAMPLE})
    model = Net(inside)
    before = torch.get_rng_state()
    train(model)
    hook.close()
    (event,) = told(session, "mixing")
    assert (event["of"], event["weighs"], event["rows"]) == (of, True, ROWS)
    assert event["across"] > 1e-3
    assert torch.equal(before, torch.get_rng_state())


def test_memory_is_read_with_weights_of_the_batch(watched):
    hook, session = watched({SAMPLE})
    train(Net(lambda net, x: net.score(x).softmax(0) @ net.memory), shape=(ROWS, WIDTH))
    hook.close()
    (event,) = told(session, "mixing")
    assert event["weighs"] is True and event["across"] > 1e-3


def test_targets_of_places_in_one_row(watched):
    def inside(net, x):
        weights = (net.body(x) @ net.score(x).transpose(1, 2)).softmax(0)
        return (weights @ x)[:, 1:]

    hook, session = watched({SAMPLE})
    train(Net(inside), target=(ROWS, PLACES - 1), prepare=lambda y: y.t().contiguous().t().reshape(-1))
    hook.close()
    (event,) = told(session, "mixing")
    assert event["rows"] == ROWS and event["across"] > 1e-3


@pytest.mark.parametrize(
    ("inside", "of"),
    [
        (lambda net, x: F.normalize(net.body(x), dim=0), "norm"),
        (lambda net, x: net.score(x).softmax(0) * x, "softmax"),
        (lambda net, x: (net.one(x).softmax(0) * x).sum(0) + x, "softmax"),
        (lambda net, x: scaled(net.body(x), lambda h: h.amax(0)), "max"),
        (lambda net, x: scaled(net.body(x), lambda h: h.abs().max(0, keepdim=True)[0] + 1e-6), "max"),
        (lambda net, x: to_a_range(net.body(x), 0), "max"),
    ],
    ids=["norm", "gate", "pooled over rows", "largest", "largest absolute", "range"],
)
def test_rows_that_may_be_places_of_one_sample_are_told_apart(watched, inside, of):
    hook, session = watched({SAMPLE})
    train(Net(inside), shape=(ROWS, WIDTH))
    hook.close()
    (event,) = told(session, "mixing")
    assert (event["of"], event["weighs"]) == (of, False)
    assert event["across"] > 1e-3


class Experts(nn.Module):
    """Slots that get a mixture of places: by shares of each sample's places (axis 1), or of the batch (0)."""

    def __init__(self, axis):
        super().__init__()
        self.slots, self.axis = nn.Parameter(torch.randn(WIDTH, 2, 3)), axis
        self.bodies = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(2)])
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x):
        scores = torch.einsum("bmd,dnp->bmnp", x, self.slots)
        taken = torch.einsum("bmd,bmnp->bnpd", x, scores.softmax(self.axis))
        made = torch.stack([body(taken[:, one]) for one, body in enumerate(self.bodies)], 1)
        given = scores.flatten(2).softmax(-1).view_as(scores)
        return self.head(torch.einsum("bnpd,bmnp->bmd", made, given).mean(1))


@pytest.mark.parametrize("axis", [0, 1])
def test_shares_that_an_einsum_takes(watched, axis):
    hook, session = watched({SAMPLE})
    train(Experts(axis))
    hook.close()
    found = told(session, "mixing")
    assert [(event["of"], event["across"] > 1e-3) for event in found] == [("softmax", True)] * (axis == 0)


@pytest.mark.parametrize("of", ["sum", "norm"])
def test_numbers_over_the_sum_or_length_of_the_whole_batch(watched, of):
    hook, session = watched({SAMPLE})
    by = (lambda h: h.sum()) if of == "sum" else (lambda h: h.norm())
    train(Net(lambda net, x: scaled(net.body(x).exp(), by)), shape=(ROWS, WIDTH))
    hook.close()
    (event,) = told(session, "mixing")
    assert (event["of"], event["whole"], event["weighs"]) == (of, True, False)
    assert event["across"] > 1e-3


@pytest.mark.parametrize(
    "inside",
    [
        lambda net, x: scaled(net.body(x), lambda h: h.abs().max()),  # one scale of numbers of a few bits
        lambda net, x: scaled(net.body(x), lambda h: h.amax(-1, keepdim=True)),
        lambda net, x: to_a_range(net.body(x), -1),
        lambda net, x: (net.body(x) - net.body(x).mean(0)) / net.body(x).std(0),
    ],
    ids=["one scale", "largest of each", "range of each", "statistics"],
)
def test_other_scales_raise_no_question(watched, inside):
    hook, session = watched({SAMPLE})
    train(Net(inside), shape=(ROWS, WIDTH))
    hook.close()
    assert told(session, "mixing") == []


class TimeFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.reads, self.one, self.head = nn.GRU(WIDTH, WIDTH), nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 3)

    def forward(self, x):
        out = self.reads(x)[0]
        return self.head((self.one(out).softmax(0) * out).sum(0))


class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.register_buffer("near", torch.eye(ROWS) + torch.eye(ROWS).roll(1, 0))

    def forward(self, x):
        h = self.body(x)
        weights = (h @ h.t()).masked_fill(self.near == 0, -1e9).softmax(0)
        return self.head(weights.t() @ h)


@pytest.mark.parametrize(
    "inside", [pooled(1), flattened(-1), of_hand(1)], ids=["pooled", "flattened", "hand"]
)
def test_places_and_features_raise_no_question(watched, inside):
    hook, session = watched({SAMPLE})
    train(Net(inside))
    hook.close()
    assert told(session, "mixing") == []


def test_time_first_does_not_mix(watched):
    hook, session = watched({SAMPLE})
    train(TimeFirst(), shape=(PLACES, ROWS, WIDTH))
    hook.close()
    assert all(event["across"] < 1e-6 for event in told(session, "mixing"))


def test_a_graph_whose_rows_are_its_nodes_weighs_them_along_the_same_axis(watched):
    hook, session = watched({SAMPLE})
    train(Graph(), shape=(ROWS, WIDTH))
    hook.close()
    assert all(not event["weighs"] for event in told(session, "mixing"))


class Flow(nn.Module):
    """Moves what nodes have along learnt shares, of which each node gives 1 away."""

    def __init__(self):
        super().__init__()
        self.give, self.take = nn.Parameter(torch.randn(ROWS, 3)), nn.Parameter(torch.randn(ROWS, 3))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x):
        return self.head(x + (self.take @ self.give.t()).softmax(0) @ x)


def test_a_graph_with_parameters_for_each_node_has_no_batch(watched):
    hook, session = watched({SAMPLE})
    train(Flow(), shape=(ROWS, WIDTH))
    hook.close()
    assert told(session, "mixing") == []


def test_a_bag_of_instances_raises_no_question(watched):
    hook, session = watched({SAMPLE})
    train(
        Net(lambda net, x: (net.one(x).softmax(0) * x).sum(0, keepdim=True)), shape=(ROWS, WIDTH), target=(1,)
    )
    hook.close()
    assert told(session, "mixing") == []


def test_a_contrastive_loss_over_the_batch_does_not_make_the_model_mix(watched):
    hook, session = watched({SAMPLE})
    model = nn.Linear(WIDTH, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(5):
        optimizer.zero_grad()
        one, other = model(torch.randn(ROWS, WIDTH)), model(torch.randn(ROWS, WIDTH))
        shares = (one @ other.t()).softmax(0)
        F.nll_loss(shares.t().log(), torch.arange(ROWS)).backward()
        optimizer.step()
    hook.close()
    assert all(event["across"] < 1e-6 for event in told(session, "mixing"))


def test_prototypes_that_the_loss_balances_over_the_batch_do_not_make_the_model_mix(watched):
    hook, session = watched({SAMPLE})
    model = Net(lambda net, x: net.body(x), classes=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(5):
        optimizer.zero_grad()
        scores = model(torch.randn(ROWS, WIDTH))
        balance = scores.softmax(0).mean(1).square().sum()
        (F.cross_entropy(scores, torch.randint(0, 4, (ROWS,))) + balance).backward()
        optimizer.step()
    hook.close()
    assert all(event["across"] < 1e-6 for event in told(session, "mixing"))
