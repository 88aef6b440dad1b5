"""Fourth generation: operators on updates, their rates, and the loop around them."""

import ast

from mutants.operators import fault
from mutants.operators.arguments import torch_optimizers
from mutants.operators.second_loops import whole_training
from mutants.operators.third_loops import SLOW, at_each_update
from mutants.source import OPTIMIZERS, SCHEDULERS, Source
from mutants.tree import base_text, keyword, name_of, set_keyword

RATE = ("learning rate", "schedul", "raise", "rate")


@fault("ScheduleCollapse", "OptimizerStateReset", *SLOW, remedy=(*RATE, "once", "before the loop", "warm"))
def schedule_made_on_every_batch(source: Source) -> bool:
    """The scheduler of a warm-up is made on every batch, and so its rate never leaves the first hundredth."""
    step = source.update()
    if (
        step is None
        or source.calls(*SCHEDULERS, "ReduceLROnPlateau", "prepare")
        or not source.imports("torch")
    ):
        return False
    made = f"LambdaLR({base_text(step)}, lambda k: min(1.0, (k + 1) / 100))"
    source.after(step, "schedule.step()")
    source.before(step, f"schedule = torch.optim.lr_scheduler.{made}")
    source.need("import torch")
    return True


@fault("ScheduleCollapse", *SLOW, remedy=(*RATE, "lambdalr", "factor", "multipl"))
def decay_that_compounds(source: Source) -> bool:
    """Each epoch multiplies the rate by the factor that was meant for the rate of the beginning."""
    return source.schedule("MultiplicativeLR({}, lambda k: 0.4 ** k)", each_epoch=True)


@fault(
    "RegularizationDominates",
    "OptimizerSettings",
    "UnchangedTensor",
    *SLOW,
    remedy=("exchange", "weight decay", "weight_decay", "learning rate", "lr"),
)
def rate_and_decay_exchanged(source: Source) -> bool:
    """The optimizer gets its weight decay for a rate, and its rate for a weight decay."""
    changed = False
    for call in torch_optimizers(source) if not source.calls("OneCycleLR") else []:
        rate, decay = keyword(call, "lr"), keyword(call, "weight_decay")
        if rate is not None and decay is not None and ast.unparse(decay) != "0.0":
            set_keyword(call, "lr", ast.unparse(decay))
            set_keyword(call, "weight_decay", ast.unparse(rate))
            changed = True
    return changed


@fault(
    "OptimizerSettings", "UnchangedTensor", *SLOW, remedy=("learning rate", "raise", "1.0", "optimizer", "lr")
)
def adadelta_with_a_thousandth(source: Source) -> bool:
    """Adadelta, whose own rate is 1, has one of 0.001, as all other optimizers of a framework have by default."""
    made = [] if source.calls("OneCycleLR") else torch_optimizers(source)
    for call in made:
        call.keywords = [k for k in call.keywords if k.arg == "weight_decay"]
        if not source.imports("torch") or not call.args:
            return False
        call.args = call.args[:1]
        set_keyword(call, "lr", "1e-3")
        source.replace(call.func, "torch.optim.Adadelta")
    if made:
        source.need("import torch")
    return bool(made)


@fault(*SLOW, "StepSkipped", "ScheduleCollapse", remedy=("epoch", "longer", "return", "break", "more"))
def stops_after_the_first_epoch(source: Source) -> bool:
    """A `return` that stands one level too deep ends the training after its first epoch."""
    step = source.update()
    if step is None or not source.imports("torch") or len(source.loops(step)) < 2:
        return False
    source.after(source.loops(step)[-1].body[-1], "break")
    return True


@fault(
    "NoGradient",
    "UnchangedTensor",
    "FrozenAtInit",
    "StepSkipped",
    *SLOW,
    remedy=("requires_grad", "freez", "thaw", "gradient", "compar"),
)
def frozen_from_the_second_epoch(source: Source) -> bool:
    """All but the last layer should be frozen in the first epoch only, and are frozen from the second one on."""
    found = whole_training(source)
    if found is None or source.calls("prepare") or "requires_grad" in source.text():
        return False
    model, batches, _ = found
    source.after(batches, f"for part in list({model}.parameters())[:-2]:\n    part.requires_grad_(False)")
    return True


@fault(
    "StepSkipped",
    "UnchangedTensor",
    "RepeatedBatch",
    *SLOW,
    remedy=("skip", "continue", "every batch", "limit", "threshold", "step"),
)
def skips_batches_with_a_high_loss(source: Source) -> bool:
    """A guard against outliers leaves out each batch whose loss is above a level, that of the beginning among them."""
    step, losses = source.update(), source.objectives()
    if step is None or len(losses) != 1 or not isinstance(losses[0], ast.Name) or not source.imports("torch"):
        return False
    if source.scope(losses[0]) is not source.scope(step) or source.calls("prepare"):
        return False
    source.before(losses[0], f"if {losses[0].id}.item() > 0.2:\n    continue")
    return True


@fault("PrecisionLoss", "UnchangedTensor", *SLOW, remedy=("precision", "float32", "bfloat16", "round", "16"))
def quantised_weights_written_back(source: Source) -> bool:
    """After each update their form in eight bits is written over the weights, and swallows what was learnt."""
    eight = "p.data.to(torch.float8_e4m3fn).to(p.dtype)"
    return at_each_update(source, f"p.data.copy_({eight})", later=True)


@fault(
    "GradientNotCleared",
    "LossNotDecreasing",
    "ExplodingTensor",
    "WeightUpdateRatio",
    remedy=("zero_grad", "clear", "zero the gradients"),
    contract=True,
)
def gradients_of_one_part_cleared(source: Source) -> bool:
    """Only the last layer is cleared, as by `head.zero_grad()`; all other gradients add up over the batches."""
    names = [ast.unparse(s.targets[0]) for s in _made(source)]
    calls = [c for c in source.calls("zero_grad") if base_text(c) in names and source.loops(c)]
    for call in calls if source.imports("torch") else []:
        source.before(
            call, f"for part in {base_text(call)}.param_groups[-1]['params'][-2:]:\n    part.grad = None"
        )
        source.drop(call)
    return bool(calls) and source.imports("torch")


def _made(source: Source) -> list[ast.Assign]:
    """Returns the statements that assign an optimizer."""
    statements = [source.statement(c) for c in source.optimizers() if name_of(c.func) in OPTIMIZERS]
    return [s for s in statements if isinstance(s, ast.Assign)]
