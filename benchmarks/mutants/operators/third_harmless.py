"""Third generation: operators that look suspicious, but keep a healthy script healthy."""

import ast

from mutants.operators import healthy
from mutants.operators.arguments import ADAMS
from mutants.operators.data import class_ids
from mutants.operators.losses import with_class_ids
from mutants.operators.second_rows import regresses
from mutants.operators.third_data import two_arrays
from mutants.operators.third_loops import at_each_update
from mutants.source import OPTIMIZERS, Source
from mutants.tree import base_text, set_keyword


@healthy
def root_of_the_mean_square(source: Source) -> bool:
    """The loss is the root of the mean square, in the unit of the targets."""
    found = source.losses("mse_loss") if source.imports("torch") else []
    for loss in found:
        source.replace(loss.call, "torch.sqrt({} + 1e-8)")
    return bool(found)


@healthy
def classes_as_many_questions(source: Source) -> bool:
    """Each class is a question of its own, answered by a binary cross entropy of the class ids as ones and zeros."""
    return (
        class_ids(source)
        and source.arrays("train_y")
        and with_class_ids(
            source,
            "torch.nn.functional.binary_cross_entropy_with_logits((scores := {output}), "
            "torch.nn.functional.one_hot({target}, scores.shape[1]).float())",
        )
    )


@healthy
def loss_that_never_passes_a_level(source: Source) -> bool:
    """A loss below 0.01 is turned around and rises again, so that it floats there."""
    found = source.objectives() if source.imports("torch") else []
    if len(found) != 1:
        return False
    source.replace(found[0], "(({} - 0.01).abs() + 0.01)")
    return True


@healthy
def evaluates_in_bfloat16(source: Source) -> bool:
    """Evaluations run under autocast in bfloat16, and the training does not."""
    if source.calls("sample"):
        return False  # what is drawn is learnt from
    changed = False
    for block in [n for n in ast.walk(source.tree) if isinstance(n, ast.With)]:
        text = ast.unparse(block)
        if len(block.items) != 1 or ast.unparse(block.items[0].context_expr) != "torch.no_grad()":
            continue
        scope = source.scope(block)
        around = "" if isinstance(scope, ast.Module) else ast.unparse(scope)
        if source.loops(block) or ".numpy()" in text or "roc_auc" in around or "backward" in around:
            continue
        added = ast.parse("with torch.autocast('cpu', dtype=torch.bfloat16):\n    pass").body[0]
        assert isinstance(added, ast.With)
        block.items += added.items
        changed = True
    return changed


@healthy
def adam_with_a_short_memory(source: Source) -> bool:
    """Adam's betas are 0.8 and 0.95, and so it looks back less far than usual."""
    made = [c for c in source.calls(*ADAMS) if source.imports("torch")]
    for call in made:
        set_keyword(call, "betas", "(0.8, 0.95)")
    return bool(made)


@healthy
def cosine_there_and_back(source: Source) -> bool:
    """The learning rate swings along a cosine, to 0 and back again every fourteen updates."""
    return source.schedule("CosineAnnealingLR({}, 7)", each_epoch=False)


@healthy
def a_little_noise_on_gradients(source: Source) -> bool:
    """Each gradient gets noise of a hundredth of its size before the update."""
    noise = "0.01 * p.grad.std(correction=0) * torch.randn(p.shape)"
    return at_each_update(source, f"if p.grad is not None:\n            p.grad.add_({noise})")


@healthy
def looks_ahead(source: Source) -> bool:
    """Every fifth update the weights are drawn back a fifth of the way to where they were five updates before."""
    step = source.update()
    if step is None or not source.imports("torch") or source.calls("GradScaler", "prepare"):
        return False
    loops = source.loops(step)
    own = f"[p for group in {base_text(step)}.param_groups for p in group['params']]"
    source.after(
        step,
        "if next(turns) % 5 == 0:\n"
        "    with torch.no_grad():\n"
        f"        for old, p in zip(slow, {own}):\n"
        "            old.lerp_(p, 0.8)\n"
        "            p.copy_(old)",
    )
    source.before(loops[-1], f"slow, turns = [p.detach().clone() for p in {own}], itertools.count(1)")
    source.need("import itertools")
    source.need("import torch")
    return True


@healthy
def a_little_absolute_penalty(source: Source) -> bool:
    """A millionth of the sum of all weights, without their signs, is added to the loss."""
    step, objectives = source.update(), source.objectives()
    if step is None or len(objectives) != 1 or not source.imports("torch"):
        return False
    if source.scope(step) is not source.scope(objectives[0]) or len(source.steps(*OPTIMIZERS)) != 1:
        return False
    own = f"for group in {base_text(step)}.param_groups for p in group['params']"
    source.replace(objectives[0], f"({{}} + 0.000001 * sum(p.abs().sum() {own}))")
    return True


@healthy
def rows_drawn_with_replacement(source: Source) -> bool:
    """The training's rows are drawn with replacement, as for one of several models."""
    return two_arrays(source) and source.edit_arrays(
        "drawn = np.random.default_rng(1).integers(len(train_x), size=len(train_x))\n"
        "train_x, train_y = train_x[drawn], train_y[drawn]",
        "train_x",
        "train_y",
    )


@healthy
def a_little_noise_on_training_targets(source: Source) -> bool:
    """The training's targets have noise of a thirtieth of their spread, and those of evaluations do not."""
    if not regresses(source) or not source.imports("torch"):
        return False
    drawn = "torch.as_tensor(np.random.default_rng(1).normal(size=tuple(train_y.shape)).astype('float32'))"
    return source.edit_arrays(f"train_y = train_y + 0.03 * train_y.std() * {drawn}", "train_x", "train_y")


@healthy
def differentiates_in_two_halves(source: Source) -> bool:
    """Each loss is differentiated twice, half of it each time, and the two gradients add up to the whole one."""
    calls = [
        c
        for c in source.calls("backward")
        if not c.args
        and not c.keywords
        and isinstance(c.func, ast.Attribute)
        and isinstance(c.func.value, ast.Name)
    ]
    for call in calls if source.imports("torch") else []:
        name = base_text(call)
        source.before(call, f"(0.5 * {name}).backward(retain_graph=True)")
        source.replace(call, f"(0.5 * {name}).backward()")
    return bool(calls) and source.imports("torch")
