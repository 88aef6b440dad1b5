"""Fourth generation: operators on what a network does with its input."""

import ast
import re

from mutants.operators import fault
from mutants.operators.calls import forwards
from mutants.operators.second_inputs import numbers
from mutants.source import Source
from mutants.tree import base_text, keyword, set_keyword

WEAK = ("Underfit", "NoBetterThanConstant", "WorseThanSimple")
UNUSED = ("NoGradient", "UnchangedTensor", "ParamNotOptimized", "FrozenAtInit")


@fault(*UNUSED, "VanishingGradient", *WEAK, remedy=("block", "output", "input", "loop", "used", "forward"))
def each_block_gets_the_first_input(source: Source) -> bool:
    """Each of a list of blocks gets what the first one got, so that only the last one's output is used."""
    changed = False
    for function in forwards(source):
        for loop in [n for n in ast.walk(function) if isinstance(n, ast.For)]:
            first = loop.body[0]
            if not isinstance(first, ast.Assign) or not isinstance(first.value, ast.Call):
                continue
            call = first.value
            if ast.unparse(call.func) == ast.unparse(loop.target) and len(call.args) == 1:
                given = ast.unparse(call.args[0])
                if given in [n.id for n in ast.walk(first.targets[0]) if isinstance(n, ast.Name)]:
                    source.replace(call.args[0], "start")
                    source.before(loop, f"start = {given}")
                    changed = True
    return changed


@fault(*UNUSED, "RunningStatistics", *WEAK, remedy=("parameter", "optimizer", "register", "tensor"))
def parameter_as_a_plain_tensor(source: Source) -> bool:
    """A weight of the script's own layer is a tensor and no `Parameter`, and stays as it was drawn."""
    changed = False
    for own in [n for n in ast.walk(source.tree) if isinstance(n, ast.ClassDef)]:
        for statement in [n for n in ast.walk(own) if isinstance(n, ast.Assign)]:
            value = statement.value
            if isinstance(value, ast.Call) and ast.unparse(value.func).endswith("nn.Parameter"):
                source.replace(value, ast.unparse(value.args[0]))
                changed = True
                break  # the first of a layer
    return changed


@fault(*UNUSED, *WEAK, remedy=(".data", "detach", "gradient", "parameter", "layer"))
def last_layer_through_its_data(source: Source) -> bool:
    """The last layer is applied by way of its weights' `.data`, which has no gradient."""
    layers, changed = source.assigned_from("Linear"), False
    for function in forwards(source):
        calls = [
            n
            for n in ast.walk(function)
            if isinstance(n, ast.Call) and ast.unparse(n.func) in layers and len(n.args) == 1
        ]
        if calls:
            last = max(calls, key=lambda n: (n.lineno, -n.col_offset))
            name, given = ast.unparse(last.func), ast.unparse(last.args[0])
            weights = f"{name}.weight.data, getattr({name}.bias, 'data', None)"
            source.replace(last, f"torch.nn.functional.linear({given}, {weights})")
            changed = True
    if changed:
        source.need("import torch")
    return changed


@fault(
    "AttentionCollapse",
    "CausalLeak",
    "SampleMixing",
    "NLPSequenceRatio",
    *WEAK,
    remedy=("mask", "neighbour", "adjacency", "attention", "itself", "sees"),
)
def each_sees_only_itself(source: Source) -> bool:
    """The mask of an attention, or the matrix of a graph, is the identity, so that no token or node sees another."""
    if not source.imports("torch"):
        return False
    changed = False
    for call in source.calls("scaled_dot_product_attention"):
        call.keywords = [k for k in call.keywords if k.arg not in ("is_causal", "attn_mask")]
        query = ast.unparse(call.args[0])
        set_keyword(call, "attn_mask", f"torch.eye({query}.shape[-2], dtype=torch.bool)")
        changed = True
    encoders = source.assigned_from("TransformerEncoder")
    for call in [n for n in ast.walk(source.tree) if isinstance(n, ast.Call)]:
        if ast.unparse(call.func) in encoders and call.args:
            call.keywords = [k for k in call.keywords if k.arg != "src_key_padding_mask"]
            source.replace(call.args[0], "(seen := {})")
            set_keyword(call, "mask", "~torch.eye(seen.shape[1], dtype=torch.bool)")
            changed = True
    for node in [n for n in ast.walk(source.tree) if isinstance(n, ast.BinOp)]:
        if isinstance(node.op, ast.Add) and ast.unparse(node.left).startswith("adj"):
            if ast.unparse(node.right).startswith("torch.eye("):
                source.replace(node.left, "0.0 * {}")
                changed = True
    return changed


