"""Operators that remove a call, or cut the graph."""

import ast
import re

from mutants.operators import fault
from mutants.source import OPTIMIZERS, Source
from mutants.tree import base_text


@fault("GradientNotCleared", remedy=("zero_grad",), contract=True)
def gradients_never_cleared(source: Source) -> bool:
    """Gradients of all batches add up: zero_grad is missing."""
    calls = source.calls("zero_grad")
    for call in calls:
        source.drop(call)
    return bool(calls)


@fault("ModeMismatch", remedy=("eval()", "train()"), contract=True)
def evaluation_in_train_mode(source: Source) -> bool:
    """The evaluation runs with dropout and batch statistics: eval() is missing."""
    calls = [c for c in source.calls("eval") if not c.args]
    for call in calls:
        source.remove_call(call)
    return bool(calls) and source.mode_matters()


@fault("ModeMismatch", remedy=("train()",), contract=True)
def training_in_evaluation_mode(source: Source) -> bool:
    """train() is missing after the first evaluation."""
    calls = [
        c
        for c in source.calls("train")
        if not c.args and not c.keywords and "trainer" not in base_text(c).lower()
    ]
    for call in calls:
        source.remove_call(call)
    return bool(calls) and bool(source.calls("eval")) and source.mode_matters()


@fault("StepSkipped", remedy=("optimizer.step()",), contract=True)
def update_missing(source: Source) -> bool:
    """Gradients are computed, but no optimizer steps."""
    steps = [c for c in source.steps(*OPTIMIZERS) if not c.args]
    for call in steps:
        source.drop(call)
    return bool(steps)


@fault("StepSkipped", remedy=("optimizer.step()",), contract=True)
def update_once_per_epoch(source: Source) -> bool:
    """The optimizer steps after the loop over batches, once per epoch."""
    step = source.update()
    if step is None:
        return False
    loops = source.loops(step)
    if len(loops) < 2 and isinstance(source.scope(step), ast.Module):
        return False
    code = ast.unparse(step)
    source.drop(step)
    source.after(loops[0], code)
    return True


@fault("NoGradient", "StepSkipped", remedy=("backward", "optimizer.step()", "detach"))
def one_loss_of_several_without_backward(source: Source) -> bool:
    """One of several losses has no backward pass."""
    calls = [c for c in source.calls("backward") if isinstance(source.statement(c), ast.Expr)]
    if len(calls) < 2:
        return False
    source.drop(calls[-1])
    return True


def forwards(source: Source) -> list[ast.FunctionDef]:
    """Returns the `forward` methods of the script's modules."""
    return [
        f
        for f in ast.walk(source.tree)
        if isinstance(f, ast.FunctionDef) and f.name in ("forward", "__call__")
    ]


def own_layers(node: ast.AST) -> list[ast.Call]:
    """Returns calls such as `self.layer(...)`."""
    calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)]
    return [n for n in calls if re.fullmatch(r"self(\.\w+)+", ast.unparse(n.func))]


@fault("NoGradient", remedy=("no_grad", "detach"))
def first_layers_without_gradient(source: Source) -> bool:
    """The first layers run under no_grad and keep their initial weights."""
    for function in forwards(source):
        for i, statement in enumerate(function.body):
            later = [c for s in function.body[i + 1 :] for c in own_layers(s)]
            if (
                isinstance(statement, ast.Assign)
                and own_layers(statement)
                and later
                and source.imports("torch")
            ):
                source.wrap(statement, "with torch.no_grad():")
                return True
    return False


@fault("NoGradient", remedy=("detach",))
def head_on_detached_features(source: Source) -> bool:
    """The last layer gets detached features, so the layers below it learn nothing."""
    for function in forwards(source):
        for statement in function.body:
            value = statement.value if isinstance(statement, ast.Return) else None
            while value is not None and value not in own_layers(value):  # e.g. `self.head(x).squeeze(-1)`
                of_method = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)
                value = value.func.value if of_method else None
            if value is None or not value.args:
                continue
            features = value.args[0]
            stored = [
                n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
            ]
            computed = not isinstance(features, ast.Name) or features.id in stored  # not the input itself
            if computed and source.imports("torch"):
                source.replace(features, "{}.detach()")
                return True
    return False


@fault("NoGradient", remedy=("detach", ".data"), contract=True)
def loss_cut_from_its_graph(source: Source) -> bool:
    """The loss is detached and set to require a gradient, which silences the error of backward."""
    found = [
        c.func.value for c in source.calls("backward") if isinstance(c.func, ast.Attribute) and not c.args
    ]
    found = [e for e in found if isinstance(e, ast.Name)]
    for loss in found:
        source.replace(loss, "{}.detach().requires_grad_()")
    return bool(found)


@fault("NoGradient", remedy=(".item()", "detach"))
def term_of_the_loss_as_a_number(source: Source) -> bool:
    """One of the added losses is turned into a number and has no gradient."""
    term = source.last_term()
    if term is None or not source.imports("torch"):
        return False
    source.replace(term, "float({})")
    return True
