"""Models whose graph tells that they work on each sample alone, and those that have to be asked."""

from __future__ import annotations

import pytest
import torch
from luff.torch.evidence._row_wise import ForwardPass
from test_evidence import told
from test_orders import (
    LENGTH,
    ROWS,
    SILENT,
    WIDTH,
    Carried,
    Model,
    OverSamples,
    Steps,
    cause,
    drawn,
    edges,
    message,
    positions,
)
from torch import nn
from torch.nn import functional as F

SAMPLE = 14


def row_wise(model, *args, **kwargs):
    model.train()
    passed = ForwardPass(args, kwargs)
    result = model(*args, **kwargs)
    passed.returned([result] if isinstance(result, torch.Tensor) else [*result])
    return passed.is_row_wise(model, len(args[0]))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.norm, self.inner = nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1)
        self.gate, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        h = F.relu(self.norm(self.stem(x)), inplace=True)
        h = F.relu(h + self.inner(h))
        h = h * torch.sigmoid(self.gate(h.mean((2, 3))))[:, :, None, None]
        return self.head(F.adaptive_avg_pool2d(h, 1).flatten(1))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.inner, self.up = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), None
        self.up, self.out = nn.ConvTranspose2d(4, 4, 2, 2), nn.Conv2d(8, 1, 1)

    def forward(self, x):
        h = F.silu(self.down(x))
        return self.out(torch.cat([h, self.up(F.gelu(self.inner(F.max_pool2d(h, 2))))], 1))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(20, 8), nn.Linear(8, 3)
        self.places = nn.Parameter(torch.randn(1, LENGTH, 8))

    def forward(self, ids):
        return self.head((self.table(ids) + self.places).mean(1))


class Factors(nn.Module):
    """Users and items."""

    def __init__(self):
        super().__init__()
        self.users, self.items, self.bias = nn.Embedding(9, 4), nn.Embedding(9, 4), nn.Embedding(9, 1)

    def forward(self, user, item):
        return (self.users(user) * self.items(item)).sum(-1) + (self.bias(item) ** 2).squeeze(-1)


class Two(nn.Module):
    """Two results, as of an autoencoder with codes."""

    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(WIDTH, 2), nn.Linear(2, WIDTH)

    def forward(self, x):
        code = self.inner(x)
        return self.out(0.5 * code), code


IDS = torch.randint(0, 9, (ROWS, LENGTH), generator=torch.Generator().manual_seed(2))
IMAGES = drawn(ROWS, 3, 8, 8)
PLAIN = {
    "layers": (SILENT["plain"][0], (drawn(ROWS, WIDTH),)),
    "image": (SILENT["image"][0], (IMAGES,)),
    "flattened": (nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.Tanh(), nn.Linear(8, 2)), (IMAGES,)),
    "places": (
        nn.Sequential(nn.Linear(WIDTH, 8), nn.LayerNorm(8), nn.Linear(8, 2)),
        (drawn(ROWS, LENGTH, WIDTH),),
    ),
    "tones": (
        nn.Sequential(nn.Conv1d(WIDTH, 4, 3), nn.GroupNorm(2, 4), nn.PReLU(), nn.MaxPool1d(2), nn.Flatten()),
        (drawn(ROWS, WIDTH, 9),),
    ),
    "residual": (Residual(), (IMAGES,)),
    "u": (UNet(), (IMAGES,)),
    "words": (Words(), (IDS,)),
    "factors": (Factors(), (IDS[:, 0], IDS[:, 1])),
    "two": (Two(), (drawn(ROWS, WIDTH),)),
    "dropout": (
        nn.Sequential(nn.Linear(WIDTH, 64), nn.Dropout(0.3), nn.Linear(64, 8), nn.LogSoftmax(-1)),
        (drawn(ROWS, WIDTH),),
    ),
    "normed": (
        nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, 3)),
        (drawn(ROWS, WIDTH),),
    ),
    "derivative": (
        nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)),
        (drawn(ROWS, 1).requires_grad_(),),
    ),
    "of_another": (nn.Linear(WIDTH, 1), (nn.Linear(3, WIDTH)(drawn(ROWS, 3)),)),
}


@pytest.mark.parametrize("name", PLAIN)
def test_layers_along_later_axes_are_row_wise(name):
    model, args = PLAIN[name]
    assert row_wise(model, *args)


class Learnt(nn.Module):
    """Adds what is learnt of each place of the batch."""

    def __init__(self, most=ROWS):
        super().__init__()
        self.inner, self.places = nn.Linear(WIDTH, 8), nn.Parameter(torch.randn(most, 8))

    def forward(self, x):
        return self.inner(x) + self.places[: len(x)]


class Before(nn.Module):
    """Does something with the inputs before the first layer."""

    def __init__(self, before):
        super().__init__()
        self.before, self.inner = before, nn.Linear(WIDTH, 3)

    def forward(self, x):
        return self.inner(self.before(x))


def added_in_place(x):
    x[1:] += x[:-1].clone()
    return x


