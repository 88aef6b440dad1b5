"""Operators that give an argument a wrong value."""

import ast

from mutants.operators import fault
from mutants.source import Source
from mutants.tree import keyword, set_keyword

ADAMS = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax")


def scale_rates(source: Source, factor: str) -> bool:
    """Multiplies all learning rates."""
    rates = source.rates()
    for rate in rates:
        source.replace(rate, f"{{}} * {factor}")
    return bool(rates)


def torch_optimizers(source: Source) -> list[ast.Call]:
    """Returns the calls of torch optimizers that support weight decay."""
    made = source.optimizers() if source.imports("torch") else []
    return [c for c in made if not ast.unparse(c.func).endswith("LBFGS")]


@fault(
    "WeightUpdateRatio",
    "ExplodingTensor",
    "LossNotDecreasing",
    "NonFinite",
    "LossSpike",
    "DeadRelu",
    remedy=("lower the learning rate", "lower eta", "learning rate"),
)
def rate_a_thousand_times_too_high(source: Source) -> bool:
    """The learning rate is a thousand times too high."""
    return scale_rates(source, "1000")


@fault("WeightUpdateRatio", "UnchangedTensor", "Underfit", remedy=("raise the learning rate", "raise eta"))
def rate_far_too_low(source: Source) -> bool:
    """The learning rate is ten thousand times too low."""
    return scale_rates(source, "1e-4")


@fault("RegularizationDominates", remedy=("weight decay",))
def weight_decay_of_one(source: Source) -> bool:
    """Weight decay is 1 instead of 1e-4."""
    made = torch_optimizers(source)
    for call in made:
        set_keyword(call, "weight_decay", "1.0")
    return bool(made)


@fault(
    "WeightUpdateRatio",
    "ExplodingTensor",
    "LossNotDecreasing",
    "LossSpike",
    "NonFinite",
    remedy=("learning rate",),
)
def momentum_and_rate_too_high(source: Source) -> bool:
    """SGD has a momentum of 0.99 and ten times the learning rate."""
    made = [c for c in source.calls("SGD") if len(c.args) < 3 and source.imports("torch")]
    if not made or not scale_rates(source, "10"):
        return False
    for call in made:
        set_keyword(call, "momentum", "0.99")
    return True


@fault("OptimizerSettings", "WeightUpdateRatio", "LossNotDecreasing", remedy=("betas",))
def betas_exchanged(source: Source) -> bool:
    """The betas of Adam are exchanged: (0.999, 0.9)."""
    made = [c for c in source.calls(*ADAMS) if source.imports("torch")]
    for call in made:
        set_keyword(call, "betas", "{}[::-1]" if keyword(call, "betas") else "(0.999, 0.9)")
    return bool(made)


@fault("WeightUpdateRatio", "Underfit", remedy=("raise the learning rate", "eps"))
def epsilon_of_one(source: Source) -> bool:
    """Adam has an eps of 1, so that it hardly moves small gradients."""
    made = [c for c in source.calls(*ADAMS) if source.imports("torch")]
    for call in made:
        set_keyword(call, "eps", "1.0")
    return bool(made)


@fault("OptimizerSettings", remedy=("exchange",), contract=True)
def betas_in_the_wrong_order(source: Source) -> bool:
    """Adam's betas are exchanged: 0.999 for the mean of gradients, 0.9 for that of their squares."""
    made = [c for c in source.calls(*ADAMS[:-1]) if source.imports("torch")]
    for call in made:
        set_keyword(call, "betas", "(0.999, 0.9)")
    return bool(made)


@fault("OptimizerSettings", remedy=("momentum",))
def momentum_of_0_999(source: Source) -> bool:
    """SGD has the momentum that is usual for Adam's second beta."""
    made = [c for c in source.calls("SGD") if source.imports("torch")]
    for call in made:
        set_keyword(call, "momentum", "0.999")
    return bool(made)


