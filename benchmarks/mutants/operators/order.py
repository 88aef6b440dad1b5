"""Operators that put right calls into a wrong order, or into the wrong loop."""

import ast

from mutants.operators import fault
from mutants.source import OPTIMIZERS, SCHEDULERS, Source
from mutants.tree import base_text


@fault("GradientNotCleared", "NoGradient", "StepSkipped", remedy=("zero_grad", "backward"), contract=True)
def cleared_after_backward(source: Source) -> bool:
    """zero_grad is called between backward and step, so that no update sees a gradient."""
    cleared, backward = source.calls("zero_grad"), source.calls("backward")
    if len(cleared) != 1 or len(backward) != 1:
        return False
    text = source.statement(cleared[0])
    source.drop(cleared[0])
    source.after(backward[0], ast.unparse(text))
    return True


@fault("GradientNotCleared", remedy=("zero_grad",), contract=True)
def cleared_once_per_epoch(source: Source) -> bool:
    """zero_grad is called before the loop over batches, so that gradients of an epoch add up."""
    step, cleared = source.update(), source.calls("zero_grad")
    if step is None or len(cleared) != 1 or source.calls("GradScaler"):
        return False
    loops = source.loops(step)
    if source.loops(cleared[0])[:1] != loops[:1] or (
        len(loops) < 2 and isinstance(source.scope(step), ast.Module)
    ):
        return False
    code = ast.unparse(cleared[0])
    source.drop(cleared[0])
    source.before(loops[0], code)
    return True


@fault(
    "StepSkipped", "NoGradient", "GradientNotCleared", remedy=("backward", "optimizer.step()"), contract=True
)
def step_before_backward(source: Source) -> bool:
    """The optimizer steps before the backward pass and sees cleared gradients."""
    step, backward = source.update(), source.calls("backward")
    if step is None or len(backward) != 1 or not source.calls("zero_grad"):
        return False
    if source.loops(backward[0])[:1] != source.loops(step)[:1]:
        return False
    code = ast.unparse(step)
    source.drop(step)
    source.before(backward[0], code)
    return True


@fault("StepSkipped", "UnusedResult", remedy=("inside the loop over batches",))
def learns_the_last_batch_only(source: Source) -> bool:
    """backward and step stand behind the loop over batches, so that only the last loss of a pass is used."""
    step, backward, cleared = source.update(), source.calls("backward"), source.calls("zero_grad")
    if (
        step is None
        or len(backward) != 1
        or len(cleared) != 1
        or source.calls("GradScaler", "clip_grad_norm_")
    ):
        return False
    loops = source.loops(step)
    if len(loops) < 2 or any(source.loops(call)[:1] != loops[:1] for call in (*backward, *cleared)):
        return False
    if not all(isinstance(source.statement(call), ast.Expr) for call in (*cleared, *backward, step)):
        return False
    calls = [(ast.unparse(call), call) for call in (step, *backward, *cleared)]  # inserted in reverse
    for code, call in calls:
        source.drop(call)
        source.after(loops[0], code)
    return True


@fault("ClipSaturated", remedy=("between loss.backward() and optimizer.step()",), contract=True)
def clips_after_the_update(source: Source) -> bool:
    """Gradients are clipped after the optimizer has used them."""
    step, made = source.update(), source.model()
    if step is None or made is None or source.calls("clip_grad_norm_", "clip_grad_value_", "GradScaler"):
        return False
    if len(source.steps(*OPTIMIZERS)) != 1:
        return False
    source.need("import torch")
    source.after(step, f"torch.nn.utils.clip_grad_norm_({ast.unparse(made[1])}.parameters(), 0.01)")
    return True


def scheduler_step(source: Source) -> ast.Call | None:
    """Returns the only step of the only scheduler, if it takes no metric."""
    steps = source.steps(*SCHEDULERS)
    return steps[0] if len(steps) == 1 and not steps[0].args else None


@fault("ScheduleCollapse", remedy=("once per epoch",))
def schedule_of_epochs_on_every_batch(source: Source) -> bool:
    """A scheduler that counts epochs is stepped on every batch."""
    own, step = scheduler_step(source), source.update()
    if own is None or step is None or source.loops(own)[:1] == source.loops(step)[:1]:
        return False
    if source.calls("OneCycleLR"):
        return False  # it raises when it is stepped too often
    code = ast.unparse(own)
    source.drop(own)
    source.after(step, code)
    return True