X = drawn(ROWS, WIDTH)
ASKED = {
    "edges": (Model(lambda h: message(h, 1)), (drawn(ROWS, LENGTH, WIDTH),)),
    "positions": (Model(lambda h: h + positions(len(h))), (X,)),
    "positions_of_sequences": (
        Model(lambda h: (h + positions(len(h))[:, None]).mean(1)),
        (drawn(ROWS, LENGTH, WIDTH),),
    ),
    "scaled_by_place": (Model(lambda h: h * positions(len(h))), (X,)),
    "learnt_places": (Learnt(), (X,)),
    "learnt_places_of_more": (Learnt(3 * ROWS), (X,)),
    "shifted_rows": (Model(lambda h: h + h.roll(1, 0)), (X,)),
    "difference": (Model(lambda h: torch.cat([h[:1], h[1:] - h[:-1]])), (X,)),
    "sum_so_far": (Model(lambda h: h.cumsum(0)), (X,)),
    "turned": (Model(lambda h: h.reshape(8, -1).T.reshape(len(h), 8)), (X,)),
    "convolution": (
        Model(lambda h: F.conv1d(h.T[None], torch.ones(8, 8, 3), padding=1)[0].T),
        (X,),
    ),
    "attention": (Model(lambda h: (h @ h.T).tril().softmax(-1) @ h), (X,)),
    "first": (Model(lambda h: h * h[0]), (X,)),
    "mean": (Model(lambda h: h - h.mean(0)), (X,)),
    "lengths": (Model(lambda h: F.normalize(h, dim=0)), (X,)),
    "softmax": (Model(lambda h: h.softmax(0)), (X,)),
    "recurrence": (OverSamples(), (X,)),
    "state": (Carried(), (X,)),
    "step": (Steps(first=True), (X, torch.randint(0, 10, (ROWS,)))),
    "number_of_the_first": (Model(lambda h, t: h * t[0]), (X, torch.rand(ROWS) + 1)),
    "number_of_the_first_read": (Model(lambda h, t: h * t[0].item()), (X, torch.rand(ROWS) + 1)),
    "number_less": (Model(lambda h, t: t[0].item() - h), (X, torch.rand(ROWS) + 1)),
    "cut_by_the_first": (
        Model(lambda h, t: h[:, : int(t[0])].mean(1, keepdim=True).expand(-1, 8)),
        (X, torch.full((ROWS,), 3)),
    ),
    "inputs_shifted": (Before(lambda x: x.roll(1, 0)), (X,)),
    "inputs_turned": (Before(lambda x: x.flip(0)), (X,)),
    "inputs_reversed": (Before(lambda x: x.reshape(WIDTH, -1).T), (X,)),
    "inputs_of_the_first": (Before(lambda x: x[:1].expand(len(x), -1)), (X,)),
    "inputs_changed_in_place": (Before(added_in_place), (X.clone(),)),
    "no_gradient": (Model(lambda h: h.detach().cumsum(0)), (X,)),
    "sequences_of_wrong_axes": (
        Model(lambda h: h.transpose(0, 1).reshape(len(h), -1, 8).mean(1)),
        (drawn(ROWS, LENGTH, WIDTH),),
    ),
    "mixed_by_weights": (Model(lambda h: torch.ones(ROWS, ROWS, requires_grad=True) @ h), (X,)),
    "normed_along_the_batch": (Model(lambda h: F.layer_norm(h, h.shape)), (X,)),
    "one_graph": (Model(lambda h, e: h.index_add(0, e[1], h[e[0]])), (X, edges(ROWS))),
    "a_results_part_without_graph": (Model(lambda h: (h, torch.ones(ROWS))), (X,)),
}
ASKED["a_results_part_without_graph"][0].head = nn.Identity()


@pytest.mark.parametrize("name", ASKED)
def test_what_may_know_of_places_has_to_be_asked(name):
    model, args = ASKED[name]
    assert not row_wise(model, *args)


@pytest.mark.parametrize("name", SILENT)
def test_no_model_that_would_give_an_answer_is_passed_over(name):
    model, args = SILENT[name]
    if name not in ("packed", "hidden", "lists", "one_batch") and row_wise(model, *args):
        assert cause(model, *args) is None
        assert name in ("plain", "image", "zero")


def test_a_function_of_the_user_has_to_be_asked():
    class Relu(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.variable = x
            return x.roll(1, 0)

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    assert not row_wise(Model(Relu.apply), X)


def test_a_graph_that_is_gone_or_unlike_has_to_be_asked():
    model = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 2))
    passed = ForwardPass((X,), {})
    assert not passed.is_row_wise(model, ROWS)  # nothing was returned
    result = model(X)
    passed.returned([result])
    result.sum().backward()
    assert not passed.is_row_wise(model, ROWS)
    passed = ForwardPass((X,), {})
    passed.returned([model(X)] * 8)
    assert not passed.is_row_wise(model, ROWS)


def train(hook, model, given, steps=70):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        model(given()).square().mean().backward()
        optimizer.step()
    hook.close()


@pytest.fixture
def forks(monkeypatch):
    """Counts the children."""
    from luff.torch.replay import _replay

    counted = []
    forked = _replay._forked
    monkeypatch.setattr(_replay, "_forked", lambda *given: counted.append(1) or forked(*given))
    return counted


@pytest.mark.parametrize("name", ["layers", "residual", "dropout"])
def test_an_ordinary_training_forks_no_child(watched, forks, name):
    hook, session = watched({SAMPLE})
    model, (given,) = PLAIN[name]
    train(hook, model, lambda: given)
    assert told(session, "places") == []
    assert forks == []
    assert hook.machine.evidence.places.answered  # nor is it looked at again


def test_a_model_that_may_know_of_places_is_asked_with_the_hook(watched, forks, monkeypatch):
    monkeypatch.setattr("luff.torch.evidence._evidence._WAIT_S", 60.0)
    hook, session = watched({SAMPLE})
    train(hook, Model(lambda h: h + h.roll(1, 0)), lambda: X, steps=6)
    (event,) = told(session, "places")
    assert event["step"] == 2 and len(forks) == 1
