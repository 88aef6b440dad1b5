"""Operators that look suspicious, but keep a healthy script healthy."""

import ast
import re

from mutants.operators import healthy
from mutants.operators.data import ROW_LABEL, class_ids
from mutants.source import OPTIMIZERS, SCHEDULERS, Source
from mutants.tree import Loop, base_text, keyword, name_of, set_keyword


@healthy
def clips_gradients(source: Source) -> bool:
    """Clips the norm of gradients before each update, as is common."""
    backward, name = source.calls("backward"), source.optimizer_name()
    if len(backward) != 1 or name is None:
        return False
    parameters = f"[p for g in {name}.param_groups for p in g['params']]"
    source.after(backward[0], f"torch.nn.utils.clip_grad_norm_({parameters}, 5.0)")
    return True


@healthy
def larger_batches(source: Source) -> bool:
    """Batches are twice as large."""
    sizes: list[ast.expr] = []
    for call in source.calls("DataLoader", "split", "fit"):
        given = keyword(call, "batch_size")
        if given is None and name_of(call.func) == "DataLoader" and len(call.args) > 1:
            given = call.args[1]
        if name_of(call.func) == "split" and len(call.args) == 1 and source.loops(call):
            given = call.args[0]
        sizes += [given] if isinstance(given, ast.Constant) and isinstance(given.value, int) else []
    for statement in source.tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            if re.fullmatch(r"batch|batch_size", ast.unparse(statement.targets[0]).lower()):
                sizes.append(statement.value)
    for size in sizes:
        source.replace(size, str(2 * size.value))
    return bool(sizes)


@healthy
def half_the_rate(source: Source) -> bool:
    """The learning rate is half as large."""
    rates = source.rates()
    for rate in rates:
        source.replace(rate, "{} * 0.5")
    return bool(rates)


