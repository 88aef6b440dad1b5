"""Second generation: operators on the loop, its optimizer, its states and its averages."""

import ast

from mutants.operators import fault
from mutants.operators.arguments import torch_optimizers
from mutants.source import SCHEDULERS, Source
from mutants.tree import base_text, keyword, name_of, set_keyword

DIVERGES = ("WeightUpdateRatio", "ExplodingTensor", "LossNotDecreasing", "NonFinite", "LossSpike", "DeadRelu")


@fault(
    "Underfit",
    "StepSkipped",
    "RepeatedBatch",
    "ScheduleCollapse",
    "WeightUpdateRatio",
    "NoBetterThanConstant",
    remedy=("break", "every batch", "loop over batches", "longer", "more", "learning rate", "rest of"),
)
def stops_after_the_first_batch(source: Source) -> bool:
    """A `break` that was of use for debugging ends each epoch after its first batch."""
    step = source.update()
    if step is None or not source.imports("torch"):
        return False
    loops = source.loops(step)
    if len(loops) < 2 and isinstance(source.scope(step), ast.Module):
        return False
    source.after(loops[0].body[-1], "break")
    return True


@fault("ScheduleCollapse", *DIVERGES, remedy=("gamma", "learning rate", "schedul"))
def rate_doubles_every_epoch(source: Source) -> bool:
    """The scheduler's factor is 2 instead of 1/2: the learning rate doubles after every epoch."""
    return source.schedule("ExponentialLR({}, 2.0)", each_epoch=True)


@fault(
    "ScheduleCollapse",
    "WeightUpdateRatio",
    "Underfit",
    "UnchangedTensor",
    remedy=("warm", "raise the learning rate", "schedul", "shorter"),
)
def warm_up_longer_than_the_training(source: Source) -> bool:
    """The learning rate rises over 100000 updates, as for a large model, and the training ends long before."""
    return source.schedule("LambdaLR({}, lambda k: min(1.0, (k + 1) / 100_000))", each_epoch=False)


@fault(*DIVERGES, "ScheduleCollapse", remedy=("learning rate", "schedul", "gamma", "exponent"))
def decay_with_the_wrong_sign(source: Source) -> bool:
    """The exponent of a decaying rate lacks its minus: the rate grows by a fifth every ten updates."""
    return source.schedule("LambdaLR({}, lambda k: 1.2 ** (k / 10))", each_epoch=False)


@fault("OptimizerSettings", *DIVERGES, remedy=("maximize", "maximise", "minimise", "sign", "lower bound"))
def optimizer_maximises(source: Source) -> bool:
    """The optimizer has `maximize=True`, from a script that maximised a reward, and gets a loss."""
    made = torch_optimizers(source)
    for call in made:
        set_keyword(call, "maximize", "True")
    return bool(made)


@fault(*DIVERGES, "ClipSaturated", remedy=("scale", "learning rate", "unscale", "divide"))
def loss_scale_never_taken_off(source: Source) -> bool:
    """The loss is scaled up for half precision, and no gradient is scaled back before the update."""
    made, objectives = source.optimizers(), source.objectives()
    if not made or {name_of(c.func) for c in made} != {"SGD"} or not source.imports("torch"):
        return False
    for objective in objectives:
        source.replace(objective, "({} * 1024.0)")
    return bool(objectives)


# ScheduleCollapse's zero_rate is this very cause, of rates that are followed as they are set.
@fault(
    "UnchangedTensor",
    "WeightUpdateRatio",
    "ParamNotOptimized",
    "NoGradient",
    "FrozenAtInit",
    "OptimizerSettings",
    "ScheduleCollapse",
    remedy=("learning rate", "group", "lr", "freez"),
)
def rate_of_zero_below_the_head(source: Source) -> bool:
    """The group of all layers but the last has a learning rate of 0."""
    made = source.model()
    if made is None or keyword(made[0], "lr") is None or not source.imports("torch"):
        return False
    model = ast.unparse(made[1])
    if ast.unparse(made[0].args[0]) != f"{model}.parameters()" or name_of(made[0].func) == "LBFGS":
        return False
    source.replace(
        made[0].args[0],
        f"[{{'params': list({model}.parameters())[:-2], 'lr': 0.0}}, "
        f"{{'params': list({model}.parameters())[-2:]}}]",
    )
    return True


# States --------------------------------------------------------------------------


def whole_training(source: Source) -> tuple[str, ast.AST, ast.AST] | None:
    """Returns the model's name, the loop over batches and that over epochs, if all are of one scope."""
    made, step = source.model(), source.update()
    if made is None or step is None or not source.imports("torch") or not source.reaches(made[0], step):
        return None
    loops = source.loops(step)
    return (ast.unparse(made[1]), loops[0], loops[-1]) if len(loops) > 1 else None


