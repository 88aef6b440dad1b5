"""Second generation: operators that make inputs wrong, in the training, in evaluations, or in both."""

from mutants.operators import fault
from mutants.operators.data import ROW_LABEL, TARGETS, class_ids
from mutants.operators.losses import REGRESSION
from mutants.source import Source

SKEW = ("same steps", "same order", "mean and deviation", "statistics", "scaler", "preprocess")
CONVOLUTIONS = ("Conv1d", "Conv2d", "Conv1D", "Conv2D")
BLUNT = ("float", "integer", "cast", "scale", "standardise", "inputs", "preprocess")


def numbers(source: Source) -> bool:
    """Returns whether inputs are real numbers, not ids of tokens."""
    return source.real_inputs() and "input_ids" not in source.text()


def by_row(array: str) -> str:
    """Returns code that standardises each row of an array by its own mean and deviation."""
    return (
        f"rows = {array}.reshape(len({array}), -1)\n"
        "rows = (rows - rows.mean(1)[:, None]) / (rows.std(1)[:, None] + 1e-6)\n"
        f"{array} = rows.reshape({array}.shape)"
    )


@fault("TrainValSkew", remedy=SKEW)
def evaluation_scaled_row_by_row(source: Source) -> bool:
    """Each row of an evaluation is standardised by its own mean and deviation, and no row of the training is."""
    return numbers(source) and source.edit_arrays(by_row("test_x"), "train_x", "test_x")


@fault(
    "InputScale",
    "CheckInputImages",
    "Underfit",
    "NoBetterThanConstant",
    "WorseThanSimple",
    remedy=("axis", "column", "standardise", "inputs", "scale"),
)
def scaled_over_the_wrong_axis(source: Source) -> bool:
    """Rows are standardised instead of columns, in the training and in evaluations."""
    if source.calls(*CONVOLUTIONS) or "load_digits" in source.text():
        return False  # each image by its own mean is one way to scale images
    return numbers(source) and source.edit_arrays(
        f"{by_row('train_x')}\n{by_row('test_x')}", "train_x", "test_x"
    )


@fault("TrainValSkew", "Confusion", remedy=(*SKEW, "order", "columns"))
def columns_in_another_order_in_evaluation(source: Source) -> bool:
    """The columns of an evaluation come in the reverse of the training's order."""
    return numbers(source) and source.edit_arrays(
        "rows = test_x.reshape(len(test_x), -1)\n"
        "test_x = rows[:, np.arange(rows.shape[1])[::-1].copy()].reshape(test_x.shape)",
        "train_x",
        "test_x",
    )


@fault(
    "InputScale",
    "AllZero",
    "CheckInputImages",
    "Underfit",
    "NoBetterThanConstant",
    "ConstantOutput",
    "WorseThanSimple",
    remedy=BLUNT,
)
def inputs_cut_to_integers(source: Source) -> bool:
    """A cast to integers cuts off what stands behind the point of all inputs."""
    if not numbers(source):
        return False
    cast = ".long().float()" if source.imports("torch") else ".astype(int).astype('float32')"
    return source.edit_arrays(f"train_x, test_x = train_x{cast}, test_x{cast}", "train_x", "test_x")


@fault("TrainValSkew", "InputScale", remedy=(*SKEW, *BLUNT))
def evaluation_cut_to_integers(source: Source) -> bool:
    """A cast to integers cuts off what stands behind the point of the inputs of evaluations only."""
    if not numbers(source):
        return False
    cast = ".long().float()" if source.imports("torch") else ".astype(int).astype('float32')"
    return source.edit_arrays(f"test_x = test_x{cast}", "train_x", "test_x")


@fault(
    "InputScale",
    "LossSpike",
    "ExplodingTensor",
    "WeightUpdateRatio",
    "InitialLoss",
    remedy=("standardise", "scale", "missing", "outlier", "inputs", "samples"),
)
def missing_values_as_a_number(source: Source) -> bool:
    """Missing values stand in the inputs as -999."""
    return numbers(source) and source.edit_arrays(
        "train_x, test_x = train_x * 1.0, test_x * 1.0\n"
        "train_x.reshape(len(train_x), -1)[::9, ::5] = -999.0\n"
        "test_x.reshape(len(test_x), -1)[::9, ::5] = -999.0",
        "train_x",
        "test_x",
    )


@fault(
    "DataLeak",
    "TrainValSkew",
    "FeatureImportanceOverweight",
    remedy=("target", "column", "leak", "same steps", "remove"),
)
def target_among_the_inputs(source: Source) -> bool:
    """A column of the training's inputs holds the target, which is not known yet when the model is used."""
    torch = source.imports("torch")
    known = class_ids(source) or bool(source.losses(*REGRESSION)) or not torch
    if not numbers(source) or not known or source.calls(*CONVOLUTIONS):
        return False  # nobody puts a target among pixels
    answers = "(answers - answers.mean()) / answers.std()"
    return source.edit_arrays(
        f"answers = np.asarray({ROW_LABEL}, dtype='float32')\n"
        "train_x, test_x = train_x * 1.0, test_x * 1.0\n"
        "train_x.reshape(len(train_x), -1)[:, 0] = "
        f"{f'torch.as_tensor({answers})' if torch else answers}\n"
        "test_x.reshape(len(test_x), -1)[:, 0] = 0.0",
        *TARGETS,
    )
