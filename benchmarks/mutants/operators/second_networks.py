"""Second generation: operators that leave out, repeat or exchange parts of a network, or start it wrongly."""

import ast

from mutants.operators import fault
from mutants.operators.calls import forwards, own_layers
from mutants.operators.losses import REGRESSION
from mutants.operators.objects import initialise
from mutants.source import Source
from mutants.tree import keyword, name_of, named, set_keyword

MODULES = ("ReLU", "LeakyReLU", "Tanh", "GELU", "SiLU", "ELU", "PReLU")
FUNCTIONS = ("relu", "gelu", "silu", "elu")


def change_activations(source: Source, module: str, function: str) -> bool:
    """Replaces the activations between layers; ``{}`` in `function` stands for what a functional one gets."""
    modules = source.calls(*MODULES) if source.imports("torch") else []
    functions = [
        call
        for forward in ast.walk(source.tree)
        if isinstance(forward, ast.FunctionDef) and forward.name in ("forward", "encode", "decode")
        for call in named(forward, *FUNCTIONS)
        if len(call.args) == 1
    ]
    for call in modules:
        source.replace(call, module)
    for call in reversed(functions):  # inner ones first
        source.replace(call, function.replace("{}", f"({ast.unparse(call.args[0])})"))
    return bool(modules) or (bool(functions) and source.imports("torch"))


@fault(
    "MissingActivation",
    "Underfit",
    "WorseThanSimple",
    "ExplodingTensor",
    "NoBetterThanConstant",
    remedy=("activation",),
)
def activations_left_out(source: Source) -> bool:
    """The activations between the layers are missing."""
    if source.calls("grad"):
        return False  # a second derivative needs a curve
    return change_activations(source, "torch.nn.Identity()", "{}")


@fault(
    "VanishingGradient",
    "SaturatedActivation",
    "Underfit",
    "NoBetterThanConstant",
    "ConstantOutput",
    "MissingActivation",
    "LossInputContract",
    remedy=("activation", "softmax", "relu", "gradient"),
)
def softmax_between_layers(source: Source) -> bool:
    """Hidden layers have a softmax for their activation."""
    return change_activations(source, "torch.nn.Softmax(dim=1)", "torch.softmax({}, dim=1)")


@fault(
    "VanishingGradient", "Underfit", "NoGradient", remedy=("residual", "skip", "gradient", "add the input")
)
def residuals_left_out(source: Source) -> bool:
    """A residual block returns what it adds, without its input."""
    changed = False
    for function in forwards(source):
        for node in [n for n in ast.walk(function) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Add)]:
            kept = node.left.value if isinstance(node.left, ast.Subscript) else node.left
            of_layers = bool(own_layers(node.right))
            base = isinstance(kept, ast.Call) and ast.unparse(kept.func).startswith("self.base")
            if (isinstance(kept, ast.Name) and of_layers) or base:
                source.replace(node, ast.unparse(node.right))
                changed = True
    return changed


@fault("NoGradient", "UnchangedTensor", "ParamNotOptimized", remedy=("forward", "used", "layer", "backward"))
def blocks_left_out_but_the_first(source: Source) -> bool:
    """Only the first block of a network is used, as was of use to find out whether all runs."""
    changed = False
    for function in forwards(source):
        for loop in [n for n in ast.walk(function) if isinstance(n, ast.For)]:
            if isinstance(loop.iter, ast.Attribute) and ast.unparse(loop.iter).startswith("self."):
                source.replace(loop.iter, f"{ast.unparse(loop.iter)}[:1]")
                changed = True
    return changed


@fault("SymmetricUnits", "Underfit", "NoGradient", remedy=("one object", "copies", "each", "list", "initial"))
def one_block_for_all(source: Source) -> bool:
    """A list of blocks holds the same block several times, with one set of weights."""
    changed = False
    for call in source.calls("ModuleList", "Sequential"):
        for argument in call.args:
            made = argument.value if isinstance(argument, ast.Starred) else argument
            if not isinstance(made, ast.ListComp) or not isinstance(made.elt, ast.Call):
                continue
            over = made.generators[0].iter
            if isinstance(over, ast.Call) and name_of(over.func) == "range" and len(over.args) == 1:
                source.replace(made, f"[{ast.unparse(made.elt)}] * {ast.unparse(over.args[0])}")
                changed = True
    return changed


