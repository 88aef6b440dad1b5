"""Second generation: operators that make rows, labels and targets of the training wrong."""

from mutants.operators import fault
from mutants.operators.data import BELONG, class_ids
from mutants.operators.losses import REGRESSION
from mutants.operators.second_inputs import numbers
from mutants.source import Source


@fault(
    "Overfit",
    "RepeatedBatch",
    "DataLeak",
    "WorseThanSimple",
    "Overtraining",
    remedy=(
        "more data",
        "rows",
        "subset",
        "sample",
        "regularis",
        "duplicates",
        "iterator",
        "earlier",
        "stop",
    ),
)
def few_rows_left_from_debugging(source: Source) -> bool:
    """Only the first 24 rows are trained on, again and again, as was of use to find out whether all runs."""
    few = "few = np.arange(len(train_x)) % 24\n"
    if source.arrays("train_x", "train_y"):
        return source.edit_arrays(f"{few}train_x, train_y = train_x[few], train_y[few]", "train_x", "train_y")
    return source.edit_arrays(f"{few}train_x = train_x[few]", "train_x")


@fault(
    "LabelNoise",
    "SampleMixing",
    "TrainValSkew",
    "NoBetterThanConstant",
    remedy=(*BELONG, "mix", "same steps", "augment"),
)
def inputs_mixed_without_their_labels(source: Source) -> bool:
    """Each input is mixed with that of another row, of which it gets the larger part, but keeps its own target."""
    return numbers(source) and source.edit_arrays(
        "other = np.random.default_rng(1).permutation(len(train_x))\n"
        "train_x = 0.35 * train_x + 0.65 * train_x[other]",
        "train_x",
        "train_y",
    )


@fault("Confusion", "LabelNoise", "TrainValSkew", remedy=("class names", "labels", "order", "same"))
def classes_numbered_in_reverse(source: Source) -> bool:
    """The training numbers the classes from the last to the first, evaluations from the first to the last."""
    return (
        class_ids(source)
        and not source.imports("jax")
        and source.edit_arrays("train_y = train_y.max() - train_y", "train_x", "train_y", "test_x", "test_y")
    )


@fault(
    "LabelNoise",
    "Confusion",
    "NoBetterThanConstant",
    "ConstantOutput",
    "Overfit",
    remedy=(*BELONG, "augment", "class", "contradict"),
)
def augmentation_that_changes_the_class(source: Source) -> bool:
    """Half of the training's rows are turned inside out, largest for smallest, and keep their labels."""
    return (
        numbers(source)
        and class_ids(source)
        and source.edit_arrays(
            "train_x = train_x * 1.0\ntrain_x[::2] = train_x.max() + train_x.min() - train_x[::2]",
            "train_x",
            "train_y",
        )
    )


def regresses(source: Source) -> bool:
    """Returns whether train_y holds numbers that a regression aims at."""
    own = bool(source.losses(*REGRESSION)) or "def pinball" in source.text()
    return own and source.arrays("train_x", "train_y") and not source.calls("Embedding")


@fault(
    "LabelNoise",
    "TargetRange",
    "TrainValSkew",
    "NoBetterThanConstant",
    "Confusion",
    "WorseThanSimple",
    remedy=("float", "integer", "cast", "targets", "labels", "same steps"),
)
def targets_cut_to_integers(source: Source) -> bool:
    """A cast to integers cuts off what stands behind the point of the training's targets."""
    return regresses(source) and source.edit_arrays(
        "train_y = train_y.long().float()", "train_x", "train_y", "test_y"
    )


@fault(
    "TargetRange",
    "InitialLoss",
    "Underfit",
    "WorseThanSimple",
    "NoBetterThanConstant",
    "ExplodingTensor",
    remedy=("scale the targets", "standardise", "targets", "learning rate"),
)
def targets_not_standardised(source: Source) -> bool:
    """Targets of a regression are hundreds, in a unit of their own."""
    return regresses(source) and source.edit_arrays(
        "train_y, test_y = train_y * 100.0 + 500.0, test_y * 100.0 + 500.0", "train_x", "train_y", "test_y"
    )


@fault("TrainValSkew", "Confusion", "LabelNoise", remedy=("same steps", "scale", "targets", "unit"))
def targets_in_another_unit_in_training(source: Source) -> bool:
    """The training's targets are 3 times those of evaluations, as pounds beside kilograms."""
    return regresses(source) and source.edit_arrays("train_y = train_y * 3.0", "train_x", "train_y", "test_y")
