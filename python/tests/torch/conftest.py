from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
HAS_TORCH = importlib.util.find_spec("torch") is not None
collect_ignore_glob = [] if HAS_TORCH else ["test_*.py"]

if HAS_TORCH:
    sys.path.insert(0, str(HERE))
    import luff.torch
    import torch
    from fake_session import DEFAULT_ROLES, FakeSession
    from luff import _base_hook
    from luff._codes import Role
    from luff._hook import RunOptions
    from luff.torch.patches import _registry, _wraps


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.framework)
            if "two_ranks" in item.name or "identical" in item.path.name:
                item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
    torch.set_num_threads(1)


@pytest.fixture
def watched(monkeypatch):
    """Watches everything that is trained, with a fake session; ends with checks that hold for every training."""
    opened = []

    def start(roles=None, model=None, **arguments):
        session = FakeSession(frozenset(roles or DEFAULT_ROLES))
        monkeypatch.setattr(_base_hook, "open_session", lambda options, rank: session)
        if model is not None:
            hook = luff.torch.attach(model, run="/nowhere", **arguments)
        else:
            asked = {"collections": [{"name": "asked", "roles": [Role(r).name.lower() for r in roles or ()]}]}
            hook = luff.torch.Hook(RunOptions("/nowhere", config=asked))
            _registry.hooks.add(hook, default=True)
            _wraps.install()
        opened.append((hook, session))
        return hook, session

    yield start
    for hook, session in opened:
        hook.close()
        assert session.misuse == []
        assert hook.guard.first == {}
    assert _registry.hooks.living == []
