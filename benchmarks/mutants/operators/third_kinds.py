"""Third generation: operators on two networks beside each other, on policies, codes and noise."""

import ast

from mutants.operators import fault
from mutants.operators.second_kinds import POLICY, bootstraps
from mutants.operators.third_loops import counted
from mutants.source import OPTIMIZERS, Source
from mutants.tree import base_text

LEFT = ("UnchangedTensor", "ParamNotOptimized", "Underfit", "NoBetterThanConstant", "FrozenAtInit")


def duel(source: Source) -> tuple[ast.Call, ast.Call] | None:
    """Returns the updates of two optimizers that step in one loop."""
    steps = [s for s in source.steps(*OPTIMIZERS) if not s.args]
    if len(steps) != 2 or base_text(steps[0]) == base_text(steps[1]):
        return None
    loops = [source.loops(s)[:1] for s in steps]
    return (steps[0], steps[1]) if loops[0] and loops[0] == loops[1] else None


def rename(call: ast.Call, name: str) -> None:
    """Calls the method of another object."""
    assert isinstance(call.func, ast.Attribute)
    call.func.value = ast.parse(name, mode="eval").body


@fault(
    *LEFT,
    "StepSkipped",
    "GradientNotCleared",
    "ModeCollapse",
    remedy=("step", "optimizer", "update", "clear"),
    contract=True,
)
def the_other_optimizer_steps(source: Source) -> bool:
    """After the second of two losses the first optimizer steps once more, and the second one never."""
    pair = duel(source)
    if pair is None:
        return False
    rename(pair[1], base_text(pair[0]))
    return True


@fault(
    "GradientNotCleared",
    "LossNotDecreasing",
    "ExplodingTensor",
    "ModeCollapse",
    "NoBetterThanConstant",
    remedy=("zero_grad", "clear", "zero the gradients"),
    contract=True,
)
def the_other_optimizer_clears(source: Source) -> bool:
    """Before the first of two losses the second optimizer clears its gradients, and the first one's add up."""
    pair = duel(source)
    if pair is None:
        return False
    own = base_text(pair[0])
    calls = [c for c in source.calls("zero_grad") if base_text(c) == own]
    for call in calls:
        rename(call, base_text(pair[1]))
    return bool(calls)


@fault(
    *LEFT,
    "StepSkipped",
    "AccumulationScale",
    "LossNotDecreasing",
    "ModeCollapse",
    remedy=("step", "every", "update", "more often", "ratio", "balance"),
)
def first_network_hardly_trained(source: Source) -> bool:
    """Of two networks the first is updated in every fiftieth step only: the ratio of updates is turned over."""
    pair = duel(source)
    if pair is None:
        return False
    counted(source, pair[0], 50)
    return True


# Policies ------------------------------------------------------------------------


@fault(
    "LossFormula",
    "LabelNoise",
    "TargetRange",
    "LossShapeMismatch",
    "NoBetterThanConstant",
    "WorseThanSimple",
    remedy=(*POLICY, "order", "reverse", "next", "belong"),
)
def time_runs_backwards(source: Source) -> bool:
    """What came before is taken for what follows: rewards are added up forwards, or states are stored exchanged."""
    changed = False
    for call in source.calls("reversed"):
        if "reward" in ast.unparse(call.args[0]):
            source.replace(call, ast.unparse(call.args[0]))
            changed = True
    for call in source.calls("append"):
        kept = call.args[0] if call.args else None
        if isinstance(kept, ast.Tuple) and len(kept.elts) >= 4 and base_text(call) == "memory":
            kept.elts[0], kept.elts[3] = kept.elts[3], kept.elts[0]
            changed = True
    return changed


