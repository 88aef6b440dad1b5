from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# before scikit-learn is imported: the data are small and cores few
os.environ.setdefault("OMP_NUM_THREADS", "1")
HAS_SKLEARN = importlib.util.find_spec("sklearn") is not None
collect_ignore_glob = [] if HAS_SKLEARN else ["test_*.py"]


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.framework)


@pytest.fixture(scope="session")
def digits():
    """Images of ten digits, scaled to [0, 1], and the digits."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return x / 16, y