@fault(
    "ImageLayout",
    "SampleMixing",
    "CausalLeak",
    "AttentionCollapse",
    *WEAK,
    remedy=("transpose", "permute", "reshape", "axes", "view", "layout"),
)
def axes_reshaped_within_the_network(source: Source) -> bool:
    """Between layers `reshape` gives the shape that a transposition would, and scatters the values."""
    calls = [
        c
        for c in source.calls("transpose", "swapaxes")
        if [ast.unparse(a) for a in c.args] in (["1", "2"], ["2", "1"]) and base_text(c)
        if isinstance(source.scope(c), ast.FunctionDef) and source.imports("torch")
    ]
    calls = [c for c in calls if any(isinstance(n, ast.ClassDef) for n in source.ancestors(c))]
    for number, call in reversed(list(enumerate(calls))):  # inner ones first
        base = base_text(call)
        source.replace(call, f"(own{number} := {base}).reshape(own{number}.transpose(1, 2).shape)")
    return bool(calls)


@fault(
    "InputScale",
    "ExplodingTensor",
    "LossFormula",
    "LossNotDecreasing",
    "SaturatedActivation",
    "InitialLoss",
    *WEAK,
    remedy=("mean", "average", "normalis", "divide", "scale", "degree"),
)
def added_up_instead_of_averaged(source: Source) -> bool:
    """What comes of a node's neighbours, or of all places, is added up in the network instead of averaged."""
    changed = False
    for function in forwards(source):
        for call in [n for n in ast.walk(function) if isinstance(n, ast.Call)]:
            if isinstance(call.func, ast.Attribute) and call.func.attr == "mean" and len(call.args) == 1:
                call.func.attr = "sum"
                changed = True
        for node in [n for n in ast.walk(function) if isinstance(n, ast.BinOp)]:
            if isinstance(node.op, ast.Div) and ".sum(1)" in ast.unparse(node.left):
                source.replace(node, ast.unparse(node.left))
                changed = True
    for node in [n for n in ast.walk(source.tree) if isinstance(n, ast.BinOp)]:
        if re.fullmatch(r"degree\[:, None\] \* \w+ \* degree\[None, :\]", ast.unparse(node)):
            source.replace(node, ast.unparse(node).split(" * ")[1])
            changed = True
    return changed


@fault(
    "SampleMixing",
    "LabelNoise",
    "DeadEmbeddingRows",
    "ModeMismatch",
    "PosteriorCollapse",
    "Overfit",
    *WEAK,
    remedy=("input", "random", "forward", "used", "belong", "noise"),
)
def dummy_input_left_in(source: Source) -> bool:
    """A random tensor of the input's shape, with which the shapes were tried, is still what the network works on."""
    own = [f for f in forwards(source) if len(f.args.args) == 2 and not f.args.vararg]
    if not own or not numbers(source) or not source.imports("torch"):
        return False
    function = max(own, key=lambda f: f.lineno)
    name = function.args.args[1].arg
    source.before(function.body[0], f"{name} = torch.randn_like({name})")
    source.need("import torch")
    return True


@fault(
    "HighDropout",
    "SampleMixing",
    "ModeMismatch",
    "LabelNoise",
    *WEAK,
    remedy=("dropout", "dropout1d", "dropped", "rows", "p ="),
)
def dropout_of_whole_rows(source: Source) -> bool:
    """`Dropout1d` drops whole rows, since what it gets are vectors without channels, and p is 0.9."""
    made = source.calls("Dropout") if source.imports("torch") else []
    for call in made:
        if isinstance(call.func, ast.Attribute) and keyword(call, "inplace") is None:
            call.func.attr = "Dropout1d"
            call.args, call.keywords = [ast.Constant(0.9)], []
    return bool(made)