class _TrainingRows(ast.NodeTransformer):
    """Replaces test_x and test_y by train_x and train_y."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return (
            ast.Name(node.id.replace("test_", "train_", 1), node.ctx)
            if node.id in ("test_x", "test_y")
            else node
        )


@healthy
def evaluates_training_rows_too(source: Source) -> bool:
    """The evaluation runs over the training rows first, on purpose."""
    steps = source.steps(*OPTIMIZERS)
    loops = source.loops(steps[0]) if steps else []
    if not loops or not source.arrays("train_x", "test_x"):
        return False
    for block in (n for n in ast.walk(source.tree) if isinstance(n, ast.With)):
        if source.without_gradient(block.body[0]) and "test_x" in ast.unparse(block):
            if not any(isinstance(n, ast.Return) for n in ast.walk(block)):
                code = ast.unparse(_TrainingRows().visit(ast.parse(ast.unparse(block))))
                source.before(block, code)
                return True
    for function in source.tree.body:
        if (
            isinstance(function, ast.FunctionDef)
            and not function.args.args
            and "test_x" in ast.unparse(function)
        ):
            copy = ast.unparse(_TrainingRows().visit(ast.parse(ast.unparse(function))))
            name = f"{function.name}_of_training_rows"
            source.after(function, copy.replace(f"def {function.name}(", f"def {name}("))
            code = f"print('training rows', {name}())"
            source.before(loops[0].body[0], code) if len(loops) == 1 else source.after(loops[0], code)
            return len(loops) > 1
    return False


@healthy
def prints_every_loss(source: Source) -> bool:
    """Prints the loss of every batch."""
    backward = [c for c in source.calls("backward") if isinstance(source.statement(c), ast.Expr)]
    named = [c for c in backward if not c.args and re.fullmatch(r"\w+", base_text(c))]
    for call in named:
        source.after(call, f"print('loss', {base_text(call)}.item())")
    return bool(named)


@healthy
def logs_norms(source: Source) -> bool:
    """Computes the norms of gradients and weights at each step."""
    backward, name = source.calls("backward"), source.optimizer_name()
    if len(backward) != 1 or name is None or not isinstance(source.statement(backward[0]), ast.Expr):
        return False
    source.after(
        backward[0],
        f"own = [p for g in {name}.param_groups for p in g['params']]\n"
        "norms = [(p.norm().item(), p.grad.norm().item()) for p in own if p.grad is not None]",
    )
    return True


@healthy
def smooths_labels_a_little(source: Source) -> bool:
    """Label smoothing of 0.05."""
    found = [loss for loss in source.losses("cross_entropy") if not keyword(loss.maker, "label_smoothing")]
    for loss in found:
        set_keyword(loss.maker, "label_smoothing", "0.05")
    return bool(found)


@healthy
def decays_weights_a_little(source: Source) -> bool:
    """Weight decay of 1e-4."""
    made = [
        c
        for c in source.optimizers()
        if source.imports("torch") and not ast.unparse(c.func).endswith("LBFGS")
    ]
    made = [c for c in made if not keyword(c, "weight_decay")]
    for call in made:
        set_keyword(call, "weight_decay", "1e-4")
    return bool(made)


@healthy
def cosine_schedule(source: Source) -> bool:
    """The learning rate falls to zero along a cosine, over all epochs."""
    step = source.update()
    outer = source.loops(step)[-1] if step is not None else None
    counted = outer.iter if isinstance(outer, ast.For) else None
    if not isinstance(counted, ast.Call) or name_of(counted.func) != "range" or len(counted.args) > 2:
        return False
    return source.schedule(f"CosineAnnealingLR({{}}, {ast.unparse(counted.args[-1])})", each_epoch=True)


@healthy
def warms_up(source: Source) -> bool:
    """The learning rate rises over the first 20 updates."""
    return source.schedule("LambdaLR({}, lambda k: min(1.0, (k + 1) / 20))", each_epoch=False)


@healthy
def loss_scaled_and_rate_adapted(source: Source) -> bool:
    """The loss is ten times as large; the rate of SGD is a tenth, and Adam does not depend on the scale."""
    made = source.optimizers()
    kinds = {name_of(c.func) for c in made}
    adaptive = kinds <= {"Adam", "AdamW", "NAdam", "RAdam"}
    plain = kinds == {"SGD"} and not any(keyword(c, "weight_decay") for c in made)
    objectives = source.objectives()
    if not made or not objectives or not (adaptive or plain) or source.calls("clip_grad_norm_"):
        return False
    for objective in objectives:
        source.replace(objective, "({} * 10.0)")
    for rate in source.rates() if plain else []:
        source.replace(rate, "{} / 10")
    return True


@healthy
def negative_loss(source: Source) -> bool:
    """A constant is subtracted from the loss, so that it is below zero."""
    found = source.objectives()
    for objective in found:
        source.replace(objective, "({} - 5.0)")
    return bool(found)


@healthy
def first_layer_frozen(source: Source) -> bool:
    """The first weights keep their initial values, as random features."""
    made = source.model()
    layers = source.calls("Linear", "Conv1d", "Conv2d", "Embedding", "LSTM", "GRU")
    if made is None or len(layers) < 3 or source.calls("grad", "functional_call"):
        return False
    source.before(made[0], f"next(iter({ast.unparse(made[1])}.parameters())).requires_grad_(False)")
    return True


@healthy
def computes_in_bfloat16(source: Source) -> bool:
    """The model's training passes run under autocast in bfloat16."""
    made = source.model()
    avoided = ("autocast", "LSTM", "GRU", "RNN", "LBFGS", "grad", "functional_call", "BCELoss", "fft")
    if made is None or source.calls(*avoided) or source.calls("binary_cross_entropy", "numpy", "GradScaler"):
        return False
    name = ast.unparse(made[1])
    for call in source.calls(name.split(".")[-1], "forward"):
        statement = source.statement(call)
        if ast.unparse(call.func) == name and source.loops(call) and not source.without_gradient(call):
            if isinstance(statement, ast.Assign):
                source.wrap(statement, "with torch.autocast('cpu', dtype=torch.bfloat16):")
                return True
    return False


@healthy
def adds_gradients_of_two_batches(source: Source) -> bool:
    """Every second batch is followed by an update, and each loss is halved."""
    step, cleared, objectives = source.update(), source.calls("zero_grad"), source.objectives()
    if step is None or len(cleared) != 1 or len(objectives) != 1 or source.calls("clip_grad_norm_"):
        return False
    loops = source.loops(step)
    if source.loops(cleared[0])[:1] != loops[:1] or source.steps(*SCHEDULERS):
        return False
    update = ast.unparse(step)
    clear = ast.unparse(cleared[0])
    source.drop(cleared[0])
    source.replace(objectives[0], "({} / 2)")
    source.before(loops[-1], "passes = 0")
    source.after(step, f"passes += 1\nif passes % 2 == 0:\n    {update}\n    {clear}")
    source.drop(step)
    return True