def evaluated_later(source: Source, model: str, epochs: ast.AST) -> bool:
    """Returns whether the score is computed after the loop over epochs, of the model as it is then."""
    scope = source.scope(epochs)
    if isinstance(scope, ast.FunctionDef):
        return not any("no_grad" in ast.unparse(n) for n in ast.walk(scope) if isinstance(n, ast.With))
    functions = [s.name for s in scope.body if isinstance(s, ast.FunctionDef)]
    place = next(i for i, s in enumerate(scope.body) if any(n is epochs for n in ast.walk(s)))
    used = {n.id for s in scope.body[place + 1 :] for n in ast.walk(s) if isinstance(n, ast.Name)}
    return bool(used & {*functions, model})


@fault(
    "FrozenAtInit", "UnchangedTensor", "Overtraining", remedy=("best", "worst", "state", "compar", "lower")
)
def keeps_the_worst_state(source: Source) -> bool:
    """The state with the highest loss is kept and loaded at the end: the comparison is the wrong way round."""
    found, losses = whole_training(source), source.objectives()
    if found is None or len(losses) != 1 or not isinstance(losses[0], ast.Name):
        return False
    model, batches, epochs = found
    if not evaluated_later(source, model, epochs) or source.scope(losses[0]) is not source.scope(batches):
        return False
    loss = losses[0].id
    source.need("import copy")
    source.after(epochs, f"{model}.load_state_dict(chosen[1])")
    source.after(
        batches,
        f"if chosen is None or {loss}.item() > chosen[0]:\n"
        f"    chosen = ({loss}.item(), copy.deepcopy({model}.state_dict()))",
    )
    source.before(epochs, "chosen = None")
    return True


@fault("FrozenAtInit", "UnchangedTensor", remedy=("state", "load", "trained", "checkpoint", "held"))
def loads_the_first_state_at_the_end(source: Source) -> bool:
    """After the training, the state from before it is loaded, as from a file that was never written again."""
    found = whole_training(source)
    if found is None or not evaluated_later(source, found[0], found[2]):
        return False
    model, _, epochs = found
    source.need("import copy")
    source.after(epochs, f"{model}.load_state_dict(saved)")
    source.before(epochs, f"saved = copy.deepcopy({model}.state_dict())")
    return True


@fault(
    "UnchangedTensor",
    "FrozenAtInit",
    "LossNotDecreasing",
    "Underfit",
    remedy=("keep_vars", "clone", "deepcopy", "load", "state", "once"),
)
def loads_the_first_state_every_epoch(source: Source) -> bool:
    """The state from before the training is loaded at the start of every epoch, as a resume within the loop does."""
    found = whole_training(source)
    if found is None:
        return False
    model, _, epochs = found
    assert isinstance(epochs, ast.For | ast.While)
    source.need("import copy")
    source.before(epochs.body[0], f"{model}.load_state_dict(saved)")
    source.before(epochs, f"saved = copy.deepcopy({model}.state_dict())")
    return True


@fault(
    "UnchangedTensor",
    "FrozenAtInit",
    "WeightUpdateRatio",
    remedy=("update_parameters", "average", "decay", "target", "copy", "evaluat"),
)
def average_never_updated(source: Source) -> bool:
    """The average of the weights, or the target network, is made before the training and never updated."""
    calls = source.calls("update_parameters", "lerp_")
    for call in calls:
        source.drop(call)
    return bool(calls)


@fault(
    "UnchangedTensor",
    "WeightUpdateRatio",
    "LossNotDecreasing",
    "Underfit",
    "RegularizationDominates",
    remedy=("average", "copy", "direction", "target", "exchange", "raise"),
)
def average_written_into_the_model(source: Source) -> bool:
    """The trained weights are drawn to their average at each step, instead of the average to them."""
    changed = False
    for call in source.calls("lerp_"):
        assert isinstance(call.func, ast.Attribute)
        slow, fast = ast.unparse(call.func.value), call.args[0]
        source.replace(call.func.value, ast.unparse(fast))
        source.replace(fast, slow)
        changed = True
    for call in source.calls("update_parameters"):
        average, model = base_text(call), ast.unparse(call.args[0])
        source.after(
            call,
            f"with torch.no_grad():\n    for slow, own in zip({average}.parameters(), {model}.parameters()):\n"
            "        own.copy_(slow)",
        )
        changed = True
    return changed


@fault(
    "ScheduleCollapse",
    "OptimizerSettings",
    "Underfit",
    "WeightUpdateRatio",
    remedy=("scheduler", "schedul", "make the optimizer", "raise", "t_max", "epochs"),
)
def schedule_for_a_tenth_of_the_training(source: Source) -> bool:
    """A schedule that ends at a rate of 0 is made for five updates, and the rate stays there."""
    if source.calls(*SCHEDULERS):
        return False
    return source.schedule("PolynomialLR({}, total_iters=5)", each_epoch=False)