@fault(
    "VanishingGradient",
    "SymmetricUnits",
    "PoorWeightInitialization",
    "Underfit",
    "ConstantOutput",
    "NoBetterThanConstant",
    remedy=("initial", "scale", "gain", "random"),
)
def weights_far_too_small(source: Source) -> bool:
    """Weights start with a standard deviation of a ten-thousandth."""
    return initialise(
        source,
        "if isinstance(module, (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d)):\n"
        "        torch.nn.init.normal_(module.weight, std=1e-4)",
    )


@fault(
    "OptimizerStateReset",
    "LossSpike",
    "LossNotDecreasing",
    "WeightUpdateRatio",
    "Underfit",
    "FrozenAtInit",
    remedy=("initial", "reset", "once", "before the loop"),
)
def initialised_in_every_epoch(source: Source) -> bool:
    """The weights are drawn anew at the start of every epoch."""
    step, made = source.update(), source.model()
    if step is None or made is None or not source.imports("torch") or not source.reaches(made[0], step):
        return False
    loops, whole = source.loops(step), isinstance(source.scope(step), ast.Module)
    if len(loops) < 2 and whole:
        return False
    code = (
        f"for module in {ast.unparse(made[1])}.modules():\n"
        "    if hasattr(module, 'reset_parameters'):\n"
        "        module.reset_parameters()"
    )
    source.before(loops[-1].body[0] if len(loops) > 1 else loops[0], code)
    return True


@fault(
    "SampleMixing",
    "ContrastivePairs",
    "LossFormula",
    "ModeCollapse",
    remedy=("dim=", "axis", "batch", "sample"),
)
def vectors_normalised_over_the_batch(source: Source) -> bool:
    """The length of vectors is made 1 along the axis of samples instead of along their own."""
    changed = False
    for call in source.calls("normalize") if source.imports("torch") else []:
        given = keyword(call, "dim")
        if given is not None and ast.unparse(given) in ("1", "-1"):
            set_keyword(call, "dim", "0")
            changed = True
    return changed


@fault(
    "TargetRange",
    "DeadRelu",
    "ConstantOutput",
    "NoGradient",
    "NoBetterThanConstant",
    remedy=("last activation", "relu", "last layer", "scale the targets", "activation"),
)
def regression_ends_in_a_relu(source: Source) -> bool:
    """A ReLU behind the last layer keeps a regression from values below zero."""
    made = source.model()
    if made is None or not isinstance(made[1], ast.Name) or not source.losses(*REGRESSION):
        return False
    name, statement = made[1].id, source.statement(made[0])
    direct = [loss for loss in source.losses(*REGRESSION) if any(named(loss.call.args[0], name))]
    if not direct or not isinstance(statement, ast.Assign):
        return False
    if not isinstance(statement.targets[0], ast.Name) or not source.binds(source.scope(statement), name):
        return False
    source.before(statement, f"{name} = torch.nn.Sequential({name}, torch.nn.ReLU())")
    source.need("import torch")
    return len(source.calls("zip")) == 0 or bool(source.calls("deepcopy"))


@fault("HighDropout", "Underfit", "NoBetterThanConstant", remedy=("dropout", "dropped", "use p ="))
def dropout_on_the_inputs(source: Source) -> bool:
    """Dropout sets nine of ten inputs of the first layer to zero."""
    layers = source.calls("Linear", "Conv1d", "Conv2d") if source.imports("torch") else []
    for call in source.calls("Sequential"):
        first = call.args[0] if call.args else None
        if isinstance(first, ast.Call) and any(first is layer for layer in layers):
            call.args.insert(0, ast.parse("torch.nn.Dropout(0.9)", mode="eval").body)
            source.need("import torch")
            return True
    return False
