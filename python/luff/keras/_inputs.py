"""What `fit` takes its batches from, for the document `loaders`: how many batches are made at a time.

Kept for each model while its `fit` lasts: which hook will record the steps is not known before they begin.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from typing import Any

import keras

from luff._patch import Method, unseen
from luff._weak import Identities

__all__ = ["NOTHING", "PIPELINE", "taken_by", "telling_fit"]

_taken: Identities[str] = Identities()  # by model, while its `fit` lasts

#: Takes back what an earlier document said.
NOTHING = '{"loaders": []}'


def _document(kind: str, dataset: str, workers: int) -> str:
    loader = {"number": 0, "type": kind, "dataset": dataset, "num_workers": workers, "trains": True}
    return json.dumps({"loaders": [loader]})


#: Of pipelines of tf.data, which make batches ahead, and several at a time, in ways that cannot be seen.
PIPELINE = _document("tf.data", "", 1)
_OTHER = _document("other", "", 0)


def _setting(x: Any, name: str, default: Any) -> Any:
    """Returns a setting of a `PyDataset` as Keras will find it; asking for it would warn in Keras' place."""
    if getattr(type(x), name, None) is getattr(keras.utils.PyDataset, name):
        return getattr(x, f"_{name}", default)
    return getattr(x, name)


def taken_by(model: Any) -> str:
    """Returns the document for the `fit` of a model that is running; "" outside of one."""
    return _taken.get(model) or ""


def _described(x: Any) -> str:
    # With TensorFlow, Keras makes a pipeline of everything, in which the next batch is made meanwhile.
    tensorflow = keras.backend.backend() == "tensorflow"
    ahead = 1 if tensorflow else 0
    if isinstance(x, keras.utils.PyDataset):
        workers = int(_setting(x, "workers", 1))
        several = workers > 1 or (workers == 1 and _setting(x, "use_multiprocessing", False))
        return _document("PyDataset", type(x).__name__[:256], workers if several else ahead)
    if isinstance(x, types.GeneratorType):
        return _document("generator", x.__name__[:256], ahead)
    if tensorflow or type(x).__module__.startswith("tensorflow.python.data."):
        return PIPELINE
    return _OTHER


def _tell(model: Any, x: Any) -> None:
    try:
        _taken[model] = _described(x)
    except Exception:  # a class of the user's
        _taken[model] = _OTHER


def telling_fit(hooks: Any) -> Callable[[Method], Method]:
    """Returns what `luff._patch.wrap` takes: a wrapper of `fit` that notes what it takes batches from."""

    def make(original: Method) -> Method:
        def fit(self: Any, *arguments: Any, **named: Any) -> Any:
            if not hooks:
                return original(self, *arguments, **named)
            _tell(self, arguments[0] if arguments else named.get("x"))
            try:
                return original(self, *arguments, **named)
            finally:
                _taken.pop(self)

        return fit

    return make


unseen(globals())