@fault(
    "NoBetterThanConstant",
    "ConstantOutput",
    "RepeatedBatch",
    "Underfit",
    "LossNotDecreasing",
    remedy=("explor", "sample", "entropy", "epsilon", "random"),
)
def never_explores(source: Source) -> bool:
    """What is learnt from is always the best known action, never one that is drawn; no rule is for this."""
    changed = False
    for call in source.calls("sample"):
        made = call.func.value if isinstance(call.func, ast.Attribute) else None
        if isinstance(made, ast.Call) and ast.unparse(made.func).endswith("Categorical") and made.keywords:
            source.replace(call, f"({ast.unparse(made.keywords[0].value)}).argmax(-1)")
            changed = True
    for call in source.calls("max"):
        if len(call.args) == 2 and ast.unparse(call.args[0]).startswith("EPS"):
            source.replace(call, "0.0")
            changed = True
    return changed


@fault(
    "TargetRange",
    "ConstantOutput",
    "LossFormula",
    "NoBetterThanConstant",
    "Underfit",
    remedy=(*POLICY, "clip", "scale"),
)
def rewards_cut_to_their_sign(source: Source) -> bool:
    """Rewards are cut to their sign, as for games with scores of any size, where their size is all that matters."""
    found = bootstraps(source)
    for one in found:
        source.replace(one.left, "torch.sign({})")
    return bool(found)


# Noise and codes -----------------------------------------------------------------


def noises(source: Source) -> list[ast.Call]:
    """Returns the calls that draw normal noise while a model is trained, but none that makes its data."""
    if not source.imports("torch"):
        return []
    drawn = []
    for call in source.calls("randn_like", "randn"):
        whole = isinstance(source.scope(call), ast.Module)
        trained = source.loops(call) if whole else ast.unparse(call.func).endswith("_like")
        held = any(isinstance(n, ast.Subscript | ast.Lambda) for n in source.ancestors(call)[:1])
        if trained and not held and not source.without_gradient(call):
            drawn.append(call)
    return drawn


NOISE = (
    "InputScale",
    "TargetRange",
    "TrainValSkew",
    "PosteriorCollapse",
    "LabelNoise",
    "Underfit",
    "ModeCollapse",
)


@fault(*NOISE, remedy=("normal", "randn", "noise", "mean", "centre", "same steps", "distribut"))
def uniform_noise_for_normal_noise(source: Source) -> bool:
    """Noise of the training is drawn between 0 and 1 instead of from a normal distribution."""
    calls = noises(source)
    for call in calls:
        assert isinstance(call.func, ast.Attribute)
        call.func.attr = call.func.attr.replace("randn", "rand")
    return bool(calls)


@fault(
    *NOISE,
    "ExplodingTensor",
    "LossNotDecreasing",
    remedy=("noise", "scale", "smaller", "standardise", "deviation"),
)
def noise_ten_times_too_strong(source: Source) -> bool:
    """Noise of the training is ten times as strong as meant."""
    calls = noises(source)
    for call in calls:
        source.replace(call, "(10.0 * {})")
    return bool(calls)


@fault(
    "LossFormula",
    "PosteriorCollapse",
    "InputScale",
    "TargetRange",
    "SampleMixing",
    "Underfit",
    "WorseThanSimple",
    remedy=("root", "deviation", "variance", "sqrt", "scale", "normalis", "formula"),
)
def square_roots_left_out(source: Source) -> bool:
    """A variance, or a degree, stands where its square root belongs."""
    changed = False
    for call in source.calls("exp"):
        inner = call.args[0] if call.args else None
        if isinstance(inner, ast.BinOp) and ast.unparse(inner.left) == "0.5" and "var" in ast.unparse(inner):
            source.replace(inner, ast.unparse(inner.right))
            changed = True
    for call in source.calls("rsqrt"):
        assert isinstance(call.func, ast.Attribute)
        call.func.attr = "reciprocal"
        changed = True
    for call in source.calls("sqrt"):
        scope = source.scope(call)
        if call.args or isinstance(scope, ast.Module) or "no_grad" in ast.unparse(scope):
            continue
        source.remove_call(call)
        changed = True
    return changed
