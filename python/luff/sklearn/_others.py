"""Estimators of unknown families: each call of ``partial_fit``, or of ``fit`` with ``warm_start``, is a step."""

from __future__ import annotations

from typing import Any

import numpy as np

from luff._codes import Role
from luff._patch import Method, once, wrap
from luff.sklearn._hook import Hook, Model, hooks

__all__ = ["listen_to"]

_ROLES = {"coef_": Role.WEIGHT, "intercept_": Role.BIAS}
_NUMBERS = ("loss_", "inertia_", "n_iter_", "score_", "lower_bound_", "oob_score_", "bound_")


def listen_to(kind: type) -> bool:
    """Wraps the method that a class trains with; returns False if it does not train step by step."""
    method = "partial_fit" if hasattr(kind, "partial_fit") else "fit"
    if method == "fit" and not (
        hasattr(kind, "fit") and "warm_start" in getattr(kind, "_parameter_constraints", {})
    ):
        return False
    _install(kind, method)
    return True


@once
def _install(kind: type, method: str) -> None:
    wrap(kind, method, _stepping)


def _stepping(original: Method) -> Method:
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        hook = hooks.of(self)  # only estimators that a hook was attached to
        if hook is None:
            return original(self, *args, **kwargs)
        model = hook.enters(self, False)
        try:
            result = original(self, *args, **kwargs)
            if model is not None:
                hook.record("other", _step, model, self)
                hook.close_step()
        finally:
            hook.leaves(model)
        return result

    return step


def _step(hook: Hook, model: Model, estimator: Any) -> None:
    for name, value in list(vars(estimator).items()):
        if not name.endswith("_") or name.startswith("_"):
            continue
        if name in _NUMBERS and np.ndim(value) == 0 and isinstance(value, (int, float, np.number)):
            hook.steps.scalar(f"scalar/{model.name}_{name.rstrip('_')}", float(value))
        elif isinstance(value, np.ndarray) and value.dtype.kind in "fiu":
            role = int(_ROLES.get(name, Role.OTHER))
            hook.steps.array(f"{model.name}_{name.rstrip('_')}", value, role, "", type(estimator).__name__)
