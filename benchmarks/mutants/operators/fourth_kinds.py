"""Fourth generation: operators on recurrent layers, on policies and on noise."""

import ast

from mutants.operators import fault
from mutants.operators.second_kinds import POLICY, bootstraps
from mutants.operators.third_kinds import NOISE, noises
from mutants.source import Source
from mutants.tree import base_text, keyword

WEAK = ("Underfit", "NoBetterThanConstant", "WorseThanSimple")
RECURRENT = ("GRU", "LSTM")


@fault(*WEAK, "SampleMixing", "ModeMismatch", remedy=("state", "hidden", "zero", "initial", "random"))
def recurrence_starts_at_random(source: Source) -> bool:
    """A recurrent layer starts each pass from states that are drawn anew, in evaluations too; no rule is for it."""
    if not source.imports("torch"):
        return False
    changed = False
    for kind in RECURRENT:
        names = source.assigned_from(kind)
        twice = {ast.unparse(source.statement(c)): keyword(c, "bidirectional") for c in source.calls(kind)}
        for call in [n for n in ast.walk(source.tree) if isinstance(n, ast.Call)]:
            name = ast.unparse(call.func)
            if name not in names or len(call.args) != 1:
                continue
            both = any(t.startswith(name) and flag is not None for t, flag in twice.items())
            size = "int(given.batch_sizes[0])" if "pack" in ast.unparse(call.args[0]) else "len(given)"
            drawn = f"3 * torch.randn({2 if both else 1}, {size}, {name}.hidden_size)"
            source.replace(call.args[0], "(given := {})")
            state = drawn if kind == "GRU" else f"({drawn}, {drawn})"
            call.args.append(ast.parse(state, mode="eval").body)
            changed = True
    return changed


REMEMBERS = """
class Remembering{kind}(torch.nn.{kind}):
    kept = None

    def forward(self, x, hx=None):
        size = len(x) if isinstance(x, torch.Tensor) else int(x.batch_sizes[0])
        if hx is None and self.kept is not None and self.kept[0].shape[-2] == size:
            hx = self.kept
        out, last = super().forward(x, hx)
        self.kept = tuple(h.detach() for h in last) if isinstance(last, tuple) else last.detach()
        return out, last
"""


@fault(
    "SampleMixing", "BatchOrder", "TrainValSkew", *WEAK, remedy=("state", "hidden", "reset", "zero", "batch")
)
def state_kept_between_batches(source: Source) -> bool:
    """A recurrent layer starts each batch from the states of the one before, which held other rows."""
    made = source.calls(*RECURRENT) if source.imports("torch") else []
    kinds = {ast.unparse(c.func).rpartition(".")[2] for c in made}
    if not made:
        return False
    for call in made:
        source.replace(call.func, f"Remembering{ast.unparse(call.func).rpartition('.')[2]}")
    first = next(
        s
        for s in source.tree.body
        if not isinstance(s, ast.Import | ast.ImportFrom)
        and not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
    )
    for kind in sorted(kinds):
        source.before(first, REMEMBERS.format(kind=kind))
    source.need("import torch")
    return True


# Policies ------------------------------------------------------------------------


@fault(
    "LossFormula",
    "LabelNoise",
    "LossShapeMismatch",
    "NoBetterThanConstant",
    "Underfit",
    remedy=(*POLICY, "order", "step", "index", "belong", "shift"),
)
def returns_begin_a_step_late(source: Source) -> bool:
    """What an action is told to have earned leaves out its own reward, or is another's: returns are off by one."""
    found = bootstraps(source)
    for one in found:
        statement = source.statement(one)
        above = source.ancestors(statement)[0]
        body = getattr(above, "body", [])
        place = next((i for i, s in enumerate(body) if s is statement), None)
        kept = ast.unparse(body[place + 1]) if place is not None and place + 1 < len(body) else ""
        if (isinstance(statement, ast.Assign) and ".append(" in kept) or ".insert(" in kept:
            assert place is not None
            body[place], body[place + 1] = body[place + 1], body[place]
        else:
            source.replace(one.left, "({}).roll(1, 0)")
    return bool(found)


@fault(
    "NoBetterThanConstant",
    "Underfit",
    "LabelNoise",
    "LossNotDecreasing",
    "ConstantOutput",
    remedy=("epsilon", "explor", "sample", "policy", "random", "decay"),
)
def acts_at_random_all_along(source: Source) -> bool:
    """Actions are drawn at random from the first to the last update, whatever the policy says; no rule is for this."""
    changed = False
    for call in source.calls("sample"):
        made = call.func.value if isinstance(call.func, ast.Attribute) else None
        if isinstance(made, ast.Call) and ast.unparse(made.func).endswith("Categorical") and made.keywords:
            source.replace(made.keywords[0].value, "torch.zeros_like({})")
            changed = True
    for call in source.calls("max"):
        if len(call.args) == 2 and ast.unparse(call.args[0]).startswith("EPS"):
            source.replace(call, "1.0")
            changed = True
    return changed


@fault(
    "LabelNoise",
    "LossShapeMismatch",
    "NoBetterThanConstant",
    "TrainValSkew",
    "Underfit",
    "DataLeak",
    remedy=("belong", "state", "observation", "copy", "order", "before", "same index", "rows"),
)
def state_after_the_action_is_stored(source: Source) -> bool:
    """An action is stored with the state that it led to instead of the one in which it was chosen."""
    changed = False
    for call in source.calls("step"):
        loops, base = source.loops(call), base_text(call)
        if base in ("env", "grid") and loops and "observations.append(" in ast.unparse(loops[0]):
            own = source.statement(call)
            after = f"{base}.observe()"
            if isinstance(own, ast.Assign) and isinstance(own.targets[0], ast.Tuple):
                after = ast.unparse(own.targets[0].elts[0])
            source.after(own, f"observations[-1] = {after}")
            changed = True
    for call in source.calls("append"):
        kept = call.args[0] if call.args else None
        if isinstance(kept, ast.Tuple) and len(kept.elts) >= 4 and base_text(call) == "memory":
            kept.elts[0] = kept.elts[3]
            changed = True
    return changed


# Noise ---------------------------------------------------------------------------

ALIKE = ("RepeatedBatch", "SampleMixing", "Overfit", *NOISE)


@fault(*ALIKE, remedy=("seed", "noise", "draw", "generator", "random", "same"))
def noise_from_a_seed_of_its_own(source: Source) -> bool:
    """The generator of the training's noise is made and seeded in each pass, so that the noise is always the same."""
    calls = noises(source)
    for call in calls:
        assert isinstance(call.func, ast.Attribute)
        shape = f"{ast.unparse(call.args[0])}.shape" if call.func.attr == "randn_like" else ""
        shape = shape or ", ".join(ast.unparse(a) for a in call.args)
        source.replace(call, f"torch.randn({shape}, generator=torch.Generator().manual_seed(0))")
    return bool(calls)


@fault(*ALIKE, remedy=("each", "row", "noise", "shape", "draw", "broadcast"))
def one_noise_for_the_whole_batch(source: Source) -> bool:
    """The training's noise is drawn for one row and spread over the batch, all of whose rows get the same."""
    calls = noises(source)
    for call in calls:
        assert isinstance(call.func, ast.Attribute)
        if call.func.attr == "randn_like":
            like = ast.unparse(call.args[0])
            source.replace(call, f"torch.randn_like({like}[:1]).expand_as({like})")
        else:
            shape = [ast.unparse(a) for a in call.args]
            source.replace(call, f"torch.randn({', '.join(['1', *shape[1:]])}).expand({', '.join(shape)})")
    return bool(calls)
