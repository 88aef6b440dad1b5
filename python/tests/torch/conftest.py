from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

torch = pytest.importorskip("torch")

import luff.torch  # noqa: E402
from fake_session import DEFAULT_ROLES, FakeSession  # noqa: E402
from luff._hook import RunOptions  # noqa: E402
from luff.torch import _hooks, _wraps  # noqa: E402


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
    torch.set_num_threads(1)


@pytest.fixture
def watched(monkeypatch):
    """Watches all that is trained, with a fake session; ends with checks that hold for every training."""
    opened = []

    def start(roles=DEFAULT_ROLES, model=None, **arguments):
        session = FakeSession(frozenset(roles))
        monkeypatch.setattr(_hooks, "open_session", lambda options, rank: session)
        if model is not None:
            hook = luff.torch.attach(model, run="/nowhere", **arguments)
        else:
            hook = _hooks.hooks.default = luff.torch.Hook(RunOptions("/nowhere"))
            _wraps.install()
        opened.append((hook, session))
        return hook, session

    yield start
    for hook, session in opened:
        hook.close()
        assert session.misuse == []
        assert hook.guard.first == {}
    assert not _hooks.hooks


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes more than some seconds")
