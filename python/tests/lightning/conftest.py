from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

HERE = Path(__file__).parent
WHERE = {"test_lightning": "lightning", "test_transformers": "transformers", "test_accelerate": "accelerate"}
HAS = {name: importlib.util.find_spec(name) is not None for name in {*WHERE.values(), "torch"}}
collect_ignore_glob = [f"{stem}*.py" for stem, name in WHERE.items() if not HAS[name]]

sys.path[:0] = [str(HERE), str(HERE.parent / "torch")]
if HAS["torch"]:
    import torch
    from fake_session import DEFAULT_ROLES, FakeSession
    from luff import _base_hook, stop
    from luff._codes import EndReason
    from luff.torch.patches._registry import hooks


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.framework)
            item.add_marker(pytest.mark.filterwarnings("ignore"))  # the frameworks issue many warnings


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    """Gives each test one thread, one seed and its own folder; leaves no hook behind."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    monkeypatch.chdir(tmp_path)
    yield
    for hook in list(hooks.living):
        hook.close()
    stop._reason = EndReason.COMPLETED


@pytest.fixture
def fake(monkeypatch):
    """Makes the next hook open a session that keeps everything in lists."""
    session = FakeSession(DEFAULT_ROLES)
    monkeypatch.setattr(_base_hook, "open_session", lambda options, rank: session)
    yield session
    assert session.misuse == []
