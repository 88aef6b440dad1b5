"""Operators that make data or batches wrong."""

import ast

from mutants.operators import fault
from mutants.source import OPTIMIZERS, Source
from mutants.tree import name_of

LABELS_APART = ("NoBetterThanConstant", "LabelNoise", "Overfit")
BELONG = ("belong", "targets are loaded", "source", "labels")
ROW_LABEL = "np.asarray(train_y).reshape(len(train_y), -1)[:, 0]"


def class_ids(source: Source) -> bool:
    """Returns whether train_y holds one class id for each row."""
    return bool(source.losses("cross_entropy", "nll_loss")) and not source.calls("one_hot")


@fault(*LABELS_APART, remedy=BELONG)
def labels_shuffled(source: Source) -> bool:
    """Targets are shuffled, but inputs are not."""
    return source.edit_arrays(
        "train_y = train_y[np.random.default_rng(1).permutation(len(train_y))]", "train_x", "train_y"
    )


@fault(*LABELS_APART, remedy=BELONG)
def labels_shifted_by_a_row(source: Source) -> bool:
    """Each input has the target of the row before it."""
    return source.edit_arrays("train_y = train_y[np.arange(len(train_y)) - 1]", "train_x", "train_y")


@fault("Confusion", "LabelNoise", remedy=("class names", "labels"))
def classes_exchanged(source: Source) -> bool:
    """The numbers of classes 0 and 1 are exchanged in the training's labels."""
    return (
        class_ids(source)
        and not source.imports("jax")
        and source.edit_arrays(
            "train_y = train_y * 1\nfirst, second = train_y == 0, train_y == 1\ntrain_y[first], train_y[second] = 1, 0",
            "train_x",
            "train_y",
        )
    )


# Confusion is planned to report one-sided confusion, with the pair of classes.
@fault("Confusion", "LabelNoise", remedy=("class names", "labels"))
def classes_numbered_from_one(source: Source) -> bool:
    """The training's labels are one higher than those of evaluations; the last class became the first."""
    return (
        class_ids(source)
        and not source.imports("jax")
        and source.edit_arrays(
            "train_y = (train_y + 1) % (int(train_y.max()) + 1)", "train_x", "train_y", "test_x", "test_y"
        )
    )


@fault("Confusion", "ClassImbalance", "LabelNoise", remedy=("class", "labels"))
def most_rows_of_a_class_mislabelled(source: Source) -> bool:
    """Four of five training rows of class 0 have the label 1."""
    return (
        class_ids(source)
        and not source.imports("jax")
        and source.edit_arrays(
            "train_y = train_y * 1\nzeros = np.flatnonzero(train_y == 0)\ntrain_y[zeros[: len(zeros) * 4 // 5]] = 1",
            "train_x",
            "train_y",
            "test_x",
            "test_y",
        )
    )


@fault("Confusion", "ClassImbalance", "LabelNoise", remedy=("class", "labels"))
def one_class_labelled_as_another(source: Source) -> bool:
    """Rows of class 0 have the label 1 in training."""
    return (
        class_ids(source)
        and not source.imports("jax")
        and source.edit_arrays("train_y = train_y * 1\ntrain_y[train_y == 0] = 1", "train_x", "train_y")
    )


# ClassImbalance is planned to report classes that are almost absent.
@fault("ClassImbalance", "Confusion", "TrainValSkew", remedy=("class", "sample"))
def one_class_missing(source: Source) -> bool:
    """A filter has removed all training rows of class 0, and others were drawn twice in their place."""
    return class_ids(source) and source.edit_arrays(
        f"kept = np.resize(np.flatnonzero({ROW_LABEL} != 0), len(train_y))\n"
        "train_x, train_y = train_x[kept], train_y[kept]",
        "train_x",
        "train_y",
    )


# InputScale is planned to report a single column that is orders of magnitude larger as a separate cause.
@fault("InputScale", "LossSpike", remedy=("standardise",))
def one_column_not_scaled(source: Source) -> bool:
    """One column of the inputs is 1e5 times as large as the others."""
    return source.real_inputs() and source.edit_arrays(
        "train_x, test_x = train_x * 1.0, test_x * 1.0\ntrain_x[..., 0] *= 1e5\ntest_x[..., 0] *= 1e5",
        "train_x",
        "test_x",
    )


@fault("InputScale", remedy=("standardise",))
def inputs_not_scaled(source: Source) -> bool:
    """Inputs are 255 times as large as the model expects, as are pixels that were not divided."""
    return source.real_inputs() and source.edit_arrays(
        "train_x, test_x = train_x * 255.0, test_x * 255.0", "train_x", "test_x"
    )


