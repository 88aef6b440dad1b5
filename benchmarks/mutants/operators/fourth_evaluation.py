"""Fourth generation: operators on evaluations, and on which state of a model they get."""

import ast

from mutants.operators import fault
from mutants.operators.second_inputs import SKEW, numbers
from mutants.operators.second_loops import evaluated_later, whole_training
from mutants.source import Source

IMAGES = ("TrainValSkew", "ImageLayout", "CheckInputImages", "Confusion")


def images(source: Source, channels_first: str, channels_last: str) -> bool:
    """Edits an evaluation's images; ``{}`` stands for them."""
    if not numbers(source):
        return False
    if source.calls("Conv2D"):
        code = channels_last.replace("{}", "test_x")
    elif source.calls("Conv2d", "Unfold") and source.imports("torch"):
        code = channels_first.replace("{}", "test_x")
    elif "load_digits" in source.text() and source.imports("torch"):
        code = f"({channels_first.replace('{}', 'test_x.reshape(-1, 8, 8)')}).reshape(test_x.shape)"
    else:
        return False
    return source.edit_arrays(f"test_x = {code}", "train_x", "test_x")


@fault(*IMAGES, "InputScale", remedy=(*SKEW, "invert", "negative", "sign"))
def evaluation_in_negative(source: Source) -> bool:
    """Images of evaluations are negatives of the training's: what is dark in one source is bright in the other."""
    code = "{}.max() + {}.min() - {}"
    return images(source, code, code)


@fault(*IMAGES, remedy=(*SKEW, "crop", "shift", "augment"))
def evaluation_shifted(source: Source) -> bool:
    """Images of evaluations are cut out at their corner instead of their centre, and so are moved."""
    return images(source, "{}.roll((2, 2), (-2, -1))", "np.roll({}, (2, 2), (1, 2))")


@fault(*IMAGES, remedy=(*SKEW, "resolution", "size", "resize"))
def evaluation_of_thumbnails(source: Source) -> bool:
    """Images of evaluations come from thumbnails of half the size, which were made as large again."""
    return images(
        source,
        "{}[..., ::2, ::2].repeat_interleave(2, -2).repeat_interleave(2, -1)",
        "np.repeat(np.repeat({}[:, ::2, ::2], 2, 1), 2, 2)",
    )


@fault(
    "ConstantOutput",
    "Confusion",
    "LossInputContract",
    "NoBetterThanConstant",
    remedy=("sigmoid", "threshold", "0.5", "half", "logit", "compar"),
)
def probabilities_compared_with_zero(source: Source) -> bool:
    """Evaluations compare probabilities with 0, as scores are, so that every answer is yes; no rule is for this."""
    if not source.losses("binary_cross_entropy_with_logits") or not source.imports("torch"):
        return False
    changed = False
    for node in [n for n in ast.walk(source.tree) if isinstance(n, ast.Compare)]:
        limit, of_scores = node.comparators[0], isinstance(node.left, ast.Call | ast.Subscript)
        if isinstance(node.ops[0], ast.Gt) and ast.unparse(limit) == "0" and of_scores:
            if "rand" not in ast.unparse(node.left):
                source.replace(node.left, "torch.sigmoid({})")
                changed = True
    return changed


@fault(
    "FrozenAtInit",
    "UnchangedTensor",
    "NoBetterThanConstant",
    "ConstantOutput",
    remedy=("load", "names", "strict", "prefix", "keys", "state"),
)
def weights_under_other_names_at_the_end(source: Source) -> bool:
    """Evaluations load the trained weights with `strict=False`, under names that have a prefix, and so load none."""
    found = whole_training(source)
    if found is None or not found[0].isidentifier() or not evaluated_later(source, found[0], found[2]):
        return False
    model, _, epochs = found
    if not isinstance(source.scope(epochs), ast.Module):
        return False
    source.need("import copy")
    source.after(
        epochs,
        f"fresh.load_state_dict({{f'module.{{name}}': value for name, value in {model}.state_dict().items()}},"
        f" strict=False)\n{model} = fresh",
    )
    source.before(epochs, f"fresh = copy.deepcopy({model})")
    return True


@fault(
    "FrozenAtInit",
    "UnchangedTensor",
    "Overtraining",
    "Underfit",
    "NoBetterThanConstant",
    remedy=("best", "state", "compar", "checkpoint", "held", "load"),
)
def keeps_the_state_of_the_first_epoch(source: Source) -> bool:
    """The best loss begins with 0, so that no epoch after the first is better, whose state is loaded at the end."""
    found = whole_training(source)
    if found is None or not evaluated_later(source, found[0], found[2]):
        return False
    model, batches, epochs = found
    source.need("import copy")
    source.after(epochs, f"{model}.load_state_dict(best)")
    source.after(batches, f"if best is None:\n    best = copy.deepcopy({model}.state_dict())")
    source.before(epochs, "best = None")
    return True


@fault(
    "UnchangedTensor",
    "FrozenAtInit",
    "RunningStatistics",
    "ModeMismatch",
    "Underfit",
    remedy=("average", "later", "update_bn", "decay", "statistic", "evaluat", "start"),
)
def average_from_the_first_update(source: Source) -> bool:
    """What is evaluated is the mean of the weights after all updates, the first of which count as much as the last."""
    found, step = whole_training(source), source.update()
    if found is None or step is None or not evaluated_later(source, found[0], found[2]):
        return False
    if source.calls("AveragedModel", "prepare"):
        return False
    model, _, epochs = found
    source.after(epochs, f"{model}.load_state_dict(average.module.state_dict())")
    source.after(step, f"average.update_parameters({model})")
    source.before(epochs, f"average = torch.optim.swa_utils.AveragedModel({model})")
    source.need("import torch.optim.swa_utils")
    return True
