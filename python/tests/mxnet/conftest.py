from __future__ import annotations

import importlib.util
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
HAS_MXNET = importlib.util.find_spec("mxnet") is not None
collect_ignore_glob = [] if HAS_MXNET else ["test_*.py"]
if HAS_MXNET:
    sys.path.insert(0, str(HERE))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MXNet uses names that NumPy has deprecated
        import mxnet  # noqa: F401


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.framework)
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning:mxnet"))
            item.add_marker(pytest.mark.filterwarnings("ignore:.*scipy.sparse:DeprecationWarning"))


@pytest.fixture(autouse=True)
def same_start():
    """Starts every test with the same random numbers, and without hooks."""
    import mxnet as mx
    from luff.mxnet import _wraps

    mx.random.seed(0)
    np.random.seed(0)
    yield
    for hook in _wraps.hooks.living:
        hook.close()


@pytest.fixture
def data():
    """Rows and classes: a small problem that is learnt in a few steps."""
    random = np.random.RandomState(0)
    x = random.randn(96, 6).astype("float32")
    y = (x[:, 0] > 0).astype("float32") + (x[:, 1] > 0)
    return x, y
