"""Networks of scikit-learn: each minibatch is a step, the validation score of each epoch an evaluation.

Weights are recorded as the step used them; the step is published after its update.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from luff._codes import EventKind, Role
from luff._patch import Method, once, wrap
from luff.sklearn._hook import Hook, Model
from luff.sklearn._samples import loss_samples, sample
from luff.sklearn._wraps import Patch, entering, hook_of

__all__ = ["PATCH"]

_ACTIVATIONS = {"relu": "ReLU", "tanh": "Tanh", "logistic": "Sigmoid", "identity": "Identity"}
_LOSSES = {"log_loss": "NLLLoss", "binary_log_loss": "BCELoss", "squared_error": "MSELoss"}
_BATCH = int(EventKind.BATCH)


@once
def _install(module: Any) -> None:
    kind = module.BaseMultilayerPerceptron
    wrap(kind, "_fit", functools.partial(entering, fresh=_fresh))
    wrap(kind, "_backprop", _stepping)
    wrap(kind, "_update_no_improvement_count", _counting)


def _stepping(original: Method) -> Method:
    def backprop(self: Any, *args: Any, **kwargs: Any) -> Any:
        hook = hook_of(self)
        model = None if hook is None else hook.model_of(self)
        if hook is None or model is None:
            return original(self, *args, **kwargs)
        hook.close_step()
        result = original(self, *args, **kwargs)
        updates = self.solver != "lbfgs"  # lbfgs computes many gradients before it moves
        hook.record("network", _step, model, self, args, kwargs, result, updates=updates)
        return result

    return backprop


def _counting(original: Method) -> Method:
    def update_no_improvement_count(self: Any, *args: Any, **kwargs: Any) -> Any:
        hook = hook_of(self)
        model = None if hook is None else hook.model_of(self)
        if hook is None or model is None:
            return original(self, *args, **kwargs)
        hook.close_step()
        before = len(self.validation_scores_ or ())
        result = original(self, *args, **kwargs)
        if len(self.validation_scores_ or ()) > before:
            hook.evaluation(f"scalar/{model.name}_validation_score", float(self.validation_scores_[-1]))
        return result

    return update_no_improvement_count


PATCH = Patch("sklearn.neural_network._multilayer_perceptron", ("BaseMultilayerPerceptron",), _install)


def _fresh(estimator: Any, *args: Any, **kwargs: Any) -> bool:
    incremental = kwargs.get("incremental", args[-1] if args and isinstance(args[-1], bool) else False)
    return not (incremental or (estimator.warm_start and hasattr(estimator, "coefs_")))


def _step(
    hook: Hook, model: Model, estimator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> None:
    arrays, session = hook.steps.arrays, hook.session
    if arrays is None or session is None:
        return
    loss, weight_gradients, bias_gradients = result
    tensors = model.tensors
    if tensors is None or len(tensors) != len(estimator.coefs_):
        tensors = model.tensors = _tensors(hook, model, estimator)
        _describe(hook, model, estimator)
    activations = kwargs.get("activations") or args[-4]
    kind = "binary_log_loss" if estimator.out_activation_ == "logistic" else estimator.loss
    kind = _LOSSES.get(kind, kind)
    place = model.loss(kind)
    hook.steps.scalar(f"{place}_output_0", loss, int(Role.LOSS), "", kind)
    rows = activations[0]
    sample(hook, f"{model.name}_input_0", rows, type(estimator).__name__)
    if hook.steps.due(f"sample/{place}_input_1", int(Role.SAMPLE), "", kind):
        loss_samples(
            hook, place, kind, *_loss_inputs(kind, activations[-1], kwargs["y"] if "y" in kwargs else args[1])
        )
    if isinstance(rows, np.ndarray) and rows.flags.c_contiguous:
        session.event(_BATCH, model.number, session.hash(rows.ctypes.data, rows.nbytes))
    for layer, (weight, bias, weight_gradient, bias_gradient, output, given) in enumerate(tensors):
        if arrays.due(given) and isinstance(activations[layer], np.ndarray):
            arrays.array(given, activations[layer])
        for number, value in (
            (weight, estimator.coefs_[layer]),
            (bias, estimator.intercepts_[layer]),
            (weight_gradient, weight_gradients[layer]),
            (bias_gradient, bias_gradients[layer]),
        ):
            if arrays.due(number):
                arrays.array(number, value)
        if output >= 0 and arrays.due(output):
            arrays.array(output, activations[layer + 1])
    optimizer = getattr(estimator, "_optimizer", None)
    if optimizer is not None and estimator.solver != "lbfgs":
        rate = optimizer.learning_rate if estimator.solver == "sgd" else optimizer.learning_rate_init
        setting = int(Role.OPTIMIZER_SETTING)
        hook.steps.scalar(f"optimizer/{_optimizer_name(model, estimator)}.group0.lr", rate, setting)


def _loss_inputs(kind: str, outputs: Any, targets: Any) -> tuple[Any, Any]:
    """Returns log-probabilities and ids of classes if there are several; otherwise the values unchanged."""
    if kind != "NLLLoss":
        return outputs, targets
    with np.errstate(all="ignore"):
        return np.log(outputs), np.argmax(targets, axis=1)


def _optimizer_name(model: Model, estimator: Any) -> str:
    name = {"adam": "Adam", "sgd": "SGD"}.get(estimator.solver, estimator.solver)
    return f"{name}/{model.name}" if model.number else name


def _tensors(hook: Hook, model: Model, estimator: Any) -> list[tuple[int, int, int, int, int, int]]:
    found = []
    last = len(estimator.coefs_) - 1
    before = "" if model.number == 0 else f"{model.name}."
    for layer in range(last + 1):
        path = f"layer{layer}"
        weight, bias = f"{model.name}_{path}.weight", f"{model.name}_{path}.bias"
        output = -1
        if layer < last:
            kind = _ACTIVATIONS.get(estimator.activation, estimator.activation)
            place = f"{path}_{kind.lower()}"
            output = hook.steps.number(f"{before}{place}_output_0", int(Role.OUTPUT), place, kind)
        found.append(
            (
                hook.steps.number(weight, int(Role.WEIGHT), path, "Linear"),
                hook.steps.number(bias, int(Role.BIAS), path, "Linear"),
                hook.steps.number(f"gradient/{weight}", int(Role.GRADIENT), path, "Linear"),
                hook.steps.number(f"gradient/{bias}", int(Role.GRADIENT), path, "Linear"),
                output,
                hook.steps.number(f"{before}{path}_input_0", int(Role.INPUT), path, "Linear"),
            )
        )
    return found


def _describe(hook: Hook, model: Model, estimator: Any) -> None:
    modules: list[dict[str, Any]] = [{"path": "", "type": type(estimator).__name__, "settings": {}}]
    parameters: list[dict[str, Any]] = []
    optimizer = _optimizer_name(model, estimator)
    last = len(estimator.coefs_) - 1
    for layer, weight in enumerate(estimator.coefs_):
        path = f"layer{layer}"
        inputs, outputs = (int(size) for size in weight.shape)
        settings = {"in_features": inputs, "out_features": outputs}
        modules.append({"path": path, "type": "Linear", "settings": settings, "builtin": True})
        if layer < last:
            kind = _ACTIVATIONS.get(estimator.activation, estimator.activation)
            place = f"{path}_{kind.lower()}"
            modules.append({"path": place, "type": kind, "settings": {}, "builtin": True})
        for leaf, shape in (("weight", [inputs, outputs]), ("bias", [outputs])):
            parameters.append(
                {"path": f"{path}.{leaf}", "name": f"{model.name}_{path}.{leaf}", "shape": shape,
                 "dtype": str(weight.dtype), "requires_grad": True, "optimizer": optimizer, "group": 0}
            )  # fmt: skip
    for module in modules:
        module |= {"name": module["path"] or model.name, "number": model.number * 1000 + modules.index(module),
                   "training": True}  # fmt: skip
    description = {"name": model.name, "type": type(estimator).__name__, "modules": modules,
                   "parameters": parameters, "buffers": []}  # fmt: skip
    settings = {"lr": estimator.learning_rate_init, "weight_decay": estimator.alpha}
    if estimator.solver == "sgd":
        settings["momentum"] = estimator.momentum
    hook.describe(
        model,
        description,
        {"number": 0, "name": optimizer, "type": optimizer.partition("/")[0], "defaults": settings,
         "groups": [{"settings": settings, "parameters": len(parameters)}], "foreign": 0},
        estimator.learning_rate if estimator.solver == "sgd" and estimator.learning_rate != "constant" else "",
    )  # fmt: skip
