"""Third generation: operators on updates, their gradients and rates, and the loop over batches."""

import ast
import re

from mutants.operators import fault
from mutants.operators.arguments import torch_optimizers
from mutants.source import OPTIMIZERS, SCHEDULERS, Source
from mutants.tree import Loop, base_text, keyword, name_of, set_keyword

SLOW = ("Underfit", "NoBetterThanConstant", "WorseThanSimple", "WeightUpdateRatio")
EACH = "for group in {}.param_groups:\n    for p in group['params']:\n        "


def at_each_update(source: Source, code: str, *, later: bool = False) -> bool:
    """Inserts what is done with each parameter `p` before each update, or after it."""
    steps = [
        s
        for s in source.steps(*OPTIMIZERS)
        if not s.args and source.loops(s) and isinstance(source.statement(s), ast.Expr)
    ]
    for step in steps if source.imports("torch") else []:
        insert = source.after if later else source.before
        insert(step, EACH.format(base_text(step)) + code)
    return bool(steps) and source.imports("torch")


def counted(source: Source, step: ast.Call, every: int) -> None:
    """Leaves out all calls of a statement in a loop but each of a number of them."""
    loops = source.loops(step)
    source.wrap(source.statement(step), f"if next(turns) % {every} == 0:")
    source.before(loops[-1], "turns = itertools.count(1)")
    source.need("import itertools")


@fault(
    "AccumulationScale",
    "StepSkipped",
    *SLOW,
    remedy=("clear", "zero_grad", "accumul", "every batch", "update", "step"),
)
def seven_of_eight_batches_thrown_away(source: Source) -> bool:
    """The optimizer steps after every eighth batch, to accumulate, but each batch clears the gradients."""
    step = source.update()
    if step is None or not source.imports("torch"):
        return False
    block = source.loops(step)[0].body
    cleared = [source.statement(c) for c in source.calls("zero_grad") if base_text(c) == base_text(step)]
    if source.statement(step) not in block or not any(s in block for s in cleared):
        return False
    counted(source, step, 8)
    return True


@fault(
    "ClipSaturated",
    "LossNotDecreasing",
    "ExplodingTensor",
    "DeadRelu",
    *SLOW,
    remedy=("clip", "clamp", "sign", "negative", "both sides"),
)
def gradients_clamped_between_zero_and_one(source: Source) -> bool:
    """Gradients are clamped to between 0 and 1 instead of -1 and 1, and so lose all that is negative."""
    return at_each_update(source, "if p.grad is not None:\n            p.grad.clamp_(0.0, 1.0)")


@fault(
    "UnchangedTensor",
    "VanishingGradient",
    "RegularizationDominates",
    "ClipSaturated",
    "ConstantOutput",
    *SLOW,
    remedy=("clip", "clamp", "weights", "limit", "penalty", "initial"),
)
def weights_clipped_after_every_update(source: Source) -> bool:
    """Weights are clipped to a hundredth after each update, as a critic's are, in a model that is none."""
    return at_each_update(source, "p.data.clamp_(-0.01, 0.01)", later=True)


@fault(
    "OptimizerSettings",
    "UnchangedTensor",
    "ScheduleCollapse",
    *SLOW,
    remedy=("learning rate", "param_groups", "lr"),
)
def rate_written_into_an_attribute(source: Source) -> bool:
    """The optimizer is made with a rate of 1e-6, and the real one is written into `optimizer.lr`, an attribute."""
    name, made = source.optimizer_name(), torch_optimizers(source)
    rate = keyword(made[0], "lr") if len(made) == 1 else None
    if name is None or rate is None or source.calls("OneCycleLR"):
        return False
    source.after(made[0], f"{name}.lr = {ast.unparse(rate)}")
    set_keyword(made[0], "lr", "1e-6")
    return True