@fault("HighDropout", remedy=("use p =", "dropped"))
def dropout_of_what_to_keep(source: Source) -> bool:
    """Dropout gets the probability of keeping a value, 0.97."""
    changed = False
    for call in source.calls("Dropout", "Dropout1d", "Dropout2d"):
        call.args, call.keywords = [ast.Constant(0.97)], []
        changed = True
    for call in source.calls("TransformerEncoderLayer", "TransformerDecoderLayer"):
        set_keyword(call, "dropout", "0.97")
        changed = True
    return changed


# No rule checks the reduction. Its effect is a step that is too large by a factor of the batch size.
@fault(
    "WeightUpdateRatio", "ExplodingTensor", "LossNotDecreasing", "NonFinite", remedy=("learning rate", "mean")
)
def sums_instead_of_means(source: Source) -> bool:
    """The loss is the sum over the batch instead of the mean."""
    found = source.losses(
        "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "binary_cross_entropy_with_logits"
    )
    if any(keyword(loss.maker, "reduction") for loss in found):
        return False
    for loss in found:
        set_keyword(loss.maker, "reduction", "'sum'")
    return bool(found)


@fault("LossInputContract", "Underfit", "NoBetterThanConstant", remedy=("less regularisation", "smoothing"))
def labels_smoothed_away(source: Source) -> bool:
    """Label smoothing is 0.9 and leaves a tenth of each label."""
    found = source.losses("cross_entropy")
    for loss in found:
        set_keyword(loss.maker, "label_smoothing", "0.9")
    return bool(found)


@fault("ClipSaturated", "WeightUpdateRatio", remedy=("raise the limit", "raise the learning rate"))
def clips_to_nothing(source: Source) -> bool:
    """Gradients are clipped to a norm of 1e-4."""
    calls = [c for c in source.calls("clip_grad_norm_") if len(c.args) > 1]
    for call in calls:
        source.replace(call.args[1], "1e-4")
    backward, name = source.calls("backward"), source.optimizer_name()
    if calls or name is None or len(backward) != 1 or source.calls("GradScaler"):
        return bool(calls)
    parameters = f"[p for g in {name}.param_groups for p in g['params']]"
    source.after(backward[0], f"torch.nn.utils.clip_grad_norm_({parameters}, 1e-4)")
    return True


# These are the nearest rules: a class that the loss ignores is never predicted.
@fault("Confusion", "ClassImbalance", "TargetRange", remedy=("class", "ignore", "masking"))
def first_class_ignored(source: Source) -> bool:
    """The loss ignores class 0, as if it stood for padding."""
    found = [loss for loss in source.losses("cross_entropy") if not keyword(loss.maker, "ignore_index")]
    if source.calls("one_hot", "kl_div"):
        return False  # soft targets do not work with ignore_index
    for loss in found:
        set_keyword(loss.maker, "ignore_index", "0")
    return bool(found)


@fault("RunningStatistics", "ModeMismatch", remedy=("momentum",))
def running_statistics_hardly_move(source: Source) -> bool:
    """Batch normalisation has a momentum of 1e-4, as in another framework's convention."""
    layers = [c for c in source.calls("BatchNorm1d", "BatchNorm2d", "BatchNorm3d") if source.imports("torch")]
    for call in layers:
        set_keyword(call, "momentum", "1e-4")
    return bool(layers)


@fault("RunningStatistics", "ModeMismatch", remedy=("momentum",))
def running_statistics_never_move(source: Source) -> bool:
    """Batch normalisation has a momentum of 0."""
    layers = [c for c in source.calls("BatchNorm1d", "BatchNorm2d", "BatchNorm3d") if source.imports("torch")]
    for call in layers:
        set_keyword(call, "momentum", "0.0")
    return bool(layers)


@fault("SampleMixing", remedy=("batch_first",), contract=True)
def time_axis_taken_for_batch(source: Source) -> bool:
    """batch_first=True is missing, so the recurrent layer or the attention runs over the samples."""
    text = source.text()
    layers = [
        c
        for c in source.calls("LSTM", "GRU", "RNN", "TransformerEncoderLayer", "MultiheadAttention")
        if keyword(c, "batch_first")
    ]
    if "mask" in text or "[-1]" in text:
        return False  # shapes would not fit
    for call in layers:
        call.keywords = [k for k in call.keywords if k.arg != "batch_first"]
    return bool(layers)