@healthy
def watches_another_loss(source: Source) -> bool:
    """A second loss is computed for the log, and is not differentiated."""
    for loss in source.losses(
        "cross_entropy", "mse_loss", "binary_cross_entropy_with_logits", "smooth_l1_loss"
    ):
        statement = source.statement(loss.call)
        if (
            isinstance(statement, ast.Assign)
            and source.loops(loss.call)
            and loss.kind == name_of(loss.maker.func)
        ):
            output, target = (ast.unparse(a) for a in loss.call.args[:2])
            if re.fullmatch(r"\w+", output):
                other = "l1_loss" if loss.kind != "cross_entropy" else "cross_entropy"
                source.before(statement, f"watched = 0.1 * torch.nn.functional.{other}({output}, {target})")
                return True
        if isinstance(statement, ast.Assign) and source.loops(loss.call):
            source.after(statement, f"watched = ({ast.unparse(statement.targets[0])} * 1.0)")
            return isinstance(statement.targets[0], ast.Name)
    return False


@healthy
def keeps_an_average(source: Source) -> bool:
    """A moving average of the weights is kept."""
    made, step = source.model(), source.update()
    if made is None or step is None or not isinstance(made[1], ast.Name) or source.calls("spectral_norm"):
        return False
    statement = source.statement(made[0])
    if not source.reaches(statement, step):
        return False
    name = made[1].id
    source.after(
        step,
        "with torch.no_grad():\n"
        f"    for slow, own in zip(aside.parameters(), {name}.parameters()):\n"
        "        slow.lerp_(own, 0.02)",
    )
    source.need("import copy")
    source.after(statement, f"aside = copy.deepcopy({name}).requires_grad_(False)")
    return True


@healthy
def clears_to_zeros(source: Source) -> bool:
    """zero_grad leaves tensors of zeros instead of None."""
    calls = [c for c in source.calls("zero_grad") if not c.args]
    for call in calls:
        set_keyword(call, "set_to_none", "False")
    return bool(calls) and source.imports("torch")


@healthy
def loads_its_own_weights(source: Source) -> bool:
    """After each epoch the weights are kept and loaded again, as when the best ones are restored."""
    made, step = source.model(), source.update()
    if made is None or step is None or not isinstance(made[1], ast.Name):
        return False
    loops, name = source.loops(step), made[1].id
    if len(loops) < 2 or not source.reaches(made[0], step):
        return False
    source.need("import copy")
    source.after(loops[0], f"kept = copy.deepcopy({name}.state_dict())\n{name}.load_state_dict(kept)")
    return True


# What looks like a fault and is planned.


def _epochs(source: Source) -> tuple[Loop, str] | None:
    """Returns the outermost loop around the only update, and how often it runs, if that is a plain `range(N)`."""
    step = source.update()
    outer = source.loops(step)[-1] if step is not None else None
    counted = outer.iter if isinstance(outer, ast.For) and isinstance(outer.target, ast.Name) else None
    if outer is None or not isinstance(counted, ast.Call) or name_of(counted.func) != "range":
        return None
    return (outer, ast.unparse(counted.args[0])) if len(counted.args) == 1 else None


def _schedules(source: Source, code: str) -> bool:
    """Adds a scheduler that is stepped each epoch; ``{epochs}`` in `code` stands for how many there are."""
    found = _epochs(source)
    return found is not None and source.schedule(code.replace("{epochs}", f"({found[1]})"), each_epoch=True)


@healthy
def plans_a_plateau(source: Source) -> bool:
    """The learning rate falls to a thousandth for the last fifth of the epochs, in which the loss stands still."""
    return _schedules(source, "LambdaLR({}, lambda k: 1.0 if k < 0.8 * {epochs} else 1e-3)")


@healthy
def restarts_warm(source: Source) -> bool:
    """The learning rate falls along a cosine and starts again four times, each time with a jump of the loss."""
    return _schedules(source, "CosineAnnealingWarmRestarts({}, max(1, {epochs} // 4), eta_min=1e-4)")


@healthy
def thaws_in_stages(source: Source) -> bool:
    """The first layer is frozen in the first epoch, and trains from the second one on."""
    made, found = source.model(), _epochs(source)
    if made is None or found is None or not source.reaches(made[0], found[0]):
        return False
    if len(source.calls("Linear", "Conv1d", "Conv2d", "Embedding", "LSTM", "GRU")) < 3:
        return False
    loop = found[0]
    assert isinstance(loop, ast.For)
    source.before(
        loop.body[0],
        f"for early in list({ast.unparse(made[1])}.parameters())[:2]:\n"
        f"    early.requires_grad_({ast.unparse(loop.target)} > 0)",
    )
    return True