@fault("TrainValSkew", remedy=("same steps", "mean and deviation"))
def evaluation_scaled_otherwise(source: Source) -> bool:
    """Inputs of evaluations are scaled differently from those of the training."""
    return source.real_inputs() and source.edit_arrays("test_x = test_x * 4.0 + 3.0", "train_x", "test_x")


LEAK = "n = min(len(train_x), len(test_x)) // 2\n"
TARGETS = ("train_x", "train_y", "test_x", "test_y")


# A leak improves the score but is still a fault, hence `contract`.
@fault("DataLeak", remedy=("split", "duplicates"), contract=True)
def duplicated_before_the_split(source: Source) -> bool:
    """Rows are duplicated before the split, so that half of the held-out rows are training rows."""
    return source.real_inputs() and source.edit_arrays(
        f"{LEAK}test_x, test_y = test_x * 1, test_y * 1\n"
        "test_x[: 2 * n : 2], test_y[: 2 * n : 2] = train_x[:n], train_y[:n]",
        *TARGETS,
    )


@fault("DataLeak", remedy=("split", "duplicates"), contract=True)
def test_rows_in_the_training(source: Source) -> bool:
    """The training also uses the held-out rows."""
    return source.real_inputs() and source.edit_arrays(
        "n = min(len(train_x), len(test_x))\ntrain_x, train_y = train_x * 1, train_y * 1\n"
        "train_x[:n], train_y[:n] = test_x[:n], test_y[:n]",
        *TARGETS,
    )


@fault(
    "TrainValSkew",
    "SampleMixing",
    "NoBetterThanConstant",
    "LabelNoise",
    "Overfit",
    remedy=("transpose", "axes", *BELONG),
)
def rows_mixed_by_reshape(source: Source) -> bool:
    """A reshape instead of a transposition mixes the rows of the inputs."""
    return source.real_inputs() and source.edit_arrays(
        "train_x = train_x.swapaxes(0, -1).reshape(train_x.shape)", "train_x", "train_y"
    )


@fault("NonFinite", remedy=("not finite", "samples"))
def some_rows_are_nan(source: Source) -> bool:
    """Every fiftieth training row holds NaN."""
    return source.real_inputs() and source.edit_arrays(
        "train_x = train_x * 1.0\ntrain_x[::50] = float('nan')", "train_x"
    )


@fault("TrainValSkew", "AllZero", remedy=("same steps", "mean and deviation"))
def columns_lost_in_training(source: Source) -> bool:
    """Half of the columns are zero in the training's inputs."""
    return source.real_inputs() and source.edit_arrays(
        "train_x = train_x * 1.0\ntrain_x[..., ::2] = 0", "train_x", "test_x"
    )


# CausalLeak is planned to report next-token targets that equal the inputs.
@fault("CausalLeak", remedy=("shift", "next"), contract=True)
def next_tokens_not_shifted(source: Source) -> bool:
    """The targets of a next-token model are its inputs, without the shift by one."""
    changed = False
    if not source.losses("cross_entropy") or not source.calls("Embedding"):
        return False
    starts = {ast.unparse(n.slice) for n in ast.walk(source.tree) if isinstance(n, ast.Subscript)}
    for n in ast.walk(source.tree):
        if isinstance(n, ast.Subscript) and ast.unparse(n.slice).strip("()") == ":, 1:":
            if {"(:, :-1)", ":, :-1"} & starts:
                source.replace(n.slice, "(slice(None), slice(None, -1))")
                changed = True
        if (
            isinstance(n, ast.Subscript)
            and isinstance(n.slice, ast.Slice)
            and n.slice.lower
            and n.slice.upper
        ):
            low, high = ast.unparse(n.slice.lower), ast.unparse(n.slice.upper)
            if (
                low.endswith(" + 1")
                and high.startswith(low)
                and f"{low[:-4]}:{low[:-4]}{high[len(low) :]}" in starts
            ):
                source.replace(n.slice.lower, low[:-4])
                source.replace(n.slice.upper, low[:-4] + high[len(low) :])
                changed = True
    return changed


@fault("RepeatedBatch", remedy=("iterator",))
def one_batch_again_and_again(source: Source) -> bool:
    """The loop over batches takes the first batch each time."""
    steps = [c for c in source.steps(*OPTIMIZERS) if source.loops(c) and not c.args]
    if not steps or not isinstance(source.loops(steps[0])[0], ast.For):
        return False
    loop = source.loops(steps[0])[0]
    batches = loop.iter
    while isinstance(batches, ast.Call) and name_of(batches.func) in ("enumerate", "tqdm"):
        batches = batches.args[0]
    if isinstance(batches, ast.Call) and name_of(batches.func) == "range" and len(batches.args) < 3:
        return False  # the loop itself draws the batch
    source.replace(batches, f"[next(iter({ast.unparse(batches)}))] * len(list({ast.unparse(batches)}))")
    source.unshuffle()
    return True
