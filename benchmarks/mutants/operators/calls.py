"""A call that is missing, or is made at the wrong place."""

import ast

from mutants.operators import fault, healthy
from mutants.source import Source


@fault("GradientNotCleared", remedy=("zero_grad",), contract=True)
def gradients_never_cleared(source: Source) -> bool:
    """Gradients of all batches add up: zero_grad is missing."""
    calls = source.calls("zero_grad")
    for call in calls:
        source.drop(call)
    return bool(calls)


@fault("GradientNotCleared", "NoGradient", "StepSkipped", remedy=("zero_grad", "backward"), contract=True)
def cleared_after_backward(source: Source) -> bool:
    """zero_grad between backward and step: every update sees no gradient."""
    cleared, backward = source.calls("zero_grad"), source.calls("backward")
    if len(cleared) != 1 or len(backward) != 1:
        return False
    text = source.statement(cleared[0])
    source.drop(cleared[0])
    source.after(backward[0], ast.unparse(text))
    return True


@fault("ModeMismatch", remedy=("eval()", "train()"), contract=True)
def evaluation_in_train_mode(source: Source) -> bool:
    """The evaluation runs with dropout and batch statistics: eval() is missing."""
    calls = source.calls("eval")
    for call in calls:
        source.drop(call)
    return bool(calls) and bool(source.calls("Dropout", "BatchNorm1d", "BatchNorm2d", "dropout"))


@healthy
def clips_gradients(source: Source) -> bool:
    """Clips the norm of gradients before each update, as recipes do."""
    backward, name = source.calls("backward"), source.optimizer_name()
    if len(backward) != 1 or name is None:
        return False
    parameters = f"[p for g in {name}.param_groups for p in g['params']]"
    source.after(backward[0], f"torch.nn.utils.clip_grad_norm_({parameters}, 5.0)")
    return True
