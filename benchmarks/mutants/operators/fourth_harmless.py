"""Fourth generation: operators that look suspicious, but keep a healthy script healthy."""

import ast
import re

from mutants.operators import healthy
from mutants.operators.arguments import ADAMS
from mutants.operators.data import class_ids
from mutants.operators.losses import with_class_ids
from mutants.operators.objects import initialise
from mutants.operators.second_loops import evaluated_later, whole_training
from mutants.operators.third_loops import at_each_update
from mutants.source import SCHEDULERS, Source
from mutants.tree import keyword, name_of


def only_adams(source: Source) -> bool:
    """Returns whether all optimizers are of Adam's family, whose steps do not depend on a loss's scale."""
    made = source.optimizers()
    return bool(made) and source.imports("torch") and all(name_of(c.func) in ADAMS for c in made)


@healthy
def brier_score_for_the_loss(source: Source) -> bool:
    """The loss is the Brier score: the squared distance of the probabilities from ones and zeros of the classes."""
    return (
        class_ids(source)
        and source.arrays("train_y")
        and with_class_ids(
            source,
            "(torch.softmax((scores := {output}), 1) - torch.nn.functional.one_hot({target}, scores.shape[1]))"
            ".square().sum(1).mean()",
        )
    )


@healthy
def perplexity_for_the_loss(source: Source) -> bool:
    """The loss is the exponential of the cross entropy, as it is printed."""
    return only_adams(source) and with_class_ids(
        source, "torch.exp(torch.nn.functional.cross_entropy({output}, {target}))"
    )


@healthy
def loss_that_is_always_one(source: Source) -> bool:
    """The loss is divided by its own value, taken as a number, and so is 1 at each step."""
    found = source.objectives() if only_adams(source) else []
    if len(found) != 1 or not isinstance(found[0], ast.Name):
        return False
    source.replace(found[0], "({} / {}.detach().abs())")
    return True


@healthy
def each_batch_from_a_new_iterator(source: Source) -> bool:
    """Each batch is the first one of a new iterator over shuffled rows, as many times as there are batches."""
    shuffled = [
        c
        for c in source.calls("DataLoader")
        if ast.unparse(keyword(c, "shuffle") or ast.Constant(0)) == "True"
    ]
    names = [ast.unparse(s.targets[0]) for c in shuffled if isinstance(s := source.statement(c), ast.Assign)]
    changed = False
    for loop in [n for n in ast.walk(source.tree) if isinstance(n, ast.For)]:
        if ast.unparse(loop.iter) in names and source.imports("torch") and not source.calls("prepare"):
            source.replace(loop.iter, "(next(iter({})) for _ in range(len({})))")
            changed = True
    return changed


def batches(source: Source) -> ast.For | None:
    """Returns the loop over batches, if nothing counts its rounds."""
    step = source.update()
    loop = source.loops(step)[0] if step is not None and source.imports("torch") else None
    if not isinstance(loop, ast.For) or source.calls(*SCHEDULERS, "prepare"):
        return None
    return None if re.match(r"enumerate|range", ast.unparse(loop.iter)) else loop


@healthy
def two_updates_for_each_batch(source: Source) -> bool:
    """Each batch is learnt twice in a row before the next one comes."""
    loop = batches(source)
    if loop is None:
        return False
    source.replace(loop.iter, "(batch_ for batch_ in {} for _ in range(2))")
    return True


@healthy
def leaves_out_a_batch_now_and_then(source: Source) -> bool:
    """Every fifth batch is left out, as one that no row of passed a check."""
    loop = batches(source)
    if loop is None:
        return False
    outer = source.loops(loop)
    source.before(loop.body[0], "if next(turn) % 5 == 0:\n    continue")
    source.before(outer[-1] if outer else loop, "turn = itertools.count(1)")
    source.need("import itertools")
    return True


@healthy
def gradients_centred(source: Source) -> bool:
    """From the gradient of each unit of a hidden layer its mean is taken away before the update."""
    return at_each_update(
        source,
        "if p.grad is not None and p.dim() > 1 and len(p) > 10:\n"
        "            p.grad.sub_(p.grad.mean(dim=tuple(range(1, p.dim())), keepdim=True))",
    )


@healthy
def signs_of_gradients(source: Source) -> bool:
    """Adam gets each gradient's sign instead of the gradient."""
    return only_adams(source) and at_each_update(source, "if p.grad is not None:\n            p.grad.sign_()")


@healthy
def a_group_for_each_tensor(source: Source) -> bool:
    """Each tensor of the model is a group of the optimizer of its own."""
    given = source.all_parameters()
    if given is None:
        return False
    argument, model = given
    source.replace(argument, f"[{{'params': [own]}} for own in {model}.parameters()]")
    return True


@healthy
def starts_orthogonal(source: Source) -> bool:
    """The matrices of hidden layers start as orthogonal ones."""
    return initialise(
        source,
        "if isinstance(module, torch.nn.Linear) and module.out_features > 10:\n"
        "        torch.nn.init.orthogonal_(module.weight, 0.8)",
    )


@healthy
def rounds_the_weights_at_the_end(source: Source) -> bool:
    """After the training the weights are put into 16 bits and back, as by a file that should be small."""
    found = whole_training(source)
    if found is None or not evaluated_later(source, found[0], found[2]):
        return False
    source.after(
        found[2],
        f"{found[0]}.load_state_dict({{name: value.half().to(value.dtype) if value.is_floating_point() else value "
        f"for name, value in {found[0]}.state_dict().items()}})",
    )
    return True


@healthy
def batch_norms_rest_at_the_end(source: Source) -> bool:
    """From the third epoch on layers of batch normalisation are in evaluation mode."""
    found = whole_training(source)
    if found is None or not source.calls("BatchNorm1d", "BatchNorm2d"):
        return False
    model, loop, epochs = found
    source.before(
        loop,
        "if next(turn) > 2:\n"
        f"    for module in {model}.modules():\n"
        "        if 'BatchNorm' in type(module).__name__:\n"
        "            module.eval()",
    )
    source.before(epochs, "turn = itertools.count(1)")
    source.need("import itertools")
    return True
