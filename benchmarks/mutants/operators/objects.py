"""Operators that make a right call on a wrong object, or set wrong initial weights."""

import ast

from mutants.operators import fault
from mutants.source import Source


@fault("ParamNotOptimized", remedy=("model.parameters()",), contract=True)
def optimizer_of_a_copy(source: Source) -> bool:
    """The optimizer gets the parameters of a copy of the model."""
    made = source.model()
    if made is None or not isinstance(made[1], ast.Name):
        return False
    source.need("import copy")
    source.replace(made[1], "copy.deepcopy({})")
    return True


@fault("ParamNotOptimized", remedy=("model.parameters()",))
def only_the_head_is_optimized(source: Source) -> bool:
    """The optimizer gets the parameters of the last layer only."""
    made = source.model()
    if made is None or not isinstance(made[0].args[0], ast.Call) or source.calls("LBFGS"):
        return False
    if ast.unparse(made[0].args[0]) != f"{ast.unparse(made[1])}.parameters()":
        return False
    source.replace(made[0].args[0], "list({})[-2:]")
    return True


def two_models(source: Source) -> tuple[ast.expr, ast.expr] | None:
    """Returns the models of two optimizers, if each has one of its own."""
    made = [source.trained(call) for call in source.optimizers()]
    if len(made) < 2 or len(made[0]) != 1 or len(made[1]) != 1:
        return None
    return (made[0][0], made[1][0]) if ast.unparse(made[0][0]) != ast.unparse(made[1][0]) else None


@fault("ParamNotOptimized", remedy=("model.parameters()",), contract=True)
def both_optimizers_of_one_network(source: Source) -> bool:
    """The second optimizer gets the parameters of the first one's network."""
    models = two_models(source)
    if models is None:
        return False
    source.replace(models[1], ast.unparse(models[0]))
    return True


# A separate rule for a parameter that two optimizers hold is planned (SharedParameter).
@fault("SharedParameter", remedy=("one optimizer", "two optimizers"))
def one_network_in_two_optimizers(source: Source) -> bool:
    """The second optimizer moves the first one's network too."""
    models = two_models(source)
    if models is None:
        return False
    for call in source.optimizers():
        if models[1] in source.trained(call) and ast.unparse(call.args[0]).endswith(".parameters()"):
            first, second = (ast.unparse(m) for m in models)
            source.replace(call.args[0], f"[*{first}.parameters(), *{second}.parameters()]")
            return True
    return False


def copies(source: Source) -> list[tuple[str, str]]:
    """Returns (copy, model) for `copy = copy.deepcopy(model)`."""
    names = [
        (ast.unparse(n.targets[0]), ast.unparse(call.args[0]))
        for n in ast.walk(source.tree)
        if isinstance(n, ast.Assign)
        for call in source.calls("deepcopy")
        if call.args and any(child is call for child in ast.walk(n.value))
    ]
    return [(own, model) for own, model in names if not model.endswith("state_dict()")]


@fault("ParamNotOptimized", remedy=("model.parameters()",))
def average_is_optimized(source: Source) -> bool:
    """The optimizer gets the parameters of the moving average or of the target network."""
    for own, model in copies(source):
        for call in source.optimizers():
            for trained in source.trained(call):
                made = source.assigned(own)
                if ast.unparse(trained) == model and made is not None and made.lineno < call.lineno:
                    source.replace(trained, own)
                    return True
    return False


# No rule knows target networks. A rule for targets that move with the model is planned (TargetGradient).
@fault("TargetGradient", "LossNotDecreasing", "ExplodingTensor", remedy=("target",))
def target_network_is_the_model(source: Source) -> bool:
    """Targets come from the trained network instead of its slow copy."""
    for own, model in copies(source):
        calls = [
            n
            for n in ast.walk(source.tree)
            if isinstance(n, ast.Call)
            and ast.unparse(n.func) == own
            and source.loops(n)
            and source.without_gradient(n)
        ]
        if calls:
            for call in calls:
                source.replace(call.func, model)
            return True
    return False


@fault("ParamNotOptimized", remedy=("nn.parameterlist", "modulelist", "model.parameters()"), contract=True)
def layers_in_a_plain_list(source: Source) -> bool:
    """Layers are in a Python list instead of a ModuleList, so no optimizer gets them."""
    calls = [c for c in source.calls("ModuleList") if c.args]
    for call in calls:
        source.replace(call, f"list({ast.unparse(call.args[0])})")
    return bool(calls)


# Initial weights ---------------------------------------------------------------


def initialise(source: Source, code: str) -> bool:
    """Runs code for each `module` of the models, before their optimizers are made."""
    changed = False
    for call in source.optimizers():
        for model in source.trained(call) if source.imports("torch") else []:
            source.before(call, f"for module in {ast.unparse(model)}.modules():\n    {code}")
            changed = True
    return changed


@fault(
    "SymmetricUnits", "ConstantOutput", "NoBetterThanConstant", remedy=("initialise the weights at random",)
)
def all_weights_equal(source: Source) -> bool:
    """All weights start with the same value."""
    return initialise(
        source,
        "if isinstance(module, (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d)):\n"
        "        torch.nn.init.constant_(module.weight, 0.05)",
    )


@fault(
    "PoorWeightInitialization",
    "InitialLoss",
    "SaturatedActivation",
    "ExplodingTensor",
    "VanishingGradient",
    remedy=("initial", "scale"),
)
def weights_far_too_large(source: Source) -> bool:
    """Weights start with a standard deviation of 3."""
    return initialise(
        source,
        "if isinstance(module, (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d)):\n"
        "        torch.nn.init.normal_(module.weight, std=3.0)",
    )


@fault("DeadRelu", "ConstantOutput", "NoGradient", remedy=("biases", "initialis", "dead"))
def biases_far_below_zero(source: Source) -> bool:
    """Biases before ReLUs start at -10, so that almost no unit is ever active."""
    return bool(source.calls("ReLU", "relu")) and initialise(
        source,
        "if isinstance(module, (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d)) and module.bias is not None:\n"
        "        torch.nn.init.constant_(module.bias, -10.0)",
    )
