"""Results that nobody uses, by the hook: told once, with their place, for functions that the training runs."""

from __future__ import annotations

import importlib.util
import os
import textwrap

import pytest
from test_evidence import told

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X = torch.randn(64, 4)
Y = X[:, :1]
LOADER = DataLoader(TensorDataset(X, Y), batch_size=16)
criterion = nn.MSELoss()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        {forward}
        return self.head(torch.tanh(self.first(x)))


def loss_of(model, x, y):
    {loss}
    return criterion(model(x), y)


class Trainer:
    def __init__(self):
        self.model = Net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def penalty(self):
        {penalty}
        return 0.0

    def epoch(self):
        for x, y in LOADER:
            {step}
            loss = loss_of(self.model, x, y) + self.penalty()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def evaluate(self):
        {evaluate}
        with torch.no_grad():
            for x, y in LOADER:
                criterion(self.model(x), y).item()

    def never(self):
        self.model.train


def main():
    trainer = Trainer()
    for _ in range(3):
        trainer.epoch()
        trainer.evaluate()
    return [one.detach().clone() for one in trainer.model.parameters()]
"""


@pytest.fixture
def trained(tmp_path, watched):
    """Trains a program with lines put in; returns what was told."""

    def start(*, old=True, **lines):
        _, session = watched()
        parts = {name: lines.get(name, "pass") for name in ("forward", "loss", "penalty", "step", "evaluate")}
        file = tmp_path / f"program_{len(list(tmp_path.iterdir()))}.py"
        file.write_text(textwrap.dedent(HEAD).format(**parts))
        if old:
            os.utime(file, (1e9, 1e9))
        spec = importlib.util.spec_from_file_location(file.stem, file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        weights = module.main()
        return told(session, "unused_result"), weights, file

    return start


def test_each_function_that_runs_is_read(trained):
    events, _, file = trained(
        forward="self.drop(x)",
        loss="y.float()",
        penalty="self.optimizer.zero_grad",
        step="x.clamp(0, 1)",
        evaluate="self.model.eval",
    )
    assert sorted((one["cause"], one["function"], one["text"]) for one in events) == [
        ("dropped", "epoch", "x.clamp(0, 1)"),
        ("dropped", "forward", "self.drop(x)"),
        ("mode_not_called", "evaluate", "self.model.eval"),
        ("not_called", "penalty", "self.optimizer.zero_grad"),
    ]
    lines = file.read_text().splitlines()
    for one in events:
        assert lines[one["line"] - 1].strip() == one["text"]
        assert one["file"].endswith(file.name)


def test_names_of_a_running_function_are_known(trained):
    events, _, _ = trained(step="y.float(); x.to(torch.float64)")
    assert [one["name"] for one in events] == ["y", "x"]


def test_a_function_that_asks_for_its_own_names_keeps_them(trained):
    step = "kept = locals(); y.float(); x.to(torch.float64); assert 'y' in kept"
    assert trained(step=step)[0] == []


def test_a_program_without_mistakes_tells_nothing(trained):
    assert trained()[0] == []


def test_a_file_that_was_written_since_is_not_read(trained):
    assert trained(old=False, step="x.clamp(0, 1)")[0] == []


def test_a_file_that_is_gone_is_passed_over(trained, monkeypatch):
    from luff.torch.source import _look

    monkeypatch.setattr(_look, "read", lambda filename, scope: None)
    assert trained(step="x.clamp(0, 1)")[0] == []


def test_an_exception_of_the_look_ends_it(trained, monkeypatch):
    from luff.torch.source import _look

    asked = []

    def breaks(filename, scope):
        asked.append(filename)
        raise RecursionError

    monkeypatch.setattr(_look, "read", breaks)
    assert trained(step="x.clamp(0, 1)")[0] == []
    assert len(asked) == 1
