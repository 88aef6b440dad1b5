"""MiniBatchKMeans: each minibatch is a step; its inertia and the centers after it are recorded.

Inertia is not recorded as a loss: after a good start it has little room to fall.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

from luff._codes import Role
from luff._patch import Method, once, wrap
from luff.sklearn._hook import Hook, Model
from luff.sklearn._wraps import Patch, entering, hook_of

__all__ = ["PATCH"]

_local = threading.local()  # the estimator in training


@once
def _install(module: Any) -> None:
    for name, fresh in (("fit", _anew), ("partial_fit", _goes_on)):
        wrap(module.MiniBatchKMeans, name, _under_way)
        wrap(module.MiniBatchKMeans, name, functools.partial(entering, fresh=fresh))
    wrap(module, "_mini_batch_step", _stepping)


def _under_way(original: Method) -> Method:
    def training(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = getattr(_local, "estimator", None)
        _local.estimator = self
        try:
            return original(self, *args, **kwargs)
        finally:
            _local.estimator = before

    return training


def _stepping(original: Method) -> Method:
    def step(*args: Any, **kwargs: Any) -> Any:
        estimator = getattr(_local, "estimator", None)
        hook = None if estimator is None else hook_of(estimator)
        model = None if hook is None else hook.model_of(estimator)
        inertia = original(*args, **kwargs)
        if hook is not None and model is not None:
            rows = kwargs["X"] if "X" in kwargs else args[0]
            centers = kwargs["centers_new"] if "centers_new" in kwargs else args[3]
            hook.record("clusters", _step, model, inertia, rows, centers)
            hook.close_step()
        return inertia

    return step


PATCH = Patch("sklearn.cluster._kmeans", ("MiniBatchKMeans",), _install)


def _anew(*_: Any, **__: Any) -> bool:
    return True


def _goes_on(*_: Any, **__: Any) -> bool:
    return False


def _step(hook: Hook, model: Model, inertia: Any, rows: Any, centers: Any) -> None:
    hook.steps.scalar(f"scalar/{model.name}_inertia", float(inertia) / max(int(rows.shape[0]), 1))
    hook.steps.array(f"{model.name}_cluster_centers", centers, int(Role.OTHER), "", "MiniBatchKMeans")
