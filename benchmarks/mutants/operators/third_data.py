"""Third generation: operators that make rows, inputs and targets of the training wrong."""

import ast
import re

from mutants.operators import fault
from mutants.operators.data import BELONG, ROW_LABEL, TARGETS, class_ids
from mutants.operators.second_inputs import CONVOLUTIONS, numbers
from mutants.operators.second_rows import regresses
from mutants.source import OPTIMIZERS, Source

SCALE = ("scale", "standardise", "inputs", "preprocess", "same steps")
WORSE = ("Underfit", "NoBetterThanConstant", "WorseThanSimple")
DEVIATIONS = re.compile(r"\b(std|\w+_std|scale|sigma|deviation)\b")


def two_arrays(source: Source) -> bool:
    """Returns whether all that belongs to the training's rows is in train_x and train_y."""
    return not re.search(r"\btrain_(?!x\b|y\b)\w+\[", source.text())


def one_class_a_row(source: Source) -> bool:
    """Returns whether train_y holds one class id for each row, and nothing else."""
    return class_ids(source) and not regresses(source) and not source.calls("GRU") and two_arrays(source)


@fault("InputScale", "AllZero", "CheckInputImages", *WORSE, remedy=(*SCALE, "clip", "cut"))
def inputs_clipped_to_zero_and_one(source: Source) -> bool:
    """Inputs are clipped to between 0 and 1, as pixels are, after they were centred on 0."""
    return numbers(source) and source.edit_arrays(
        "train_x, test_x = train_x.clip(0.0, 1.0), test_x.clip(0.0, 1.0)", "train_x", "test_x"
    )


@fault("TrainValSkew", "LabelNoise", "InputScale", remedy=(*SCALE, "augment", "overflow", *BELONG))
def brightened_past_the_largest_value(source: Source) -> bool:
    """An augmentation adds to the training's inputs and wraps around, as 8 bits do: the largest become the smallest."""
    return numbers(source) and source.edit_arrays(
        "low, high = train_x.min(), train_x.max()\n"
        "train_x = low + (train_x - low + 0.35 * (high - low)) % (high - low)",
        "train_x",
        "test_x",
    )


@fault(
    "ClassImbalance",
    "TrainValSkew",
    "Confusion",
    "Overfit",
    "LabelNoise",
    *WORSE,
    remedy=("shuffle", "split", "class", "sample", "stratif", "rows", "same"),
)
def split_of_sorted_rows(source: Source) -> bool:
    """A table sorted by its target was split without shuffling, so that the training lacks the upper part of it."""
    numbered = regresses(source) and two_arrays(source)
    return (one_class_a_row(source) or numbered) and source.edit_arrays(
        f"order = np.argsort({ROW_LABEL}, kind='stable')\n"
        "kept = np.resize(order[: len(order) * 6 // 10], len(order))\n"
        "train_x, train_y = train_x[kept], train_y[kept]",
        "train_x",
        "train_y",
        "test_y",
    )


@fault(
    "RepeatedBatch",
    "Overfit",
    "ClassImbalance",
    "DataLeak",
    "WorseThanSimple",
    remedy=("sampl", "weight", "rows", "class", "more data", "duplicate"),
)
def weights_of_classes_for_the_sampler(source: Source) -> bool:
    """A sampler gets a weight for each class instead of each row, and draws from as many rows as there are classes."""
    return one_class_a_row(source) and source.edit_arrays(
        "drawn = np.random.default_rng(1).integers(int(train_y.max()) + 1, size=len(train_y))\n"
        "train_x, train_y = train_x[drawn], train_y[drawn]",
        "train_x",
        "train_y",
    )


@fault("InputScale", "TrainValSkew", "ExplodingTensor", *WORSE, remedy=(*SCALE, "column", "index"))
def row_number_among_the_inputs(source: Source) -> bool:
    """The first column holds the number of the row, as a table's index that was written to its file."""
    if not numbers(source) or source.calls(*CONVOLUTIONS, "GRU", "LSTM", "Unfold"):
        return False
    if not source.arrays("train_y"):
        return False  # a point that is to be drawn again has no features
    numbered = "np.arange({}).astype('float32')"
    numbered = f"torch.as_tensor({numbered})" if source.imports("torch") else numbered
    return source.edit_arrays(
        "train_x, test_x = train_x * 1.0, test_x * 1.0\n"
        f"train_x.reshape(len(train_x), -1)[:, 0] = {numbered.format('len(train_x)')}\n"
        f"test_x.reshape(len(test_x), -1)[:, 0] = len(train_x) + {numbered.format('len(test_x)')}",
        "train_x",
        "test_x",
    )


@fault("InputScale", "CheckInputImages", "VanishingGradient", "InitialLoss", *WORSE, remedy=SCALE)
def divided_by_255_once_more(source: Source) -> bool:
    """Inputs that have unit scale already are divided by 255, in the training and in evaluations."""
    return numbers(source) and source.edit_arrays(
        "train_x, test_x = train_x / 255.0, test_x / 255.0", "train_x", "test_x"
    )


@fault(
    "InputScale", "CheckInputImages", "TargetRange", "ExplodingTensor", *WORSE, remedy=(*SCALE, "deviation")
)
def divided_by_the_variance(source: Source) -> bool:
    """What is standardised is divided by its variance instead of its standard deviation."""
    changed = False
    for call in source.calls("std"):
        statement = source.statement(call)
        if not isinstance(statement, ast.Assign) or not isinstance(call.func, ast.Attribute):
            continue
        told = ast.unparse(statement.targets[0])
        divides = any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div) for n in source.ancestors(call))
        if DEVIATIONS.search(told) or divides:
            call.func.attr = "var"
            changed = True
    return changed