@fault(
    "ParamNotOptimized",
    "UnchangedTensor",
    "FrozenAtInit",
    *SLOW,
    remedy=("group", "optimizer", "parameters", "all"),
)
def only_vectors_are_optimized(source: Source) -> bool:
    """A filter keeps the wrong half for the optimizer: biases and norms, and no matrix."""
    given = source.all_parameters()
    if given is None:
        return False
    argument, model = given
    source.replace(argument, f"[p for p in {model}.parameters() if p.dim() <= 1]")
    return True


@fault(
    "StepSkipped",
    "UnchangedTensor",
    "RepeatedBatch",
    "ScheduleCollapse",
    "FrozenAtInit",
    *SLOW,
    remedy=("iterator", "generator", "used up", "exhaust", "loop", "every epoch", "epochs", "longer"),
)
def batches_used_up_after_one_pass(source: Source) -> bool:
    """The batches are an iterator made before the epochs: from the second epoch on there is none left."""
    step = source.update()
    if step is None or not source.imports("torch"):
        return False
    loops = source.loops(step)
    if len(loops) < 2 or not isinstance(loops[0], ast.For):
        return False
    inner, outer = loops[0], loops[-1]
    stored = {n.id for n in ast.walk(outer) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    used = {n.id for n in ast.walk(inner.iter) if isinstance(n, ast.Name)}
    if used & stored or re.search(r"/ (len\(losses\)|batches)\b", ast.unparse(outer)):
        return False
    code = f"once = iter({ast.unparse(inner.iter)})"
    source.replace(inner.iter, "once")
    source.before(outer, code)
    return True


@fault(*SLOW, "StepSkipped", remedy=("smaller batch", "batch", "updates", "longer", "learning rate"))
def one_batch_of_all_rows(source: Source) -> bool:
    """All rows are one batch, so that an epoch has a single update."""
    if not source.imports("torch") or "ACCUMULATE" in source.text():
        return False
    changed = False
    for call in source.calls("DataLoader"):
        shuffled = keyword(call, "shuffle")
        if shuffled is not None and ast.unparse(shuffled) == "True" and keyword(call, "batch_size"):
            set_keyword(call, "batch_size", "100000")
            call.keywords = [k for k in call.keywords if k.arg != "drop_last"]
            changed = True
    for call in source.calls("split"):
        above = source.ancestors(call)[0]
        if isinstance(above, Loop) and "randperm" in base_text(call) and not source.without_gradient(call):
            call.args = [ast.Constant(100000)]
            changed = True
    return changed


@fault(
    *SLOW, "OptimizerSettings", "LossNotDecreasing", remedy=("learning rate", "optimizer", "adam", "momentum")
)
def plain_descent_with_adams_rate(source: Source) -> bool:
    """Adam was exchanged for plain gradient descent, which has kept Adam's rate."""
    adaptive = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop")
    made = [c for c in torch_optimizers(source) if name_of(c.func) in adaptive]
    for call in made:
        call.keywords = [k for k in call.keywords if k.arg in ("lr", "weight_decay")]
        if isinstance(call.func, ast.Attribute):
            call.func.attr = "SGD"
        else:
            source.replace(call.func, "torch.optim.SGD")
    return bool(made)


@fault(
    "ScheduleCollapse",
    *SLOW,
    remedy=("patience", "plateau", "schedul", "learning rate", "epoch", "raise"),
)
def gives_up_at_the_first_plateau(source: Source) -> bool:
    """A scheduler that waits for a plateau has no patience and gets the loss of each batch."""
    step, losses = source.update(), source.objectives()
    if step is None or source.calls(*SCHEDULERS, "ReduceLROnPlateau") or not source.imports("torch"):
        return False
    loops = source.loops(step)
    if len(losses) != 1 or not isinstance(losses[0], ast.Name):
        return False
    if len(loops) < 2 and not isinstance(source.scope(step), ast.Module):
        return False
    if source.scope(losses[0]) is not source.scope(step):
        return False
    source.after(step, f"schedule.step({losses[0].id}.item())")
    source.before(
        loops[-1],
        f"schedule = torch.optim.lr_scheduler.ReduceLROnPlateau({base_text(step)}, factor=0.5, patience=0)",
    )
    return True
