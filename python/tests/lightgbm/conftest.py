from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "boosting"))
HAS_LIGHTGBM = importlib.util.find_spec("lightgbm") is not None
collect_ignore_glob = [] if HAS_LIGHTGBM else ["test_*.py"]


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.framework)


@pytest.fixture(scope="session")
def data():
    """Rows and targets (X, y) of two classes."""
    random = np.random.RandomState(0)
    x = random.rand(1200, 8)
    y = (x[:, 0] * x[:, 1] + 0.1 * random.randn(1200) > 0.3).astype(int)
    return x, y


@pytest.fixture
def sets(data):
    """Returns a function that makes fresh data to train on and to evaluate on, since LightGBM changes them."""
    import lightgbm as lgb

    def make(**arguments):
        x, y = data
        train = lgb.Dataset(x[:800], y[:800], **arguments)
        return train, lgb.Dataset(x[800:], y[800:], reference=train)

    return make
