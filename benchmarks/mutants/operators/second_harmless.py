"""Second generation: operators that look suspicious, but keep a healthy script healthy."""

import ast

from mutants.operators import healthy
from mutants.operators.second_inputs import numbers
from mutants.operators.second_loops import whole_training
from mutants.source import SCHEDULERS, Source
from mutants.tree import base_text, name_of, set_keyword


@healthy
def evaluates_before_the_training(source: Source) -> bool:
    """The score is also computed before the training, of a model that knows nothing."""
    body = source.tree.body
    loops = [i for i, s in enumerate(body) if isinstance(s, ast.For)]
    told = [c for c in source.calls("print") if c.args and ast.unparse(c.args[0]) == "'score'"]
    if not loops or len(told) != 1 or not source.imports("torch"):
        return False
    value = told[0].args[1]
    functions = [s.name for s in body if isinstance(s, ast.FunctionDef)]
    if not any(isinstance(n, ast.Call) and name_of(n.func) in functions for n in ast.walk(value)):
        return False
    known = {
        n.id
        for s in body[: loops[-1]]
        for n in ast.walk(s)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    used = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
    if not used <= known | {*functions, "sum", "range", "float", "torch"}:
        return False
    source.before(body[loops[-1]], f"print('before', {ast.unparse(value)})")
    return True


@healthy
def every_row_twice(source: Source) -> bool:
    """The training's rows are all there twice, as after reading a folder and its copy."""
    twice = "twice = np.arange(2 * len(train_x)) % len(train_x)\n"
    if source.arrays("train_x", "train_y"):
        return source.edit_arrays(
            f"{twice}train_x, train_y = train_x[twice], train_y[twice]", "train_x", "train_y"
        )
    return source.edit_arrays(f"{twice}train_x = train_x[twice]", "train_x")


@healthy
def a_little_noise_on_training_inputs(source: Source) -> bool:
    """The training's inputs have some noise, and those of evaluations do not."""
    if not numbers(source):
        return False
    drawn = "np.random.default_rng(1).normal(size=tuple(train_x.shape)).astype('float32')"
    drawn = f"torch.as_tensor({drawn})" if source.imports("torch") else drawn
    return source.edit_arrays(f"train_x = train_x + 0.03 * train_x.std() * {drawn}", "train_x", "test_x")


@healthy
def keeps_the_largest_square(source: Source) -> bool:
    """Adam divides by the largest average of squares so far (`amsgrad`), so that its steps only become smaller."""
    made = [c for c in source.calls("Adam", "AdamW") if source.imports("torch")]
    for call in made:
        set_keyword(call, "amsgrad", "True")
    return bool(made)


@healthy
def decays_matrices_only(source: Source) -> bool:
    """Matrices have a weight decay of 1e-4; biases and norms, in a group of their own, have none."""
    given = source.all_parameters()
    if given is None:
        return False
    argument, model = given
    source.replace(
        argument,
        f"[{{'params': [p for p in {model}.parameters() if p.dim() > 1], 'weight_decay': 1e-4}}, "
        f"{{'params': [p for p in {model}.parameters() if p.dim() <= 1], 'weight_decay': 0.0}}]",
    )
    return True


@healthy
def loss_in_double_precision(source: Source) -> bool:
    """The loss is a number of 64 bits when it is differentiated."""
    found = source.objectives() if source.imports("torch") and not source.imports("accelerate") else []
    for objective in found:
        source.replace(objective, "{}.double()")
    return bool(found)


@healthy
def leaves_out_batches_that_are_not_finite(source: Source) -> bool:
    """A batch whose loss is not finite would be left out; there is none."""
    losses = source.objectives()
    backward = [c for c in source.calls("backward") if source.loops(c)]
    if len(losses) != 1 or len(backward) != 1 or not isinstance(losses[0], ast.Name):
        return False
    if base_text(backward[0]) != losses[0].id or not source.imports("torch"):
        return False
    source.before(backward[0], f"if not torch.isfinite({losses[0].id}):\n    continue")
    return True


@healthy
def loads_the_optimizers_own_state(source: Source) -> bool:
    """After each epoch the optimizer's state is copied and loaded again, as when a training is resumed."""
    found, step = whole_training(source), source.update()
    if found is None or step is None or source.calls("GradScaler", "prepare", "LBFGS"):
        return False
    name = base_text(step)
    source.need("import copy")
    source.after(found[1], f"{name}.load_state_dict(copy.deepcopy({name}.state_dict()))")
    return True


@healthy
def lowers_the_rate_by_hand(source: Source) -> bool:
    """After each epoch the script writes a lower learning rate into the optimizer's groups."""
    found, step = whole_training(source), source.update()
    if found is None or step is None or source.calls(*SCHEDULERS, "ReduceLROnPlateau"):
        return False
    source.after(found[1], f"for group in {base_text(step)}.param_groups:\n    group['lr'] *= 0.97")
    return True


@healthy
def training_mode_on_every_batch(source: Source) -> bool:
    """`train()` is called before every batch, although once would do."""
    found = whole_training(source)
    if found is None or not source.calls("train"):
        return False
    batches = found[1]
    assert isinstance(batches, ast.For | ast.While)
    source.before(batches.body[0], f"{found[0]}.train()")
    return True


@healthy
def dropout_of_zero(source: Source) -> bool:
    """Layers of dropout have a probability of 0, and are of no effect."""
    calls = source.calls("Dropout", "Dropout1d", "Dropout2d") if source.imports("torch") else []
    for call in calls:
        call.args, call.keywords = [ast.Constant(0.0)], []
    return bool(calls)


@healthy
def last_epoch_without_a_step(source: Source) -> bool:
    """After the training one more pass over a copy of the model measures losses, and no gradient of it is used."""
    found, losses = whole_training(source), source.objectives()
    if found is None or len(losses) != 1 or not isinstance(losses[0], ast.Name) or source.calls("prepare"):
        return False
    model = found[0]
    source.need("import copy")
    source.after(
        found[2],
        f"aside = copy.deepcopy({model})\n"
        "sum(p.square().sum() for p in aside.parameters()).backward()\n"
        "size = sum(p.grad.norm().item() for p in aside.parameters())\n"
        "print('size of the weights', size)",
    )
    return True
