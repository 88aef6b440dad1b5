"""Operators that set what nobody reads: rates of another optimizer, names that mean nothing, an empty list."""

import ast

from mutants.operators import fault
from mutants.source import SCHEDULERS, Source
from mutants.tree import keyword, name_of


@fault("ClipSaturated", remedy=("model.parameters()",), contract=True)
def clips_a_generator_that_is_used_up(source: Source) -> bool:
    """The optimizer and clip_grad_norm_ get the same generator of parameters, which the first of them goes through."""
    made, clips = source.model(), source.calls("clip_grad_norm_")
    if made is None or len(clips) != 1 or ast.unparse(clips[0].args[0]) != ast.unparse(made[0].args[0]):
        return False
    statement, given = source.statement(made[0]), ast.unparse(made[0].args[0])
    if not source.reaches(statement, clips[0]) or not given.endswith(".parameters()"):
        return False
    source.replace(made[0].args[0], "parameters")
    source.replace(clips[0].args[0], "parameters")
    source.before(statement, f"parameters = {given}")
    return True


@fault("ScheduleCollapse", remedy=("make the scheduler",), contract=True)
def optimizer_made_again_after_its_scheduler(source: Source) -> bool:
    """The optimizer is made a second time, after a scheduler has got the first one."""
    made, schedulers = source.model(), source.calls(*SCHEDULERS)
    if made is None or len(schedulers) != 1 or not source.imports("torch"):
        return False
    statement, own = source.statement(made[0]), source.statement(schedulers[0])
    if not isinstance(statement, ast.Assign) or source.scope(statement) is not source.scope(own):
        return False
    source.after(own, ast.unparse(statement))
    return True


@fault("ScheduleCollapse", remedy=("once per epoch",), contract=True)
def milestones_of_epochs_on_every_batch(source: Source) -> bool:
    """A scheduler with milestones in epochs is stepped on every batch, and has passed them at once."""
    return source.schedule("MultiStepLR({}, [2, 3])", each_epoch=False)


@fault("WeightUpdateRatio", "ScheduleCollapse", "Underfit", remedy=("raise the learning rate", "factor"))
def factor_taken_for_a_rate(source: Source) -> bool:
    """The function of a LambdaLR returns the rate itself, with which the rate is multiplied."""
    return source.schedule("LambdaLR({}, lambda epoch: 1e-3 * 0.9**epoch)", each_epoch=True)


@fault("OptimizerSettings", remedy=("'lr'",), contract=True)
def rate_under_another_name(source: Source) -> bool:
    """The group of parameters names its rate `learning_rate`, which no optimizer reads."""
    made = source.model()
    rate = None if made is None else keyword(made[0], "lr")
    if made is None or rate is None or not source.imports("torch") or len(made[0].args) != 1:
        return False
    if name_of(made[0].func) == "LBFGS" or not isinstance(rate, ast.Constant):
        return False
    source.replace(made[0].args[0], f"[{{'params': {{}}, 'learning_rate': {ast.unparse(rate)}}}]")
    made[0].keywords = [k for k in made[0].keywords if k.arg != "lr"]
    return True


@fault("OptimizerSettings", remedy=("exchange",), contract=True)
def rate_and_momentum_exchanged(source: Source) -> bool:
    """SGD gets its momentum as the rate, and its rate as the momentum."""
    changed = False
    for call in source.calls("SGD") if source.imports("torch") else []:
        rate, momentum = keyword(call, "lr"), keyword(call, "momentum")
        if rate is None or momentum is None or not isinstance(rate, ast.Constant):
            continue
        call.keywords = [k for k in call.keywords if k.arg not in ("lr", "momentum")]
        call.args += [momentum, rate]
        changed = True
    return changed


@fault("FrozenAtInit", remedy=("requires_grad_(false)",))
def freezes_a_flag_of_the_module(source: Source) -> bool:
    """`model.requires_grad = False` stands where each parameter was frozen, and freezes nothing."""
    changed = False
    for call in source.calls("requires_grad_"):
        if isinstance(call.func, ast.Attribute) and call.args and ast.unparse(call.args[0]) == "False":
            statement = source.statement(call)
            if isinstance(statement, ast.Expr) and not isinstance(call.func.value, ast.Name):
                continue
            if isinstance(statement, ast.Expr) and not source.loops(call):
                source.after(statement, f"{ast.unparse(call.func.value)}.requires_grad = False")
                source.drop(call)
                changed = True
    for loop in [n for n in ast.walk(source.tree) if isinstance(n, ast.For)]:
        text = ast.unparse(loop.iter)
        if (
            not text.endswith(".parameters()")
            or len(loop.body) != 1
            or not isinstance(loop.body[0], ast.Assign)
        ):
            continue
        if ast.unparse(loop.body[0]) == f"{ast.unparse(loop.target)}.requires_grad = False":
            source.replace(loop.iter, f"[{text.removesuffix('.parameters()')}]")
            changed = True
    return changed


@fault("UnchangedTensor", remedy=("decay",))
def average_of_a_longer_training(source: Source) -> bool:
    """The average of the weights has a decay of 0.9999, which looks back further than the training goes."""
    calls = [c for c in source.calls("get_ema_multi_avg_fn", "get_ema_avg_fn") if c.args]
    for call in calls:
        source.replace(call.args[0], "0.9999")
    return bool(calls)
