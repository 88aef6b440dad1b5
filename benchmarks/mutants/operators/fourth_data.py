"""Fourth generation: operators that make rows and targets of the training wrong."""

import ast
import re

from mutants.operators import fault
from mutants.operators.data import BELONG
from mutants.operators.second_inputs import numbers
from mutants.operators.second_rows import regresses
from mutants.operators.third_data import DEVIATIONS, SCALE, WORSE, one_class_a_row
from mutants.source import Source

MEANS = re.compile(r"\b(mean|\w+_mean|mu|average)\b")


@fault(
    "InputScale",
    "TargetRange",
    "CheckInputImages",
    "InitialLoss",
    *WORSE,
    remedy=(*SCALE, "mean", "deviation"),
)
def mean_and_deviation_exchanged(source: Source) -> bool:
    """What is standardised loses its deviation and is divided by its mean: the two arguments are exchanged."""
    changed = False
    for node in list(ast.walk(source.tree)):
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
            continue
        inner = node.left
        if not isinstance(inner, ast.BinOp) or not isinstance(inner.op, ast.Sub):
            continue
        known = MEANS.search(ast.unparse(inner.right)) and DEVIATIONS.search(ast.unparse(node.right))
        if known and isinstance(source.scope(node), ast.Module) and not source.loops(node):
            inner.right, node.right = node.right, inner.right
            changed = True
    return changed


@fault(
    "TargetRange",
    "Confusion",
    "LabelNoise",
    "TrainValSkew",
    "ConstantOutput",
    *WORSE,
    remedy=("negative", "targets", "labels", "cut", "clip", "same steps", "scale"),
)
def negative_targets_become_zero(source: Source) -> bool:
    """The training's targets went through a type without a sign, which made all that is negative 0."""
    return regresses(source) and source.edit_arrays(
        "train_y = train_y.clip(min=0.0)", "train_x", "train_y", "test_y"
    )


@fault(
    "InputScale",
    "LossSpike",
    "ExplodingTensor",
    "TrainValSkew",
    "LabelNoise",
    *WORSE,
    remedy=(*SCALE, "rows", "samples", "outlier", "unit"),
)
def rows_in_another_unit(source: Source) -> bool:
    """Every twelfth row of the training has another unit: its inputs are a thousand times as large."""
    return numbers(source) and source.edit_arrays(
        "train_x = train_x * 1.0\ntrain_x[::12] = train_x[::12] * 1000.0", "train_x", "test_x"
    )


@fault(
    "AllZero",
    "LabelNoise",
    "TrainValSkew",
    "InputScale",
    "NLPSequenceRatio",
    *WORSE,
    remedy=("zero", "empty", "read", "rows", "missing", *BELONG, "same steps"),
)
def rows_that_could_not_be_read(source: Source) -> bool:
    """Four of five training rows could not be read, and zeros stand in their place beside their targets."""
    return numbers(source) and source.edit_arrays(
        "train_x = train_x * 1.0\ntrain_x[np.arange(len(train_x)) % 5 != 0] = 0.0", "train_x", "test_x"
    )


@fault(
    "TrainValSkew",
    "LabelNoise",
    "NoBetterThanConstant",
    "Confusion",
    "Underfit",
    "Overfit",
    remedy=(*SCALE, "mean", "group", "class", *BELONG),
)
def centred_class_by_class(source: Source) -> bool:
    """The training's inputs are centred within each class, which takes away what tells classes apart."""
    return (
        one_class_a_row(source)
        and numbers(source)
        and source.edit_arrays(
            "train_x = train_x * 1.0\n"
            "for group in np.unique(np.asarray(train_y)):\n"
            "    own = np.flatnonzero(np.asarray(train_y) == group)\n"
            "    train_x[own] = train_x[own] - train_x[own].mean(0)",
            "train_x",
            "train_y",
            "test_x",
        )
    )
