"""Second generation: operators that write a loss wrongly, or add to it."""

import ast

from mutants.operators import fault
from mutants.operators.data import class_ids
from mutants.operators.losses import REGRESSION, change_outputs, with_class_ids
from mutants.source import OPTIMIZERS, Source
from mutants.tree import base_text, keyword

SCORES = ("cross_entropy", "binary_cross_entropy_with_logits")


def with_numbers(source: Source, code: str) -> bool:
    """Replaces losses of a regression by another one."""
    found = [loss for loss in source.losses(*REGRESSION) if not keyword(loss.maker, "reduction")]
    for loss in found:
        output, target = (ast.unparse(a) for a in loss.call.args[:2])
        source.replace(loss.call, code.format(output=f"({output})", target=f"({target})"))
    return bool(found) and source.imports("torch")


@fault(
    "LossFormula",
    "ExplodingTensor",
    "LossNotDecreasing",
    "NonFinite",
    remedy=("abs", "square", "lower bound", "sign", "minimised"),
)
def errors_keep_their_sign(source: Source) -> bool:
    """The loss is the mean of the errors themselves, neither squared nor without their sign."""
    return with_numbers(source, "({output} - {target}).mean()")


@fault(
    "LossFormula",
    "NoBetterThanConstant",
    "ConstantOutput",
    "LossShapeMismatch",
    "WorseThanSimple",
    remedy=("mean", "square", "constant", "sample"),
)
def mean_before_the_square(source: Source) -> bool:
    """The mean of the errors is squared, instead of the mean of their squares."""
    return with_numbers(source, "({output} - {target}).mean().square()")


@fault("LossFormula", "TargetRange", "LossInputContract", remedy=("log", "target", "scale", "formula"))
def logarithm_of_outputs_only(source: Source) -> bool:
    """The loss compares the logarithm of the outputs with targets that were not put into logarithms."""
    return with_numbers(source, "(torch.log({output}.abs() + 1e-6) - {target}).square().mean()")


@fault("LossInputContract", remedy=("sigmoid", "softmax", "activation", "logits", "scores"), contract=True)
def scores_through_a_sigmoid(source: Source) -> bool:
    """Cross entropy of classes gets scores that a sigmoid has squeezed to between 0 and 1."""
    return change_outputs(source, "torch.sigmoid({})", "cross_entropy")


@fault(
    "InitialLoss",
    "LossInputContract",
    "ExplodingTensor",
    "LossSpike",
    "WeightUpdateRatio",
    "SaturatedActivation",
    "PoorWeightInitialization",
    remedy=("temperature", "scale", "initial", "learning rate", "last layer"),
)
def scores_a_hundred_times_too_large(source: Source) -> bool:
    """Scores are divided by a temperature of 0.01 before the loss."""
    return change_outputs(source, "({} / 0.01)", *SCORES)


@fault(
    "Underfit",
    "LossInputContract",
    "WeightUpdateRatio",
    "VanishingGradient",
    "NoBetterThanConstant",
    remedy=("temperature", "scale", "learning rate"),
)
def scores_a_hundred_times_too_small(source: Source) -> bool:
    """Scores are divided by a temperature of 100 before the loss."""
    return change_outputs(source, "({} / 100.0)", *SCORES)


@fault(
    "ClassImbalance",
    "Confusion",
    "ConstantOutput",
    "NoBetterThanConstant",
    "LossInputContract",
    remedy=("weight", "class"),
)
def weights_for_other_classes(source: Source) -> bool:
    """The loss weighs class 0 five hundred times as much as each other, though it is as frequent as they are."""
    return (
        class_ids(source)
        and source.arrays("train_y")
        and with_class_ids(
            source,
            "torch.nn.functional.cross_entropy((scores := {output}), {target}, "
            "weight=torch.cat([torch.ones(1), torch.full((scores.shape[1] - 1,), 0.002)]))",
        )
    )


@fault(
    "HighDropout",
    "ModeMismatch",
    "Underfit",
    "NoBetterThanConstant",
    "TrainValSkew",
    remedy=("dropout", "drop", "last layer"),
)
def dropout_behind_the_last_layer(source: Source) -> bool:
    """Dropout sets seven of ten predicted numbers to zero before the loss."""
    return change_outputs(source, "torch.nn.functional.dropout({}, 0.7)", *REGRESSION)


@fault(
    "NoGradient",
    "UnchangedTensor",
    "RegularizationDominates",
    "PosteriorCollapse",
    "LossFormula",
    "ConstantOutput",
    "ParamNotOptimized",
    "UnusedResult",
    remedy=("add", "term", "backward", "loss", "weight", "penalty", "detach"),
)
def last_term_replaces_the_others(source: Source) -> bool:
    """The last term of a sum of losses is all that is left of it, as after `=` instead of `+=`."""
    term = source.last_term()
    if term is None or not source.imports("torch"):
        return False
    above = source.ancestors(term)[0]
    if isinstance(above, ast.BinOp) and above.right is term:
        source.replace(above, ast.unparse(term))
        return True
    if isinstance(above, ast.AugAssign):
        code = f"{ast.unparse(above.target)} = {ast.unparse(term)}"
        source.after(above, code)
        source.drop(above)
        return True
    return False


@fault("RegularizationDominates", "Underfit", "ConstantOutput", remedy=("weight decay", "penalty", "weight"))
def penalty_of_all_weights(source: Source) -> bool:
    """The sum of all squared weights is added to the loss without a factor."""
    step, objectives = source.update(), source.objectives()
    if step is None or len(objectives) != 1 or not source.imports("torch"):
        return False
    if source.scope(step) is not source.scope(objectives[0]) or source.calls("unscale_"):
        return False
    if len(source.steps(*OPTIMIZERS)) != 1:
        return False
    own = f"for group in {base_text(step)}.param_groups for p in group['params']"
    source.replace(objectives[0], f"({{}} + sum(p.square().sum() {own}))")
    return True
