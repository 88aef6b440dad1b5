"""Operators that take apart what belongs together: rows, columns, views, windows and their targets."""

import ast

from mutants.operators import fault, healthy
from mutants.source import Loss, Source
from mutants.tree import name_of

NUMBERS = (
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
)
FLATTENERS = ("flatten", "reshape", "view")


def several_targets(source: Source, code: str, *names: str) -> bool:
    """Inserts statements that hold where rows have several targets."""
    if not source.losses(*NUMBERS) or source.imports("jax"):
        return False
    indented = "\n    ".join(code.splitlines())
    return source.edit_arrays(f"if {names[0]}.ndim == 2 and {names[0]}.shape[1] > 1:\n    {indented}", *names)


def flattened(source: Source) -> list[Loss]:
    """Returns the losses whose two arguments are flattened in their call."""
    return [
        loss
        for loss in source.losses("cross_entropy", "nll_loss")
        if all(
            isinstance(a, ast.Call) and isinstance(a.func, ast.Attribute) and name_of(a.func) in FLATTENERS
            for a in loss.call.args[:2]
        )
    ]


def transpose(source: Source, flat: ast.expr) -> None:
    """Exchanges the first two axes of what a call flattens."""
    assert isinstance(flat, ast.Call) and isinstance(flat.func, ast.Attribute)
    if flat.func.attr == "view":
        flat.func.attr = "reshape"
    source.replace(flat.func.value, "{}.transpose(0, 1)")


@fault("LossShapeMismatch", "NoBetterThanConstant", remedy=("flatten both",))
def outputs_flattened_in_another_order(source: Source) -> bool:
    """The axes of samples and places are exchanged before the outputs are flattened, and not those of the targets."""
    losses = flattened(source)
    for loss in losses:
        transpose(source, loss.call.args[0])
    return bool(losses)


@healthy
def flattens_both_transposed(source: Source) -> bool:
    """Outputs and targets are transposed before both are flattened."""
    losses = flattened(source)
    for loss in losses:
        transpose(source, loss.call.args[0])
        transpose(source, loss.call.args[1])
    return bool(losses)


@fault("LabelNoise", "NoBetterThanConstant", remedy=("belong", "same index"))
def targets_of_another_row(source: Source) -> bool:
    """The next tokens of a batch are those of the row before."""
    losses = flattened(source) if source.calls("Embedding") else []
    for loss in losses:
        target = loss.call.args[1]
        assert isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute)
        source.replace(target.func.value, "{}.roll(1, 0)")
    return bool(losses)


@fault("Confusion", "TrainValSkew", remedy=("order of the target", "same steps"))
def target_columns_exchanged_in_evaluation(source: Source) -> bool:
    """The test's targets have their columns in another order."""
    return several_targets(source, "test_y = test_y[:, [*range(1, test_y.shape[1]), 0]]", "test_y")


@healthy
def orders_columns_alike(source: Source) -> bool:
    """Targets of the training and of the test have their columns in another order, the same one."""
    return several_targets(
        source,
        "train_y = train_y[:, [*range(1, train_y.shape[1]), 0]]\n"
        "test_y = test_y[:, [*range(1, test_y.shape[1]), 0]]",
        "train_y",
        "test_y",
    )


@fault("Confusion", "TrainValSkew", remedy=("value means", "same steps"))
def targets_turned_over_in_evaluation(source: Source) -> bool:
    """What is high in the training's targets is low in those of the test."""
    if not source.losses(*NUMBERS) or source.imports("jax"):
        return False
    return source.edit_arrays("test_y = test_y.max() + test_y.min() - test_y", "test_y")


@fault("TargetRange", "Confusion", remedy=("column",))
def one_target_missing(source: Source) -> bool:
    """The first of several targets was lost in the training's source, and filled with zeros."""
    return several_targets(source, "train_y = train_y * 1.0\ntrain_y[:, 0] = 0", "train_y", "test_y")


@fault("DataLeak", remedy=("windows",))
def windows_reach_into_their_targets(source: Source) -> bool:
    """The training's windows end four steps after their targets begin."""
    return bool(source.calls("sliding_window_view")) and source.edit_arrays(
        "train_x, train_y = train_x[4:], train_y[:-4]", "train_x", "train_y"
    )


@fault("ContrastivePairs", remedy=("twice",))
def one_view_for_both(source: Source) -> bool:
    """Both views of a pair are one and the same augmentation."""
    for node in ast.walk(source.tree):
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)):
            continue
        views = node.value.elts
        if (
            len(views) == 2
            and "augment" in ast.unparse(views[0])
            and ast.unparse(views[0]) == ast.unparse(views[1])
        ):
            source.before(node, f"same = {ast.unparse(views[0])}")
            for view in views:
                source.replace(view, "same")
            return True
    return False
