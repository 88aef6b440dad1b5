"""What `fit` takes its batches from, for the document `loaders`: how many batches are made at a time."""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from typing import Any

import keras

from luff._patch import Method, unseen

__all__ = ["NOTHING", "PIPELINE", "described", "telling_fit"]

#: Takes back what an earlier document said.
NOTHING = '{"loaders": []}'


def _document(kind: str, dataset: str, workers: int) -> str:
    loader = {"number": 0, "type": kind, "dataset": dataset, "num_workers": workers, "trains": True}
    return json.dumps({"loaders": [loader]})


#: Of pipelines of tf.data, which make batches ahead, and several at a time, in ways that cannot be seen.
PIPELINE = _document("tf.data", "", 1)


def described(x: Any) -> str:
    """Returns the document for what was passed to `fit`; "" if it does not say how batches are made."""
    # With TensorFlow, Keras makes a pipeline of everything, in which the next batch is made meanwhile.
    ahead = 1 if keras.backend.backend() == "tensorflow" else 0
    if isinstance(x, keras.utils.PyDataset):
        workers = int(x.workers)
        several = workers > 1 or (workers == 1 and x.use_multiprocessing)
        return _document("PyDataset", type(x).__name__[:256], workers if several else ahead)
    if isinstance(x, types.GeneratorType):
        return _document("generator", x.__name__[:256], ahead)
    if type(x).__module__.startswith("tensorflow.python.data."):
        return PIPELINE
    return ""


def telling_fit(hooks: Any) -> Callable[[Method], Method]:
    """Returns what `luff._patch.wrap` takes: a wrapper of `fit` that tells the hook what it takes batches from."""

    def make(original: Method) -> Method:
        def fit(self: Any, *arguments: Any, **named: Any) -> Any:
            hook = (hooks.of_model(self) or hooks.current()) if hooks else None
            if hook is not None:
                hook.while_live("input", hook.takes, arguments[0] if arguments else named.get("x"))
            return original(self, *arguments, **named)

        return fit

    return make


unseen(globals())