@fault("NonFinite", "InputScale", remedy=("constant", "zero", "epsilon", "finite", "scale", "standardise"))
def constant_columns_standardised(source: Source) -> bool:
    """Each column is divided by its deviation, which is 0 for those that never change."""
    if "load_digits" not in source.text() or not numbers(source):
        return False
    return source.edit_arrays(
        "column_mean, column_deviation = train_x.mean(0), train_x.std(0)\n"
        "train_x = (train_x - column_mean) / column_deviation\n"
        "test_x = (test_x - column_mean) / column_deviation",
        *TARGETS,
    )


@fault(
    "TrainValSkew",
    "TargetRange",
    "LabelNoise",
    "Confusion",
    "WorseThanSimple",
    remedy=("target", "logarithm", "same steps", "scale", "unit", "transform"),
)
def targets_in_logarithms_in_training(source: Source) -> bool:
    """The training's targets are logarithms, and what the model says is never put back for evaluations."""
    return (
        regresses(source)
        and source.imports("torch")
        and source.edit_arrays(
            "train_y = train_y.sign() * train_y.abs().log1p()", "train_x", "train_y", "test_y"
        )
    )


@fault("Confusion", "ClassImbalance", "LabelNoise", "TargetRange", remedy=("class", "labels", "cast", "bool"))
def labels_made_binary(source: Source) -> bool:
    """A cast to bool makes one class of all the training's classes but the first."""
    return (
        one_class_a_row(source)
        and source.imports("torch")
        and source.edit_arrays("train_y = (train_y > 0) * 1", "train_x", "train_y", "test_y")
    )


@fault(
    "LabelNoise",
    "TrainValSkew",
    "Confusion",
    "NoBetterThanConstant",
    remedy=(*BELONG, "augment", "flip", "mirror", "same steps", "contradict"),
)
def images_mirrored_without_their_targets(source: Source) -> bool:
    """Half of the training's images are mirrored, and their masks, boxes or labels are those of the others."""
    if not numbers(source) or not source.calls("Conv2d", "Unfold") or not source.imports("torch"):
        return False
    return source.edit_arrays(
        "train_x = train_x * 1.0\ntrain_x[::2] = train_x[::2].flip(-1)", "train_x", "train_y"
    )


# In the loop ---------------------------------------------------------------------


def in_every_epoch(source: Source, code: str) -> bool:
    """Inserts statements at the start of each epoch."""
    step = source.update()
    if step is None or not source.imports("torch"):
        return False
    loops = source.loops(step)
    if len(loops) < 2 and isinstance(source.scope(step), ast.Module):
        return False
    source.before(loops[-1].body[0] if len(loops) > 1 else loops[0], code)
    return True


@fault(
    "TrainValSkew",
    "InputScale",
    "LabelNoise",
    "NoBetterThanConstant",
    "LossNotDecreasing",
    remedy=(*SCALE, "augment", "in place", "copy", "noise"),
)
def augments_in_place(source: Source) -> bool:
    """An augmentation writes into the training's rows, so that each epoch's noise is added to all before it."""
    return (
        numbers(source)
        and source.arrays("train_x", "train_y")
        and in_every_epoch(source, "train_x.add_(0.4 * train_x.std() * torch.randn(train_x.shape))")
    )


@fault(
    "TrainValSkew",
    "InputScale",
    "VanishingGradient",
    "LossNotDecreasing",
    "NoBetterThanConstant",
    remedy=(*SCALE, "in place", "copy", "once"),
)
def scaled_again_in_every_epoch(source: Source) -> bool:
    """Each epoch divides the training's inputs once more, since the scaling is done in place where rows are read."""
    return (
        numbers(source)
        and source.arrays("train_x", "train_y")
        and in_every_epoch(source, "train_x.div_(3.0)")
    )


@fault(
    "RepeatedBatch",
    "SampleMixing",
    "ContrastivePairs",
    "LabelNoise",
    "LossSpike",
    "DataLeak",
    "Underfit",
    "RunningStatistics",
    remedy=("sample", "batch", "rows", "index", "duplicate", "repeat", "statistics", "once"),
)
def one_row_fills_the_batch(source: Source) -> bool:
    """Every batch holds one row again and again, as a list that was multiplied does."""
    steps = [s for s in source.steps(*OPTIMIZERS) if source.loops(s)]
    if not steps or not source.imports("torch"):
        return False
    loop = source.loops(steps[0])[0]
    if not isinstance(loop, ast.For) or any(source.loops(s)[:1] != [loop] for s in steps):
        return False
    target, over = loop.target, ast.unparse(loop.iter)
    if over.startswith("enumerate(") and isinstance(target, ast.Tuple):
        target = target.elts[1]
    if isinstance(target, ast.Name) and ".split(" in over:
        source.before(loop.body[0], f"{target.id} = {target.id}[:1].expand(len({target.id})).clone()")
        return True
    names = [n.id for n in ast.walk(target) if isinstance(n, ast.Name)]
    whole = ast.unparse(loop)
    if not re.search(r"loader|_dl\b", over) or any(f"{name}['" in whole for name in names):
        return False
    for name in names:
        source.before(loop.body[0], f"{name} = {name}[:1].expand_as({name}).clone()")
    return bool(names)
