"""Fourth generation: operators on losses and what they are given."""

import ast
import re

from mutants.operators import fault
from mutants.operators.losses import REGRESSION, with_class_ids
from mutants.operators.second_kinds import bootstraps
from mutants.source import Source
from mutants.tree import name_of

WEAK = ("Underfit", "NoBetterThanConstant", "WorseThanSimple")
BINARY = "binary_cross_entropy_with_logits"


@fault(
    "LossFormula",
    "LossNotDecreasing",
    "ExplodingTensor",
    "NonFinite",
    "Confusion",
    *WEAK,
    remedy=("sign", "subtract", "add", "lower bound", "minus", "term"),
)
def last_term_is_subtracted(source: Source) -> bool:
    """The last term of a sum of losses is subtracted, so that training makes it larger."""
    term = source.last_term()
    if term is None:
        return False
    above = source.ancestors(term)[0]
    if not isinstance(above, ast.BinOp | ast.AugAssign) or not isinstance(above.op, ast.Add):
        return False
    above.op = ast.Sub()
    return True


@fault(
    "LossFormula",
    "LossNotDecreasing",
    "ConstantOutput",
    "Confusion",
    "ClassImbalance",
    *WEAK,
    remedy=("focal", "1 -", "weigh", "formula", "sign", "probabilit"),
)
def focal_weights_turned_over(source: Source) -> bool:
    """A focal loss weighs rows by the probability of what is right, not by its rest: the surest rows count most."""
    focal = "((own := torch.nn.functional.{}({}, {}, reduction='none')) * torch.exp(-own) ** 2).mean()"
    changed = with_class_ids(source, focal.format("cross_entropy", "{output}", "{target}"))
    for loss in source.losses(BINARY) if source.imports("torch") else []:
        if loss.plain:
            source.replace(loss.call, focal.format(BINARY, *[ast.unparse(a) for a in loss.call.args]))
            changed = True
    return changed


def columns(source: Source) -> list[ast.Call]:
    """Returns the losses of outputs that have several columns, of which each is a number or a question of its own."""
    if not re.search(r"HORIZON|TAGS|TONES|pixels|\bbox(es)?\b|train_y = both", source.text()):
        return []
    if not source.imports("torch") or source.calls("ConvTranspose2d") or "GAMMA" in source.text():
        return []
    return [loss.call for loss in source.losses(*REGRESSION, BINARY)]


@fault(
    "LossShapeMismatch",
    "NoGradient",
    "Confusion",
    "TargetRange",
    "ConstantOutput",
    *WEAK,
    remedy=("column", "slice", "all", "shape", "index"),
)
def only_the_first_column_counts(source: Source) -> bool:
    """The loss gets the first column of outputs and targets, by a slice that was left from one target."""
    found = columns(source)
    for call in found:
        source.replace(call.args[0], "{}[:, :1]")
        source.replace(call.args[1], "{}[:, :1]")
    return bool(found)


@fault(
    "LossShapeMismatch",
    "LabelNoise",
    "Confusion",
    "TargetRange",
    "TrainValSkew",
    *WEAK,
    remedy=("column", "slice", "shape", "broadcast", "belong", "index"),
)
def first_target_for_all_columns(source: Source) -> bool:
    """Each column of the outputs is compared with the first column of the targets."""
    found = columns(source)
    for call in found:
        source.replace(call.args[1], "(aims := {})[:, :1].expand_as(aims)")
    return bool(found)


@fault(
    "RegularizationDominates",
    "LossFormula",
    "ConstantOutput",
    *WEAK,
    remedy=("penalty", "regularis", "outputs", "weights", "smaller", "remove"),
)
def outputs_are_penalised(source: Source) -> bool:
    """The squares of the outputs are added to the loss, where the squares of the weights were meant."""
    found = source.losses(*REGRESSION, "cross_entropy", BINARY) if source.imports("torch") else []
    for loss in found:
        if not isinstance(loss.call.args[0], ast.Starred):
            source.replace(loss.call.args[0], "(told := {})")
            source.replace(loss.call, "({} + told.square().mean())")
    return bool(found)


@fault(
    "TargetRange",
    "LossInputContract",
    "LossNotDecreasing",
    "LabelNoise",
    "ConstantOutput",
    "ClassImbalance",
    *WEAK,
    remedy=("smooth", "targets", "between 0 and 1", "labels", "range"),
)
def smoothing_forgets_its_factor(source: Source) -> bool:
    """Smoothed labels are 0.9 of the label plus a half, instead of a half of 0.1, and reach 1.4."""
    found = source.losses(BINARY, "binary_cross_entropy") if source.imports("torch") else []
    for loss in found:
        source.replace(loss.call.args[1], "({} * 0.9 + 0.5)")
    return bool(found)


@fault(
    "LossFormula",
    "ClassImbalance",
    "Confusion",
    "ConstantOutput",
    *WEAK,
    remedy=("largest", "hard", "all rows", "mean", "descending", "sort"),
)
def the_easiest_rows_only(source: Source) -> bool:
    """Of each batch the tenth with the smallest losses is learnt, by a sort that was meant to find the hardest rows."""
    found = [loss for loss in source.losses(*REGRESSION, "cross_entropy", BINARY) if loss.plain]
    if not source.imports("torch") or source.calls("one_hot"):
        return False
    for loss in found:
        output, target = (ast.unparse(a) for a in loss.call.args)
        each = f"torch.nn.functional.{loss.kind}({output}, {target}, reduction='none').flatten()"
        source.replace(loss.call, f"(each := {each}).sort().values[:len(each) // 10 + 1].mean()")
    return bool(found)


@fault(
    "LossFormula",
    "LossSpike",
    "ExplodingTensor",
    "TargetRange",
    "NonFinite",
    *WEAK,
    remedy=("relative", "divide", "zero", "percent", "epsilon", "scale"),
)
def relative_errors(source: Source) -> bool:
    """Errors are divided by their target, of which many are next to 0."""
    found = source.losses(*REGRESSION) if source.imports("torch") else []
    for loss in found:
        output, target = (ast.unparse(a) for a in loss.call.args[:2])
        source.replace(loss.call, f"(({output} - (aim := {target})) / aim).abs().mean()")
    return bool(found)


@fault(
    "LossFormula",
    "NoBetterThanConstant",
    "LossNotDecreasing",
    "NoGradient",
    "LossShapeMismatch",
    "Underfit",
    "ConstantOutput",
    remedy=("mean", "each", "average", "own", "batch", "advantage", "return"),
)
def advantages_averaged(source: Source) -> bool:
    """What each action has earned is averaged over the batch, so that every action is as good as any other."""
    changed = False
    for node in [n for n in ast.walk(source.tree) if isinstance(n, ast.BinOp)]:
        left = node.left
        if isinstance(node.op, ast.Mult) and isinstance(left, ast.Call) and name_of(left.func) == "log_prob":
            source.replace(node.right, "({}).mean()")
            changed = True
    sums = [id(one) for one in bootstraps(source)]
    for loss in source.losses(*REGRESSION):
        if id(loss.call.args[1]) in sums:
            output = ast.unparse(loss.call.args[0])
            source.replace(loss.call.args[1], f"({{}}).mean().expand_as({output})")
            changed = True
    return changed
