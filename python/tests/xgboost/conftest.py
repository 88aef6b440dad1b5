from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "boosting"))
HAS_XGBOOST = importlib.util.find_spec("xgboost") is not None
#: Modules of which one test is enough with XGBoost 2: what they test is how the hook's rows are judged and shown.
ONCE = {"test_detection.py", "test_other_programs.py", "test_report.py"}
collect_ignore_glob = [] if HAS_XGBOOST else ["test_*.py"]


@pytest.hookimpl(tryfirst=True)  # before those that are thorough are left out
def pytest_collection_modifyitems(items):
    old = False
    if HAS_XGBOOST:
        import xgboost

        old = int(xgboost.__version__.split(".")[0]) < 3
    seen = set()
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.framework)
        if old and item.path.name in ONCE:
            if item.path.name in seen:
                item.add_marker(pytest.mark.thorough)
            seen.add(item.path.name)


@pytest.fixture
def data():
    """Rows and targets (X, y) of two classes."""
    random = np.random.RandomState(0)
    x = random.rand(1200, 8).astype(np.float32)
    y = (x[:, 0] * x[:, 1] + 0.1 * random.randn(1200) > 0.3).astype(int)
    return x, y


@pytest.fixture
def sets(data):
    """A matrix to train on and one to evaluate on."""
    import xgboost as xgb

    x, y = data
    return xgb.DMatrix(x[:800], label=y[:800]), xgb.DMatrix(x[800:], label=y[800:])
