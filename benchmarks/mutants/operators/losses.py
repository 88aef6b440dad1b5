"""Operators that give a loss wrong inputs, or make its formula wrong."""

import ast

from mutants.operators import fault
from mutants.source import Source
from mutants.tree import keyword, name_of

REGRESSION = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")


def change_outputs(source: Source, code: str, *kinds: str) -> bool:
    """Edits the outputs passed to losses of some kinds; ``{}`` in `code` stands for the output."""
    found = source.losses(*kinds)
    for loss in found:
        source.replace(loss.call.args[0], code)
    return bool(found) and source.imports("torch")


@fault("LossInputContract", remedy=("softmax",), contract=True)
def softmax_before_cross_entropy(source: Source) -> bool:
    """Cross entropy, which applies a softmax itself, gets probabilities."""
    return change_outputs(source, "torch.softmax({}, dim=1)", "cross_entropy")


@fault("LossInputContract", remedy=("sigmoid",), contract=True)
def sigmoid_before_loss_of_logits(source: Source) -> bool:
    """Binary cross entropy of logits, which applies a sigmoid itself, gets probabilities."""
    return change_outputs(source, "torch.sigmoid({})", "binary_cross_entropy_with_logits")


@fault("LossInputContract", remedy=("activation",))
def scores_through_a_relu(source: Source) -> bool:
    """A ReLU behind the last layer cuts off all scores below zero."""
    return change_outputs(source, "torch.relu({})", "cross_entropy", "binary_cross_entropy_with_logits")


def with_class_ids(source: Source, code: str) -> bool:
    """Replaces plain cross entropies of class ids by another loss."""
    found = [loss for loss in source.losses("cross_entropy") if loss.plain]
    if source.calls("one_hot", "Beta", "beta") or not source.imports("torch"):
        return False  # targets are soft
    for loss in found:
        output, target = (ast.unparse(a) for a in loss.call.args)
        source.replace(loss.call, code.format(output=output, target=target))
    return bool(found)


@fault("LossInputContract", "SampleMixing", remedy=("dim=",), contract=True)
def log_softmax_over_samples(source: Source) -> bool:
    """The log-softmax before the loss runs over the samples of the batch."""
    return with_class_ids(
        source, "torch.nn.functional.nll_loss(torch.log_softmax({output}, dim=0), {target})"
    )


@fault(
    "LossInputContract",
    "ExplodingTensor",
    remedy=("log_softmax", "log-softmax", "cross_entropy"),
    contract=True,
)
def logits_into_nll(source: Source) -> bool:
    """The negative log-likelihood gets raw scores."""
    return with_class_ids(source, "torch.nn.functional.nll_loss({output}, {target})")


@fault("LossInputContract", remedy=("log",), contract=True)
def probabilities_into_nll(source: Source) -> bool:
    """The negative log-likelihood gets probabilities without their logarithm."""
    return with_class_ids(source, "torch.nn.functional.nll_loss(torch.softmax({output}, dim=1), {target})")


@fault("LossInputContract", remedy=("remove one",))
def softmax_before_log_softmax(source: Source) -> bool:
    """The model's answers have gone through a softmax before the log-softmax of the loss."""
    return with_class_ids(
        source,
        "torch.nn.functional.nll_loss(torch.log_softmax(torch.softmax({output}, dim=1), dim=1), {target})",
    )


@fault("LossInputContract", remedy=("log_softmax",), contract=True)
def probabilities_into_ctc(source: Source) -> bool:
    """CTC loss gets probabilities without their logarithm."""
    calls = source.calls("ctc_loss")
    for call in calls:
        source.replace(call.args[0], "{}.exp()")
    return bool(calls)


@fault("LossInputContract", remedy=("without padding",), contract=True)
def padding_counts_in_ctc(source: Source) -> bool:
    """The lengths that CTC loss gets count the padding of its targets, which is the blank."""
    calls = [call for call in source.calls("ctc_loss") if len(call.args) > 3]
    for call in calls:
        targets = ast.unparse(call.args[1])
        source.replace(call.args[3], f"torch.full_like({{}}, {targets}.shape[1])")
    return bool(calls)


