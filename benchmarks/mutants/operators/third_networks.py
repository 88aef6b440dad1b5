"""Third generation: operators on the layers of a network."""

import ast

from mutants.operators import fault
from mutants.operators.calls import forwards
from mutants.operators.second_inputs import CONVOLUTIONS
from mutants.source import Source
from mutants.tree import keyword, name_of, set_keyword

WEAK = ("Underfit", "WorseThanSimple", "NoBetterThanConstant")
WIDTHS = ("hidden", "width", "hidden_size", "hidden_dim", "hid_dim", "channels", "size")


@fault(
    *WEAK,
    "ConstantOutput",
    "DeadRelu",
    "PosteriorCollapse",
    "ModeCollapse",
    remedy=("wider", "units", "larger", "capacity", "width", "hidden"),
)
def one_unit_in_the_hidden_layers(source: Source) -> bool:
    """Hidden layers have one unit, through which all has to pass."""
    changed = False
    for function in [n for n in ast.walk(source.tree) if isinstance(n, ast.FunctionDef)]:
        named = function.args.args[len(function.args.args) - len(function.args.defaults) :]
        for argument, default in zip(named, function.args.defaults, strict=True):
            wide = isinstance(default, ast.Constant) and isinstance(default.value, int) and default.value > 8
            layers = function.name == "__init__" or "Linear" in ast.unparse(function)
            if argument.arg in WIDTHS and wide and layers:
                source.replace(default, "1")
                changed = True
    return changed


@fault(*WEAK, remedy=("kernel", "neighbour", "wider", "larger", "capacity"))
def kernels_of_one(source: Source) -> bool:
    """All kernels of convolutions have a size of 1, so that no place sees its neighbours."""
    changed = False
    for call in source.calls(*CONVOLUTIONS):
        keras = name_of(call.func).endswith("D")
        place = 1 if keras else 2
        if keyword(call, "kernel_size") is not None:
            set_keyword(call, "kernel_size", "1")
        elif len(call.args) > place:
            call.args[place] = ast.Constant(1)
        else:
            continue
        if keyword(call, "padding") is not None and not keras:
            set_keyword(call, "padding", "0")
        changed = True
    return changed


@fault(
    "NoGradient",
    "UnchangedTensor",
    "ParamNotOptimized",
    "LossNotDecreasing",
    *WEAK,
    remedy=("__init__", "forward", "used", "made", "layer", "once", "optimizer"),
)
def layer_made_in_every_forward_pass(source: Source) -> bool:
    """The last layer is made anew in each forward pass, with new random weights that nothing trains."""
    layers, changed = source.assigned_from("Linear"), False
    for function in forwards(source):
        calls = [
            n
            for n in ast.walk(function)
            if isinstance(n, ast.Call) and ast.unparse(n.func) in layers and len(n.args) == 1
        ]
        if calls:
            last = max(calls, key=lambda n: (n.lineno, -n.col_offset))
            name = ast.unparse(last.func)
            source.replace(last.func, f"torch.nn.Linear({name}.in_features, {name}.out_features)")
            changed = True
    if changed:
        source.need("import torch")
    return changed


@fault(
    "ParamNotOptimized",
    "UnchangedTensor",
    "FrozenAtInit",
    remedy=("optimizer", "after", "new parameters"),
    contract=True,
)
def last_layer_replaced_after_the_optimizer(source: Source) -> bool:
    """The last layer is replaced, as for other classes, after the optimizer got the parameters of the old one."""
    made = source.model()
    if made is None or not source.imports("torch"):
        return False
    optimizer, model = made
    if ast.unparse(optimizer.args[0]) != f"{ast.unparse(model)}.parameters()":
        return False
    if isinstance(source.statement(optimizer), ast.Return):
        return False
    source.after(
        optimizer,
        f"last = [m for m in {ast.unparse(model)}.modules() if isinstance(m, torch.nn.Linear | torch.nn.Conv2d)][-1]\n"
        "last.weight = torch.nn.Parameter(torch.randn_like(last.weight) * last.weight.std().item())",
    )
    source.need("import torch")
    return True
