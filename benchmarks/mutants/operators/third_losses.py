"""Third generation: operators that give a loss something else than is meant, or cut it off."""

import ast
import re

from mutants.operators import fault
from mutants.operators.losses import REGRESSION, change_outputs, with_class_ids
from mutants.source import LOSSES, OPTIMIZERS, Source
from mutants.tree import base_text, set_keyword

LOGITS = "binary_cross_entropy_with_logits"
NOTHING_LEARNT = ("NoGradient", "UnchangedTensor", "VanishingGradient", "LossNotDecreasing", "Underfit")
RANGE = ("range", "between 0 and 1", "0 and 1", "targets", "labels", "scale", "divide")


@fault(
    *NOTHING_LEARNT,
    "LossFormula",
    "LossInputContract",
    "ConstantOutput",
    remedy=("round", "threshold", "differentia", "gradient", "graph", "scores"),
)
def outputs_rounded_before_the_loss(source: Source) -> bool:
    """Outputs are rounded before the loss, which leaves no gradient."""
    return change_outputs(source, "torch.round({})", *REGRESSION, LOGITS)


@fault(
    "LossInputContract",
    "TargetRange",
    "DeadRelu",
    "ConstantOutput",
    "InitialLoss",
    *NOTHING_LEARNT,
    remedy=("clamp", "clip", "activation", "scores", "logits", "limit", "sigmoid", "scale the targets"),
)
def outputs_clamped_to_zero_and_one(source: Source) -> bool:
    """Outputs are clamped to between 0 and 1 before the loss, though they are scores, or numbers of another range."""
    return change_outputs(source, "{}.clamp(0.0, 1.0)", *REGRESSION, LOGITS, "cross_entropy")


@fault(
    "StepSkipped",
    "LossShapeMismatch",
    "LossSpike",
    "LossNotDecreasing",
    "WeightUpdateRatio",
    "Underfit",
    remedy=("every sample", "whole batch", "all rows", "batch", "mean", "average", "learning rate", "index"),
)
def only_the_last_row_of_a_batch_counts(source: Source) -> bool:
    """A loop over a batch overwrites the loss, so that only its last row is learnt."""
    found = source.losses(*LOSSES.values()) if source.imports("torch") else []
    for loss in found:
        for argument in loss.call.args[:2]:
            source.replace(argument, "{}[-1:]")
    return bool(found)


@fault(
    "LossFormula",
    "LossInputContract",
    "TargetRange",
    "LossShapeMismatch",
    "ConstantOutput",
    "NoBetterThanConstant",
    "Confusion",
    remedy=("cross_entropy", "cross entropy", "class", "scores", "formula"),
)
def classes_learnt_as_numbers(source: Source) -> bool:
    """A loss for numbers compares the mean of a row's scores with the number of its class."""
    return with_class_ids(source, "torch.nn.functional.mse_loss({output}.mean(-1), {target}.float())")


@fault(
    "ClassImbalance",
    "Confusion",
    "ConstantOutput",
    "NoBetterThanConstant",
    "InitialLoss",
    remedy=("weight", "class", "positive"),
)
def positives_outweigh_all(source: Source) -> bool:
    """Each positive counts two hundred times: `pos_weight` is a count of negatives, not their ratio to positives."""
    found = source.losses(LOGITS)
    for loss in found:
        set_keyword(loss.maker, "pos_weight", "torch.tensor(200.0)")
    return bool(found) and source.imports("torch")


@fault("NonFinite", remedy=("sqrt", "square root", "epsilon", "zero", "norm", "inside"))
def root_of_a_sum_that_is_zero(source: Source) -> bool:
    """A penalty takes the root of sums of squares, some of which are 0, where its gradient is not finite."""
    step, objectives = source.update(), source.objectives()
    if step is None or len(objectives) != 1 or not source.imports("torch"):
        return False
    if not re.search(r"BatchNorm|LayerNorm|GroupNorm|zeros_\(|Parameter\(torch\.zeros", source.text()):
        return False
    if source.scope(step) is not source.scope(objectives[0]) or len(source.steps(*OPTIMIZERS)) != 1:
        return False
    own = f"for group in {base_text(step)}.param_groups for p in group['params']"
    source.replace(objectives[0], f"({{}} + 0.0001 * sum(p.square().sum().sqrt() {own}))")
    return True


@fault(
    *NOTHING_LEARNT,
    "LossFormula",
    "NoBetterThanConstant",
    remedy=("clamp", "clip", "limit", "bound", "gradient", "cut", "formula"),
)
def loss_cut_off_above(source: Source) -> bool:
    """The loss is clamped to at most 0.5 against explosions; while it is larger, it has no gradient."""
    found = source.objectives() if source.imports("torch") else []
    for objective in found:
        source.replace(objective, "{}.clamp(max=0.5)")
    return bool(found)


@fault(
    "LossFormula",
    "ConstantOutput",
    "NoBetterThanConstant",
    "LabelNoise",
    "TargetGradient",
    "Confusion",
    "TrainValSkew",
    remedy=("labels", "targets", "own", "belong", "formula", "detach"),
)
def learns_its_own_answers(source: Source) -> bool:
    """The loss gets the model's own predicted classes where the labels belong."""
    return with_class_ids(
        source, "torch.nn.functional.cross_entropy((scores := {output}), scores.argmax(1) + 0 * {target})"
    )


@fault(
    "TargetRange", "LossInputContract", "LossNotDecreasing", "ExplodingTensor", remedy=RANGE, contract=True
)
def targets_of_minus_one_and_one(source: Source) -> bool:
    """Binary cross entropy gets targets of -1 and 1, as a hinge loss would."""
    found = source.losses(LOGITS)
    for loss in found:
        source.replace(loss.call.args[1], "(2 * {} - 1)")
    return bool(found) and source.imports("torch")


@fault(
    "TargetRange", "LossInputContract", "LossNotDecreasing", "ExplodingTensor", remedy=RANGE, contract=True
)
def targets_of_0_and_255(source: Source) -> bool:
    """Binary cross entropy gets targets of 0 and 255, as a mask is read from its file."""
    found = source.losses(LOGITS)
    for loss in found:
        source.replace(loss.call.args[1], "({} * 255.0)")
    return bool(found) and source.imports("torch")


@fault(
    "ContrastivePairs",
    "ExplodingTensor",
    "InitialLoss",
    "ModeCollapse",
    "LossFormula",
    "LossSpike",
    remedy=("normalis", "normaliz", "unit length", "scale", "temperature", "length"),
)
def vectors_not_normalised(source: Source) -> bool:
    """Likenesses are of vectors whose length was not made 1."""
    changed = False
    for call in source.calls("normalize") if source.imports("torch") else []:
        whole = [n for n in source.ancestors(call) if isinstance(n, ast.FunctionDef | ast.For)]
        if whole and not source.without_gradient(call):
            source.replace(call, ast.unparse(call.args[0]))
            changed = True
    return changed
