"""Third generation: operators on evaluations, and on what is kept of a training."""

import ast

from mutants.operators import fault
from mutants.operators.second_inputs import SKEW, numbers
from mutants.operators.second_loops import evaluated_later, whole_training
from mutants.operators.second_tokens import SAME, tokens
from mutants.source import Source
from mutants.tree import keyword


@fault(
    "LabelNoise",
    "Confusion",
    "TrainValSkew",
    "Overfit",
    "NoBetterThanConstant",
    "LossShapeMismatch",
    remedy=("belong", "shuffle", "order", "rows", "labels", "source"),
)
def evaluation_targets_of_other_rows(source: Source) -> bool:
    """The rows of evaluations are shuffled as they are read, and compared with targets that are not."""
    return source.edit_arrays(
        "test_y = test_y[np.random.default_rng(1).permutation(len(test_y))]", "test_x", "test_y"
    )


@fault(
    "TrainValSkew",
    "ImageLayout",
    "CheckInputImages",
    "Confusion",
    remedy=(*SKEW, "axes", "transpose", "height", "width", "layout"),
)
def height_and_width_exchanged_in_evaluation(source: Source) -> bool:
    """Images of evaluations lie on their side: another reader exchanges their height and width."""
    if not numbers(source):
        return False
    if source.calls("Conv2D"):
        code = "test_x.transpose(0, 2, 1, 3)"
    elif source.calls("Conv2d", "Unfold") and source.imports("torch"):
        code = "test_x.transpose(-1, -2).contiguous()"
    elif "load_digits" in source.text() and source.imports("torch"):
        code = "test_x.reshape(-1, 8, 8).transpose(1, 2).reshape(test_x.shape)"
    else:
        return False
    return source.edit_arrays(f"test_x = {code}", "train_x", "test_x")


@fault("TrainValSkew", "AllZero", remedy=(*SKEW, "augment", "evaluat"))
def augments_evaluations_instead(source: Source) -> bool:
    """The transforms of training and evaluation are exchanged: parts of the rows of evaluations are erased."""
    if not numbers(source):
        return False
    kept = "(np.random.default_rng(1).random(tuple(test_x.shape)) > 0.5).astype('float32')"
    kept = f"torch.as_tensor({kept})" if source.imports("torch") else kept
    return source.edit_arrays(f"test_x = test_x * {kept}", "train_x", "test_x")


@fault(
    "RunningStatistics",
    "ModeMismatch",
    "TrainValSkew",
    "UnchangedTensor",
    "FrozenAtInit",
    remedy=("statistic", "buffer", "state_dict", "load", "copy", "evaluat"),
)
def buffers_left_behind(source: Source) -> bool:
    """The parameters of the trained model are copied for evaluations, and its running statistics are not."""
    found = whole_training(source)
    if found is None or not source.calls("BatchNorm1d", "BatchNorm2d", "BatchNorm3d"):
        return False
    model, _, epochs = found
    if not evaluated_later(source, model, epochs):
        return False
    source.after(
        epochs,
        f"with torch.no_grad():\n    for own, first in zip({model}.buffers(), buffers):\n        own.copy_(first)",
    )
    source.before(epochs, f"buffers = [buffer.clone() for buffer in {model}.buffers()]")
    source.need("import torch")
    return True


DROPPING = "class Dropping(torch.nn.Module):\n    def forward(self, x):\n        return torch.nn.functional.dropout(x)"


@fault(
    "ModeMismatch",
    "HighDropout",
    "TrainValSkew",
    "Underfit",
    remedy=("dropout", "training=", "eval", "mode"),
    contract=True,
)
def dropout_that_no_mode_ends(source: Source) -> bool:
    """Dropout is the function with its defaults: half of all values, in evaluations too."""
    functions = [c for c in source.calls("dropout") if keyword(c, "training") is not None]
    modules = source.calls("Dropout", "Dropout1d", "Dropout2d") if source.imports("torch") else []
    if not functions and not modules:
        return False
    for call in functions:
        source.replace(call, f"{ast.unparse(call.func)}({ast.unparse(call.args[0])})")
    for call in modules:
        source.replace(call, "Dropping()")
    if modules:
        body = source.tree.body
        first = next(
            s
            for s in body
            if not isinstance(s, ast.Import | ast.ImportFrom)
            and not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
        )
        source.before(first, DROPPING)
        source.need("import torch")
    return True


@fault("TrainValSkew", "NLPSequenceRatio", "AttentionCollapse", "DeadEmbeddingRows", remedy=SAME)
def padded_with_a_word_in_evaluation(source: Source) -> bool:
    """Sequences of evaluations are padded with a word's id, which no mask hides, instead of the padding's."""
    text = source.text()
    if not tokens(source) or ("PAD" not in text and "padding_idx" not in text):
        return False
    return source.edit_arrays("test_x = torch.where(test_x == 0, test_x.max(), test_x)", "train_x", "test_x")


@fault("TrainValSkew", "DeadEmbeddingRows", "Confusion", remedy=(*SAME, "embedding", "numbers", "map"))
def vocabulary_built_anew_for_evaluation(source: Source) -> bool:
    """Evaluations number the words (or users, or items) anew, in an order that is not the training's."""
    return tokens(source) and source.edit_arrays(
        "anew = torch.arange(int(test_x.max()) + 1)\n"
        "anew[1:] = anew[1:].flip(0)\n"
        "test_x = torch.minimum(anew[test_x], train_x.max(0).values)",
        "train_x",
        "test_x",
    )


@fault(
    "Underfit",
    "NoBetterThanConstant",
    "WorseThanSimple",
    "StepSkipped",
    remedy=("longer", "more", "compar", "early", "stop", "epochs"),
)
def stops_as_soon_as_it_gets_better(source: Source) -> bool:
    """Early stopping compares the wrong way round and ends the training when the loss falls; no rule is for this."""
    found, losses = whole_training(source), source.objectives()
    if found is None or len(losses) != 1 or not isinstance(losses[0], ast.Name):
        return False
    _, batches, epochs = found
    if source.scope(losses[0]) is not source.scope(batches):
        return False
    assert isinstance(epochs, ast.For | ast.While)
    loss = losses[0].id
    source.after(
        epochs.body[-1],
        f"if {loss}.item() < last:\n    break\nlast = {loss}.item()",
    )
    source.before(epochs, "last = float('-inf')")
    return True