def squeezed(node: ast.expr) -> ast.expr | None:
    """Returns `x` for `x.squeeze(-1)`, `x.flatten()`, `x.view(-1)` and `x[:, 0]`; else None."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name, given = node.func.attr, [ast.unparse(a) for a in node.args]
        if (name == "squeeze" and given in ([], ["1"], ["-1"])) or (name == "flatten" and not given):
            return node.func.value
        if name in ("view", "reshape") and given == ["-1"]:
            return node.func.value
    if isinstance(node, ast.Subscript) and ast.unparse(node.slice) in ("(:, 0)", ":, 0"):
        return node.value
    return None


@fault("LossShapeMismatch", remedy=("squeeze", "one shape"), contract=True)
def column_against_row(source: Source) -> bool:
    """The loss broadcasts outputs of shape (N, 1) with targets of shape (N,), and so compares each with all."""
    for loss in source.losses(*REGRESSION):
        output = loss.call.args[0]
        if (inner := squeezed(output)) is not None:
            source.replace(output, ast.unparse(inner))
            return True
        for n in ast.walk(source.scope(loss.call)):
            if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == ast.unparse(output):
                if (inner := squeezed(n.value)) is not None:
                    source.replace(loss.call.args[0], "{}.unsqueeze(-1)")
                    return True
    for function in ast.walk(source.tree):
        if (
            isinstance(function, ast.FunctionDef)
            and function.name == "forward"
            and source.losses(*REGRESSION)
        ):
            for n in ast.walk(function):
                if (
                    isinstance(n, ast.Return)
                    and n.value is not None
                    and (inner := squeezed(n.value)) is not None
                ):
                    source.replace(n.value, ast.unparse(inner))
                    return True
    return False


@fault("TargetRange", remedy=("last activation", "scale the targets"))
def regression_ends_in_a_sigmoid(source: Source) -> bool:
    """A sigmoid limits the outputs of a regression to between 0 and 1, although most targets lie outside."""
    return change_outputs(source, "torch.sigmoid({})", *REGRESSION)


# A separate rule for a gradient through the target is planned (TargetGradient).
@fault("LossFormula", "TargetGradient", "LossNotDecreasing", remedy=("detach", "no_grad"))
def gradient_through_the_target(source: Source) -> bool:
    """The target of the loss is part of the graph, so that training moves it too."""
    targets = [loss.call.args[1] for loss in source.losses("cross_entropy", "kl_div", *REGRESSION)]
    for target in targets:
        for call in (n for n in ast.walk(target) if isinstance(n, ast.Call) and name_of(n.func) == "detach"):
            source.remove_call(call)
            return True
    names = {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    for block in (n for n in ast.walk(source.tree) if isinstance(n, ast.With)):
        if "no_grad" not in ast.unparse(block.items[0]) or any(
            w in ast.unparse(block) for w in ("item()", "numpy()")
        ):
            continue
        stored = {n.id for n in ast.walk(block) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        if names & stored:
            source.unwrap(block)
            return True
    return False


@fault(
    "LossInputContract",
    "NonFinite",
    "TargetRange",
    remedy=("log", "probabilities", "log_target"),
    contract=True,
)
def divergence_arguments_exchanged(source: Source) -> bool:
    """The Kullback-Leibler divergence gets probabilities instead of log-probabilities, and vice versa."""
    found = [loss for loss in source.losses("kl_div") if not keyword(loss.maker, "log_target")]
    for loss in found:
        first, second = loss.call.args[:2]
        loss.call.args[:2] = [second, first]
    return bool(found)


@fault("ExplodingTensor", "LossNotDecreasing", "NonFinite", remedy=("lower bound", "sign", "minimised"))
def divergence_with_the_wrong_sign(source: Source) -> bool:
    """The divergence from the standard normal distribution has the wrong sign and is maximised."""
    for n in ast.walk(source.tree):
        if (
            not isinstance(n, ast.BinOp)
            or not isinstance(n.op, ast.Mult)
            or "exp(" not in ast.unparse(n.right)
        ):
            continue
        if (
            ast.unparse(n.left) in ("-0.5", "0.5")
            and "log" in ast.unparse(n.right)
            and "+" in ast.unparse(n.right)
        ):
            source.replace(n.left, "-{}")
            return True
    for loss in source.losses("kl_div"):
        source.replace(loss.call, "-{}")
        return True
    return False


@fault("NoGradient", remedy=("factor of zero", "backward", "detach", "learning rate"), contract=True)
def loss_times_zero(source: Source) -> bool:
    """The loss is multiplied by 0."""
    found = source.objectives()
    for objective in found:
        source.replace(objective, "({} * 0.0)")
    return bool(found)


@fault("WeightUpdateRatio", "Underfit", remedy=("learning rate", "scale"))
def loss_scaled_to_nothing(source: Source) -> bool:
    """The loss is divided by a million."""
    found = source.objectives()
    for objective in found:
        source.replace(objective, "({} / 1e6)")
    return bool(found)


@fault(
    "ExplodingTensor",
    "LossNotDecreasing",
    "NonFinite",
    "LossSpike",
    remedy=("lower bound", "minimised", "sign"),
)
def loss_maximised(source: Source) -> bool:
    """The loss has the wrong sign: training makes it larger."""
    found = source.objectives()
    for objective in found:
        source.replace(objective, "(-{})")
    return bool(found)


# These are the nearest rules: the model does not learn what the other terms require.
@fault(
    "RegularizationDominates", "PosteriorCollapse", "ConstantOutput", "Underfit", remedy=("weight", "penalty")
)
def last_term_outweighs_the_others(source: Source) -> bool:
    """The last term of a sum of losses is ten thousand times too large."""
    term = source.last_term()
    if term is None:
        return False
    source.replace(term, "10000.0 * {}")
    return True


@fault("LabelNoise", "NoBetterThanConstant", remedy=("draw the noise once",))
def noise_drawn_anew_for_the_target(source: Source) -> bool:
    """The noise that a denoiser is to tell is drawn a second time, so that its input does not hold it."""
    drawn = source.assigned_from("randn_like", "randn")
    changed = False
    for loss in source.losses("mse_loss"):
        if ast.unparse(loss.call.args[1]) in drawn:
            loss.call.args[1] = ast.parse(
                f"torch.randn_like({ast.unparse(loss.call.args[1])})", mode="eval"
            ).body
            changed = True
    return changed


@fault("LossFormula", remedy=("minus",))
def overlap_is_added(source: Source) -> bool:
    """A loss of overlap returns the overlap itself, without `1 -` before it."""
    changed = False
    for function in ast.walk(source.tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        if not any(word in function.name.lower() for word in ("dice", "iou", "overlap", "jaccard")):
            continue
        for node in ast.walk(function):
            if not isinstance(node, ast.Return) or not isinstance(node.value, ast.BinOp):
                continue
            if isinstance(node.value.op, ast.Sub) and ast.unparse(node.value.left) == "1":
                node.value = node.value.right
                changed = True
    return changed


@fault("LossInputContract", remedy=("swap them",), contract=True)
def labels_first(source: Source) -> bool:
    """A binary cross entropy gets the labels first and the outputs second."""
    kinds = ("binary_cross_entropy", "binary_cross_entropy_with_logits")
    found = [loss for loss in source.losses(*kinds) if len(loss.call.args) > 1]
    for loss in found:
        loss.call.args[:2] = loss.call.args[1::-1]
    return bool(found)


@fault("LossInputContract", "Underfit", remedy=("temperature",))
def multiplies_by_the_temperature(source: Source) -> bool:
    """Likenesses are multiplied by the temperature that should divide them."""
    found = [
        node
        for node in ast.walk(source.tree)
        if isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Div)
        and isinstance(node.right, ast.Name)
        and node.right.id in ("temperature", "tau")
    ]
    for node in found:
        node.op = ast.Mult()
    return bool(found)