@fault("ScheduleCollapse", "WeightUpdateRatio", "Underfit", remedy=("raise the learning rate", "schedul"))
def schedule_of_updates_once_per_epoch(source: Source) -> bool:
    """A scheduler that counts updates is stepped once per epoch and never leaves its first phase."""
    own, step = scheduler_step(source), source.update()
    if (
        own is None
        or step is None
        or len(source.loops(step)) < 2
        or source.loops(own)[:1] != source.loops(step)[:1]
    ):
        return False
    code = ast.unparse(own)
    source.drop(own)
    source.after(source.loops(step)[0], code)
    return True


@fault("ScheduleCollapse", remedy=("once per epoch",))
def decays_on_every_batch(source: Source) -> bool:
    """The learning rate falls by a tenth on every batch instead of every epoch."""
    return source.schedule("ExponentialLR({}, 0.9)", each_epoch=False)


@fault("BatchOrder", remedy=("shuffle",))
def sorted_instead_of_shuffled(source: Source) -> bool:
    """Training rows are sorted by their targets and are not shuffled."""
    if not source.unshuffle():
        return False
    return source.edit_arrays(
        "by_target = np.argsort(np.asarray(train_y).reshape(len(train_y), -1)[:, 0], kind='stable')\n"
        "train_x, train_y = train_x[by_target], train_y[by_target]",
        "train_x",
        "train_y",
    )


@fault("OptimizerStateReset", remedy=("make the optimizer once",))
def optimizer_made_on_every_batch(source: Source) -> bool:
    """A new optimizer is made on every batch, which loses its state."""
    step, made = source.update(), source.model()
    if step is None or made is None or source.steps(*SCHEDULERS):
        return False
    statement, loop = source.statement(made[0]), source.loops(step)[0]
    if source.scope(statement) is not source.scope(step) or not isinstance(statement, ast.Assign):
        return False
    source.before(loop.body[0], ast.unparse(statement))
    return True


@fault("ParamNotOptimized", remedy=("model.parameters()",), contract=True)
def model_replaced_after_the_optimizer(source: Source) -> bool:
    """The model is copied after the optimizer got the parameters of the old one."""
    made = source.model()
    if made is None or not isinstance(made[1], ast.Name):
        return False
    statement, name = source.statement(made[0]), made[1].id
    if not source.binds(source.scope(statement), name):
        return False
    source.need("import copy")
    source.after(statement, f"{name} = copy.deepcopy({name})")
    return True


# FrozenAtInit is planned to report weights frozen by mistake: most are frozen although nothing was loaded.
@fault("FrozenAtInit", "NoGradient", "ParamNotOptimized", remedy=("requires_grad", "freez", "load"))
def frozen_though_nothing_was_loaded(source: Source) -> bool:
    """All but the last layer are frozen after the optimizer got them, and were never trained."""
    made = source.model()
    if made is None or source.calls("grad", "load_state_dict", "functional_call"):
        return False
    statement = source.statement(made[0])
    if isinstance(statement, ast.Return):
        return False
    model = ast.unparse(made[1])
    source.after(statement, f"for p in list({model}.parameters())[:-2]:\n    p.requires_grad_(False)")
    return bool(source.steps(*OPTIMIZERS))


@fault("ScheduleCollapse", remedy=("mode='min'",), contract=True)
def waits_for_the_loss_to_rise(source: Source) -> bool:
    """A scheduler that waits for a plateau gets the loss of each epoch's last batch, and takes larger for better."""
    losses = [one for one in source.objectives() if isinstance(one, ast.Name)]
    if len(losses) != 1 or not source.schedule(
        "ReduceLROnPlateau({}, mode='max', patience=2)", each_epoch=True
    ):
        return False
    for call in source.calls("step"):
        if base_text(call) == "schedule":
            call.args.append(ast.parse(f"{losses[0].id}.item()", mode="eval").body)
    return True


@fault("NoGradient", remedy=("output[:, -1]",), contract=True)
def takes_the_first_output(source: Source) -> bool:
    """Of a recurrent layer's outputs the first is used, where the last one has seen the whole sequence."""
    names = set()
    for made in source.calls("LSTM", "GRU", "RNN"):
        statement = source.statement(made)
        if isinstance(statement, ast.Assign):
            names.add(ast.unparse(statement.targets[0]))
    outputs = set()
    for statement in ast.walk(source.tree):
        if (
            isinstance(statement, ast.Assign)
            and isinstance(statement.value, ast.Call)
            and ast.unparse(statement.value.func) in names
            and isinstance(statement.targets[0], ast.Tuple)
        ):
            outputs.add(ast.unparse(statement.targets[0].elts[0]))
    changed = False
    for one in ast.walk(source.tree):
        if isinstance(one, ast.Subscript) and ast.unparse(one.value) in outputs:
            if isinstance(one.slice, ast.Tuple) and ast.unparse(one.slice.elts[1]) == "-1":
                one.slice.elts[1] = ast.Constant(0)
                changed = True
    return changed
