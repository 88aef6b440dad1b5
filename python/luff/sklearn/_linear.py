"""Linear models trained by stochastic gradient descent: each call of ``partial_fit`` is a step.

A whole ``fit`` runs inside compiled code, so it is one step with its final values. Under ``luff run`` it is recorded
only if ``warm_start`` makes a loop of such calls.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from luff._codes import Role
from luff._patch import Method, once, wrap
from luff.sklearn._hook import Hook, Model
from luff.sklearn._samples import loss_samples, sample
from luff.sklearn._wraps import Patch, entering, hook_of

__all__ = ["PATCH", "mean_loss"]

_MAX_ROWS = 4096  # most rows of a batch for which its loss is computed
_KINDS = ("BaseSGDClassifier", "BaseSGDRegressor", "SGDOneClassSVM")


@once
def _install(module: Any) -> None:
    for name in _KINDS:
        kind = getattr(module, name)
        wrap(kind, "_fit", functools.partial(entering, fresh=_fresh, skip=_whole_fit))
        wrap(kind, "_partial_fit", _stepping)


PATCH = Patch("sklearn.linear_model._stochastic_gradient", _KINDS, _install)


def _fresh(estimator: Any, *_: Any, **__: Any) -> bool:
    return not (estimator.warm_start and hasattr(estimator, "coef_"))


def _whole_fit(hook: Hook, estimator: Any) -> bool:
    """Whether a `fit` is not recorded: it would be the only step of its training."""
    return hook.watches_all and not estimator.warm_start


def _stepping(original: Method) -> Method:
    signature = inspect.signature(original)

    def partial_fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        hook = hook_of(self)
        if hook is None:
            return original(self, *args, **kwargs)
        given = hook.guarded("linear", lambda: signature.bind(self, *args, **kwargs).arguments)
        one = given is not None and given.get("max_iter") == 1  # as partial_fit sets it
        if given is None or (not one and hook.model_of(self) is None):
            return original(self, *args, **kwargs)
        model = hook.enters(self, False)
        try:
            before = hook.guarded("linear", _copied, self)
            result = original(self, *args, **kwargs)
            if model is not None:
                hook.record("linear", _step, model, self, given, before)
                hook.close_step()
        finally:
            hook.leaves(model)
        return result

    return partial_fit


def _copied(estimator: Any) -> tuple[NDArray[Any], NDArray[Any]] | None:
    coefficients = getattr(estimator, "coef_", None)
    intercept = getattr(estimator, "intercept_", getattr(estimator, "offset_", None))
    if coefficients is None or intercept is None:
        return None
    return np.array(coefficients), np.array(intercept)


def _step(hook: Hook, model: Model, estimator: Any, given: dict[str, Any], before: Any) -> None:
    """Records loss of the batch and coefficients as the step found them; in the first step, as it left them."""
    kind = str(given.get("loss", estimator.loss if hasattr(estimator, "loss") else ""))
    if "y" in given:
        value = _batch_loss(hook, model, estimator, kind, given["X"], given["y"], before)
        if value is not None:
            hook.steps.scalar(f"{model.loss(kind)}_output_0", value, int(Role.LOSS), "", kind)
    coefficients, intercept = before or _copied(estimator) or (None, None)
    if coefficients is not None:
        hook.steps.array(f"{model.name}_weight", coefficients, int(Role.WEIGHT), "", type(estimator).__name__)
        hook.steps.array(f"{model.name}_bias", intercept, int(Role.BIAS), "", type(estimator).__name__)
    _describe(hook, model, estimator)


def _describe(hook: Hook, model: Model, estimator: Any) -> None:
    if model.written:
        return
    kind = type(estimator).__name__
    parameters = [
        {"path": leaf, "name": f"{model.name}_{leaf}", "shape": list(np.shape(value)), "requires_grad": True,
         "dtype": str(np.asarray(value).dtype), "optimizer": "SGD", "group": 0}
        for leaf, value in zip(("weight", "bias"), _copied(estimator) or (), strict=False)
    ]  # fmt: skip
    settings = {"lr": estimator.eta0, "schedule": estimator.learning_rate}
    hook.describe(
        model,
        {"name": model.name, "type": kind, "parameters": parameters, "buffers": [],
         "modules": [{"path": "", "type": kind, "name": model.name, "number": model.number * 1000,
                      "training": True, "builtin": True, "settings": {}}]},
        {"number": 0, "name": "SGD", "type": "SGD", "defaults": settings, "foreign": 0,
         "groups": [{"settings": settings, "parameters": len(parameters)}]},
        "" if estimator.learning_rate == "constant" else str(estimator.learning_rate),
    )  # fmt: skip


def _batch_loss(
    hook: Hook, model: Model, estimator: Any, kind: str, rows: Any, targets: Any, before: Any
) -> float | None:
    """Computes the mean loss of the first rows of a batch, with the coefficients before the batch was learnt."""
    from sklearn.utils import _safe_indexing

    count = min(len(targets), _MAX_ROWS)
    if not count or np.ndim(targets) > 2:
        return None
    rows = _safe_indexing(rows, slice(0, count))
    targets = np.asarray(targets)[:count].reshape(count)
    rows = rows if hasattr(rows, "tocsr") else np.asarray(rows)
    if before is None:
        classes = len(getattr(estimator, "classes_", ()))
        scores = np.zeros((count, classes if classes > 2 else 1))
    else:
        coefficients, intercept = np.atleast_2d(before[0]), np.atleast_1d(before[1])
        scores = np.asarray(rows @ coefficients.T + intercept)
    classes_of = getattr(estimator, "classes_", None)
    if classes_of is None:
        wanted = targets.astype(np.float64).reshape(count, 1)
    elif len(classes_of) > 2:
        wanted = np.where(targets[:, None] == np.asarray(classes_of)[None, :], 1.0, -1.0)
    else:
        wanted = np.where(targets == classes_of[-1], 1.0, -1.0).reshape(count, 1)
    epsilon = float(getattr(estimator, "epsilon", 0.1))
    sample(hook, f"{model.name}_input_0", rows, type(estimator).__name__)
    place = model.loss(kind)
    if hook.steps.due(f"sample/{place}_input_1", int(Role.SAMPLE), "", kind):
        ids = wanted if classes_of is None else np.searchsorted(classes_of, targets)
        loss_samples(hook, place, kind, scores, ids)
    return mean_loss(kind, scores, wanted, epsilon)


def mean_loss(kind: str, scores: NDArray[Any], wanted: NDArray[Any], epsilon: float = 0.1) -> float | None:
    """Computes the mean of a loss of scikit-learn's linear models over rows and classes; None if it is unknown.

    Parameters
    ----------
    scores, wanted
        Rows by classes, each class against the rest, with targets -1 and 1; one column for a regression.
    """
    margin, error = scores * wanted, np.abs(scores - wanted)
    outside = np.maximum(error - epsilon, 0)
    losses: dict[str, Callable[[], NDArray[Any]]] = {
        "hinge": lambda: np.maximum(1 - margin, 0),
        "perceptron": lambda: np.maximum(-margin, 0),
        "squared_hinge": lambda: np.maximum(1 - margin, 0) ** 2,
        "log_loss": lambda: np.logaddexp(0, -margin),
        "modified_huber": lambda: np.where(margin >= -1, np.maximum(1 - margin, 0) ** 2, -4 * margin),
        "squared_error": lambda: 0.5 * error**2,
        "huber": lambda: np.where(error <= epsilon, 0.5 * error**2, epsilon * (error - 0.5 * epsilon)),
        "epsilon_insensitive": lambda: outside,
        "squared_epsilon_insensitive": lambda: outside**2,
    }
    with np.errstate(all="ignore"):
        return float(np.mean(losses[kind]())) if kind in losses else None