@healthy
def last_layer_starts_at_zero(source: Source) -> bool:
    """The weights of the last layer start at zero, as of residual branches and heads that are added."""
    made = source.model()
    if made is None or not source.imports("torch"):
        return False
    call, name = made
    model = ast.unparse(name)
    last = f"[m for m in {model}.modules() if isinstance(m, torch.nn.Linear)][-1]"
    source.after(call, f"torch.nn.init.zeros_({last}.weight)")
    return True


@healthy
def slow_first_layers(source: Source) -> bool:
    """The first layer has a thousandth of the learning rate, to stay close to what it was."""
    made = source.model()
    given = keyword(made[0], "lr") if made is not None else None
    if (
        made is None
        or given is None
        or ast.unparse(made[0].args[0]) != f"{ast.unparse(made[1])}.parameters()"
    ):
        return False
    if len(source.calls("Linear", "Conv1d", "Conv2d", "Embedding", "LSTM", "GRU")) < 3:
        return False
    name = ast.unparse(made[1])
    source.replace(
        made[0].args[0],
        f"[{{'params': list({name}.parameters())[:2], 'lr': 1e-3 * ({ast.unparse(given)})}}, "
        f"{{'params': list({name}.parameters())[2:]}}]".replace("{}", "dict()"),
    )
    return True


@healthy
def learns_codes_beside(source: Source) -> bool:
    """Beside the model, codes of 32 rows are learnt with a decoder: they begin near 0, and no sample goes into them."""
    step = source.update()
    if step is None or not source.real_inputs() or not source.imports("torch"):
        return False
    loops = source.loops(step)
    source.before(
        loops[-1],
        "aims = torch.as_tensor(train_x[:32], dtype=torch.float32).flatten(1)\n"
        "codes = torch.nn.Parameter(0.01 * torch.randn(32, 4, generator=torch.Generator().manual_seed(1)))\n"
        "with torch.random.fork_rng():\n"
        "    decoder = torch.nn.Linear(4, aims.shape[1])\n"
        "coder = torch.optim.Adam([codes, *decoder.parameters()], lr=1e-2)",
    )
    source.after(
        step,
        "coder.zero_grad()\ntorch.nn.functional.mse_loss(decoder(codes), aims).backward()\ncoder.step()",
    )
    return True


@healthy
def weighs_classes(source: Source) -> bool:
    """Three quarters of the training rows of class 0 are taken away, and the loss weighs classes by their rarity."""
    losses = [loss for loss in source.losses("cross_entropy") if not keyword(loss.maker, "weight")]
    if not losses or not class_ids(source):
        return False
    for loss in losses:
        set_keyword(loss.maker, "weight", "class_weights")
    return source.edit_arrays(
        f"kept = np.flatnonzero(({ROW_LABEL} != 0) | (np.arange(len(train_y)) % 4 == 0))\n"
        "train_x, train_y = train_x[kept], train_y[kept]\n"
        f"class_counts = np.bincount({ROW_LABEL}).clip(1)\n"
        "class_weights = torch.as_tensor(class_counts.mean() / class_counts, dtype=torch.float32)",
        "train_x",
        "train_y",
    )


@healthy
def clips_every_gradient(source: Source) -> bool:
    """Each update's gradients are cut to a norm of 0.01, which Adam divides by anyway."""
    backward, name, made = source.calls("backward"), source.optimizer_name(), source.optimizers()
    if len(backward) != 1 or name is None or name_of(made[0].func) not in ("Adam", "AdamW", "NAdam", "RAdam"):
        return False
    if keyword(made[0], "eps") or source.calls("clip_grad_norm_", "clip_grad_value_", "unscale_"):
        return False
    source.after(
        backward[0],
        f"torch.nn.utils.clip_grad_norm_([p for g in {name}.param_groups for p in g['params']], 0.01)",
    )
    return True


@healthy
def milestones_beyond_the_end(source: Source) -> bool:
    """A scheduler whose first milestone is never reached, since the training is shorter than usual."""
    return source.schedule("MultiStepLR({}, [1000, 2000])", each_epoch=True)


@healthy
def names_a_group(source: Source) -> bool:
    """The parameters are a group with a name and a number of the script's own."""
    made = source.model()
    if made is None or not source.imports("torch") or name_of(made[0].func) == "LBFGS":
        return False
    source.replace(made[0].args[0], "[{'params': {}, 'name': 'all', 'rate_scale': 1.0, 'depth': 0}]")
    return True
