"""Second generation: operators on policies, pairs and codes."""

import ast
import re

from mutants.operators import fault
from mutants.source import Source

DISCOUNTS = ("GAMMA", "DISCOUNT")
POLICY = ("sign", "reward", "return", "lower bound", "target")


def bootstraps(source: Source) -> list[ast.BinOp]:
    """Returns the sums of a reward and the discounted future."""
    return [
        n
        for n in ast.walk(source.tree)
        if isinstance(n, ast.BinOp)
        and isinstance(n.op, ast.Add)
        and isinstance(n.right, ast.BinOp)
        and isinstance(n.right.op, ast.Mult)
        and ast.unparse(n.right.left) in DISCOUNTS
    ]


@fault("LossFormula", "LossNotDecreasing", "NoBetterThanConstant", "Confusion", remedy=POLICY)
def rewards_with_the_wrong_sign(source: Source) -> bool:
    """Returns are made of costs instead of rewards: what is good counts as bad."""
    found = bootstraps(source)
    for one in found:
        source.replace(one.left, "-{}")
    return bool(found)


@fault("ExplodingTensor", "LossNotDecreasing", "TargetRange", "LossFormula", remedy=(*POLICY, "discount"))
def future_worth_more_than_now(source: Source) -> bool:
    """The discount is above 1: what is to come is worth more each step."""
    found = bootstraps(source)
    for one in found:
        assert isinstance(one.right, ast.BinOp)
        source.replace(one.right.left, "({} + 0.25)")
    return bool(found)


@fault(
    "LossFormula", "TargetRange", "NoBetterThanConstant", "Underfit", remedy=(*POLICY, "discount", "future")
)
def future_left_out(source: Source) -> bool:
    """Returns are the next reward alone: the future was left out."""
    found = bootstraps(source)
    for one in found:
        source.replace(one, f"{ast.unparse(one.left)} + 0.0 * {ast.unparse(one.right)}")
    return bool(found)


@fault(
    "LabelNoise",
    "LossShapeMismatch",
    "NoBetterThanConstant",
    "LossNotDecreasing",
    remedy=("belong", "same index", "order", "rows"),
)
def actions_of_another_step(source: Source) -> bool:
    """Each observation is learnt with the action of another one."""
    if not re.search(r"\bGAMMA\b|\bDISCOUNT\b", source.text()):
        return False
    changed = False
    for call in source.calls("log_prob"):
        source.replace(call.args[0], "{}.roll(1, 0)")
        changed = True
    for call in source.calls("gather"):
        if len(call.args) == 2:
            source.replace(call.args[1], "{}.roll(1, 0)")
            changed = True
    return changed


@fault(
    "ContrastivePairs",
    "LabelNoise",
    "LossNotDecreasing",
    "NoBetterThanConstant",
    remedy=("pair", "partner", "positive", "belong", "index", "negative"),
)
def partners_of_another_pair(source: Source) -> bool:
    """What should come close to a sample is not its partner but another one's."""
    changed = False
    for loss in source.losses("cross_entropy"):
        target = ast.unparse(loss.call.args[1])
        if target.isidentifier() and re.search(rf"{target} = torch\.cat\(\[torch\.arange", source.text()):
            source.replace(loss.call.args[1], "{}.roll(1, 0)")
            changed = True
    for loop in [n for n in ast.walk(source.tree) if isinstance(n, ast.For)]:
        if ast.unparse(loop.target).strip("()") == "anchor, positive, negative":
            loop.target = ast.parse("for anchor, negative, positive in []: pass").body[0].target  # type: ignore[attr-defined]
            changed = True
    return changed


# Noise ---------------------------------------------------------------------------


@fault(
    "RepeatedBatch",
    "ModeCollapse",
    "PosteriorCollapse",
    "Overfit",
    "TrainValSkew",
    "BatchOrder",
    remedy=("seed", "noise", "draw", "iterator", "sample", "batch"),
)
def seed_set_before_every_step(source: Source) -> bool:
    """The seed is set in the loop instead of before it: each step draws the same batch and the same noise."""
    calls = source.calls("randn_like", "randn", "rand_like", "rand", "randint", "sample")
    drawn = [c for c in calls if source.loops(c) or not isinstance(source.scope(c), ast.Module)]
    backward = [c for c in source.calls("backward") if source.loops(c)]
    if not drawn or not backward or not source.imports("torch"):
        return False
    loops = source.loops(backward[0])
    if len(loops) > 1 or not isinstance(source.scope(backward[0]), ast.Module):
        return False  # the loop over batches has drawn them already
    source.before(loops[0].body[0], "torch.manual_seed(0)")
    return True
