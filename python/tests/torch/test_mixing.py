"""Reshapes that move the samples of a batch to another axis, and models that are asked whether they mix them."""

from __future__ import annotations

import time

import pytest
import torch
from luff.torch.evidence import _evidence
from luff.torch.evidence._mixing import is_moved
from test_evidence import told
from torch import nn

SAMPLE = 14
ROWS, TIME, WIDTH = 12, 7, 5


class Reader(nn.Module):
    """Two layers of a recurrent network, whose last states are read in one of several ways."""

    def __init__(self, read, batch_first=True):
        super().__init__()
        self.rnn, self.read = nn.GRU(WIDTH, 8, num_layers=2, batch_first=batch_first), read
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.read(self.rnn(x)[1]))


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A loaded machine may keep a child waiting for long."""
    monkeypatch.setattr(_evidence, "_WAIT_S", 60.0)


class Turned(nn.Module):
    """Brings time to the front, by a reshape or by a transposition."""

    def __init__(self, right):
        super().__init__()
        self.inner, self.head = nn.Linear(WIDTH, 8), nn.Linear(8, 3)
        self.right = right

    def forward(self, x):
        h = torch.relu(self.inner(x))
        h = h.transpose(0, 1) if self.right else h.reshape(TIME, ROWS, 8)
        return self.head(h.mean(0))


class TimeFirst(nn.Module):
    """An encoder whose windows are as long as its vectors, with time first and with learnt places."""

    def __init__(self, length=16):
        super().__init__()
        self.inner, self.place = nn.Linear(WIDTH, length), nn.Parameter(torch.randn(length, 1, length))
        self.attention = nn.TransformerEncoderLayer(length, 2, 32, dropout=0.0)
        self.head = nn.Linear(length, 1)

    def forward(self, x):
        return self.head(self.attention(self.inner(x) + self.place))


def train(model, steps=6, shape=(ROWS, TIME, WIDTH), rows=ROWS, criterion=None):
    criterion = criterion or nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for seed in range(steps):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(shape, generator=generator)
        y = torch.randint(0, 3, (rows,), generator=generator)
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()


WRONG = [
    Reader(lambda h: h.view(ROWS, -1)),
    Reader(lambda h: h.reshape(-1, 16)),
    Turned(right=False),
]
RIGHT = [
    Reader(lambda h: h.transpose(0, 1).reshape(ROWS, -1)),
    Reader(lambda h: h.permute(1, 0, 2).flatten(1)),
    Reader(lambda h: torch.cat([h[0], h[1]], 1)),
    Reader(lambda h: h.view(2, 1, ROWS, 8)[:, 0].transpose(0, 1).flatten(1)),
    Turned(right=True),
]


@pytest.mark.parametrize("place", range(len(WRONG)))
def test_a_reshape_that_moves_the_batch_makes_the_model_be_asked(watched, place):
    hook, session = watched({SAMPLE})
    before = torch.get_rng_state()
    train(WRONG[place])
    hook.close()
    (event,) = told(session, "mixing")
    assert event["rows"] == ROWS
    assert event["across"] > 1e-3
    assert is_moved(event["before"], event["behind"], ROWS)
    assert torch.equal(before, torch.get_rng_state())
    assert WRONG[place].training


@pytest.mark.parametrize("place", range(len(RIGHT)))
def test_reshapes_that_leave_the_batch_in_its_place_raise_no_question(watched, place):
    hook, session = watched({SAMPLE})
    train(RIGHT[place])
    hook.close()
    assert told(session, "mixing") == []


@pytest.mark.parametrize("flat", [True, False])
def test_time_first_with_windows_as_long_as_vectors_raises_no_question(watched, flat):
    hook, session = watched({SAMPLE})
    model = TimeFirst()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(6):
        x, y = torch.randn(16, 5, WIDTH), torch.randn(16, 5, 1)
        optimizer.zero_grad()
        out = model(x)
        nn.MSELoss()(out[..., 0] if flat else out, y[..., 0] if flat else y).backward()
        optimizer.step()
    hook.close()
    assert told(session, "mixing") == []


def test_a_model_that_has_nothing_to_say_at_first_is_asked_again(watched):
    hook, session = watched({SAMPLE})
    model = Reader(lambda h: h.view(ROWS, -1))
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for step in range(80):
        if step == 40:
            optimizer.param_groups[0]["lr"] = 0.1
        optimizer.zero_grad()
        nn.CrossEntropyLoss()(model(torch.randn(ROWS, TIME, WIDTH)), torch.randint(0, 3, (ROWS,))).backward()
        optimizer.step()
        if step == 3:  # the first child ends: a machine with much to do is slow
            hook.machine.evidence.mixing.record(session, time.monotonic() + 60)
    hook.close()
    (event,) = told(session, "mixing")
    assert event["step"] == 64
    assert event["across"] > 1e-3


def test_a_model_whose_numbers_end_in_nan_gives_no_answer(watched):
    class Third(Reader):
        def forward(self, x):
            self.calls = getattr(self, "calls", 0) + (not self.training)
            return super().forward(x) * (torch.nan if self.calls > 2 else 1)

    hook, session = watched({SAMPLE})
    train(Third(lambda h: h.view(ROWS, -1)))
    hook.close()
    assert told(session, "mixing") == []
    assert told(session, "hook_error") == []


def test_what_is_moved_is_not_kept_where_graphs_save_their_values_elsewhere(watched):
    hook, _ = watched({SAMPLE})
    model = Reader(lambda h: h.view(ROWS, -1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        optimizer.zero_grad()
        with torch.autograd.graph.save_on_cpu():
            loss = nn.CrossEntropyLoss()(model(torch.randn(ROWS, TIME, WIDTH)), torch.randint(0, 3, (ROWS,)))
            loss.backward()
        assert hook.machine.evidence.mixing._calls == []
        optimizer.step()


def test_sizes_that_agree_by_chance_are_answered_by_the_model(watched):
    class Chance(nn.Module):
        """A table of 5 x ROWS x 4 numbers, which a reshape turns into one row for each of its own places."""

        def __init__(self):
            super().__init__()
            self.table, self.inner = nn.Parameter(torch.randn(5, ROWS, 4)), nn.Linear(WIDTH, ROWS)
            self.head = nn.Linear(20, 3)

        def forward(self, x):
            return self.head(self.inner(x.mean(1)) @ self.table.reshape(ROWS, 20))

    hook, session = watched({SAMPLE})
    train(Chance())
    hook.close()
    (event,) = told(session, "mixing")
    assert event["across"] == 0
    assert event["itself"] > 1e-3


def test_batch_statistics_and_attention_over_samples_raise_no_question(watched):
    class Joint(nn.Module):
        """Looks at all samples on purpose, and without a reshape."""

        def __init__(self):
            super().__init__()
            self.norm, self.attention = nn.BatchNorm1d(WIDTH), nn.MultiheadAttention(WIDTH, 1)
            self.head = nn.Linear(WIDTH, 3)

        def forward(self, x):
            h = self.norm(x.mean(1))
            return self.head(self.attention(h, h, h)[0])

    hook, session = watched({SAMPLE})
    train(Joint())
    hook.close()
    assert told(session, "mixing") == []


def test_a_model_that_takes_no_other_order_gives_no_answer(watched):
    class Strict(Reader):
        def forward(self, x):
            if not torch.equal(x, self.seen if hasattr(self, "seen") and not self.training else x):
                raise ValueError("another order")
            self.seen = x
            return super().forward(x)

    hook, session = watched({SAMPLE})
    train(Strict(lambda h: h.view(ROWS, -1)))
    hook.close()
    assert told(session, "mixing") == []


def test_flattened_targets_and_too_few_rows_raise_no_question(watched):
    hook, session = watched({SAMPLE})
    train(Reader(lambda h: h.view(3, -1)), shape=(3, TIME, WIDTH), rows=3)
    hook.close()
    assert told(session, "mixing") == []


def test_what_is_moved():
    assert is_moved((2, 12, 8), (12, 16), 12)
    assert is_moved((12, 7, 8), (7, 12, 8), 12)
    assert is_moved((2, 12, 6), (12, 12), 12)  # neither of the two is where the batch was
    assert not is_moved((12, 7, 8), (12, 56), 12)
    assert not is_moved((2, 12, 8), (2, 1, 12, 8), 12)
    assert not is_moved((2, 12, 8), (24, 8), 12)  # no batch behind it
    assert not is_moved((12, 12, 8), (12, 96), 12)  # one of the two may be where it was
    assert not is_moved((1, 12, 8), (12, 8), 12)
    assert not is_moved((12, 5, 2, 6), (60, 12), 12)  # numbers of a sample, as many as there are samples
    assert not is_moved((12, 8, 12), (12, 12, 8), 12)
    assert not is_moved((), (), 12)
