"""Values that another one replaces before anybody reads them, loops that read nothing of what they go over, operands
that are the same, and updates behind a statement that leaves.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from typing import Any

from luff.torch.source._found import Found
from luff.torch.source._imports import Names, called, dotted
from luff.torch.source._statements import statements_of, without_effect

__all__ = ["losing"]

_EXTREMES = {"torch.min", "torch.max", "torch.minimum", "torch.maximum"}
_PAIRS = {
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "cross_entropy", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "nll_loss", "kl_div", "poisson_nll_loss", "pairwise_distance",
}  # fmt: skip
_LOSSES = {
    *_PAIRS,
    "cosine_embedding_loss",
    "margin_ranking_loss",
    "triplet_margin_loss",
    "gaussian_nll_loss",
} - {"pairwise_distance"}
_CALLERS = {"locals", "exec", "eval", "vars", "globals"}
_DRAWS = {
    "rand",
    "randn",
    "randint",
    "random",
    "next",
    "sample",
    "dropout",
    "choice",
    "uniform",
    "normal",
    "shuffle",
    "pop",
    "read",
    "rsample",
}
_COUNTS = {"range", "trange", "count"}
_WITH_WEIGHTS = {"linear", "conv", "sparse"}
_UPDATES = {"backward", "step"}
_MOST_UNREAD = 16
_EMPTY = ("new_", "_like")  # names of what makes a value to begin with: `new_zeros`, `zeros_like`
_WITHOUT_GRADIENT = {"no_grad", "inference_mode", "set_grad_enabled"}
_OF_EVALUATIONS = ("val", "test", "eval", "dev")


def losing(function: Any, names: Names, tree: ast.Module) -> Iterator[Found]:
    """Yields the places of a function where a value is lost."""
    yield from _overwritten(function, names, tree)
    yield from _last_alone(function, tree)
    yield from _never_read(function, names, tree)
    yield from _other_variable(function)
    yield from _same_operands(function, names)
    yield from _unreachable(function)


def _reads(node: Any, name: str) -> bool:
    return any(
        isinstance(one, ast.Name) and one.id == name and not isinstance(one.ctx, ast.Store)
        for one in ast.walk(node)
    ) or any(
        isinstance(one, ast.AugAssign) and isinstance(one.target, ast.Name) and one.target.id == name
        for one in ast.walk(node)
    )


def _writes(node: Any, name: str) -> bool:
    return any(
        isinstance(one, ast.Name) and one.id == name and isinstance(one.ctx, ast.Store | ast.Del)
        for one in ast.walk(node)
    )


def _is_private(function: Any, name: str, tree: ast.Module) -> bool:
    """Whether a name is seen by the function's own statements alone."""
    for one in ast.walk(function):
        if isinstance(one, ast.Global | ast.Nonlocal) and name in one.names:
            return False
        if isinstance(one, ast.Name) and one.id in _CALLERS:
            return False
        inner = isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef)
        if inner and one is not function and _reads(one, name):
            return False
    return not isinstance(function, ast.Module) or not any(
        isinstance(one, ast.Global) and name in one.names for one in ast.walk(tree)
    )


def _assigned(node: Any) -> str:
    """Returns the only name that a statement gives a value; "" for others."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return ""


def _overwritten(function: Any, names: Names, tree: ast.Module) -> Iterator[Found]:
    node: Any
    later: Any
    times = Counter(
        one.id for one in ast.walk(function) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    )
    for node, body, at in statements_of(function):
        name = _assigned(node)
        if times[name] < 2 or name.startswith("_") or not without_effect(node.value, names):
            continue
        for later in body[at + 1 :]:
            again = _assigned(later) == name and not _reads(later, name)
            if again:
                if (
                    ast.dump(later.value) != ast.dump(node.value)
                    and _matters(name, node.value, later.value, function, names)
                    and _is_private(function, name, tree)
                ):
                    yield Found("overwritten", node, name, str(later.lineno))
                break
            if (
                _reads(later, name)
                or _writes(later, name)
                or isinstance(later, ast.Return | ast.Raise | ast.Break | ast.Continue)
            ):
                break
            if isinstance(later, ast.If | ast.Try | ast.With | ast.For | ast.While) and _leaves(later):
                break


def _matters(name: str, first: Any, second: Any, function: Any, names: Names) -> bool:
    """Whether a value that is lost is a loss, or what a layer with weights gives; others may be left from an edit."""
    if _has_weights(first, names) and _has_weights(second, names):
        return True
    made = [dotted(one.func).rpartition(".")[2] for one in ast.walk(first) if isinstance(one, ast.Call)]
    if any(one.startswith(_EMPTY[0]) or one.endswith(_EMPTY[1]) for one in made):
        return False
    has_call = all(any(isinstance(one, ast.Call) for one in ast.walk(value)) for value in (first, second))
    return has_call and any(_is_backward_of(one, name) for one in function.body)


def _has_weights(node: Any, names: Names) -> bool:
    return any(
        layer.__module__.rpartition(".")[2] in _WITH_WEIGHTS
        for one in ast.walk(node)
        if isinstance(one, ast.Call) and (layer := names.layers.get(dotted(one.func))) is not None
    )


def _leaves(node: Any) -> bool:
    return any(isinstance(one, ast.Return | ast.Break | ast.Continue | ast.Yield) for one in ast.walk(node))


def _last_alone(function: Any, tree: ast.Module) -> Iterator[Found]:
    """A loop over terms or batches, of which each replaces the one before, and a backward pass behind it."""
    for loop, body, at in statements_of(function):
        if not isinstance(loop, ast.For) or loop.orelse:
            continue
        goals = {one for later in body[at + 1 :] for one in _differentiated(later)}
        if not goals or _leaves(loop):
            continue
        targets = {one.id for one in ast.walk(loop.target) if isinstance(one, ast.Name)}
        for node in _straight(loop.body):
            name = _assigned(node)
            if (
                name not in goals
                or name in targets
                or not any(isinstance(one, ast.Call) for one in ast.walk(node.value))
            ):
                continue
            if sum(_writes(one, name) for one in loop.body) != 1 or _reads_whole(loop.body, name):
                continue
            if not _comes_anew(node.value, loop, targets):
                continue
            for later in body[at + 1 :]:
                if _reads(later, name):
                    if name in _differentiated(later) and _is_private(function, name, tree):
                        yield Found("last_alone", node, name, "+=")
                    break
                if _writes(later, name) or _leaves(later):
                    break


def _never_read(function: Any, names: Names, tree: ast.Module) -> Iterator[Found]:
    """A loss that goes into no backward pass beside others that do, and not even into a log."""
    if not any(_is_backward(one) for one in ast.walk(function)):
        return
    node: Any
    unread = 0
    without = {
        id(inner)
        for one in ast.walk(function)
        if isinstance(one, ast.With)
        and any(called(item.context_expr).rpartition(".")[2] in _WITHOUT_GRADIENT for item in one.items)
        for inner in ast.walk(one)
    }
    for node, _, _ in statements_of(function):
        name = _assigned(node)
        if id(node) in without or any(part in name.lower() for part in _OF_EVALUATIONS):
            continue  # of an evaluation, which is no term of what is differentiated
        if not name or name.startswith("_") or not _is_loss(node.value, names) or _reads(function, name):
            continue
        if isinstance(function, ast.Module) and _reads(tree, name):
            continue
        if _is_private(function, name, tree):
            yield Found("never_read", node, name, "")
        unread += 1
        if unread == _MOST_UNREAD:
            return  # a text that something has written


def _is_backward(node: Any) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward"
    )


def _is_loss(node: Any, names: Names) -> bool:
    for one in ast.walk(node):
        if isinstance(one, ast.Call):
            full = names.meant(one.func)
            layer = names.layers.get(dotted(one.func))
            if full.rpartition(".")[0] == "torch.nn.functional" and full.rpartition(".")[2] in _LOSSES:
                return True
            if layer is not None and layer.__name__.endswith("Loss"):
                return True
    return False


def _straight(body: list[ast.stmt]) -> Iterator[Any]:
    """Yields the statements that run in each turn."""
    for node in body:
        yield node
        if isinstance(node, ast.With):
            yield from _straight(node.body)


def _reads_whole(body: list[ast.stmt], name: str) -> bool:
    """Whether a loop reads a name otherwise than as a plain number: `loss.item()`, `float(loss)`."""
    numbers: set[int] = set()
    for node in body:
        for one in ast.walk(node):
            if isinstance(one, ast.Attribute) and one.attr in ("item", "detach", "data"):
                numbers.add(id(one.value))
            elif isinstance(one, ast.Call) and called(one) == "float" and one.args:
                numbers.add(id(one.args[0]))
    return any(
        isinstance(one, ast.Name)
        and one.id == name
        and ((isinstance(one.ctx, ast.Load) and id(one) not in numbers) or isinstance(one.ctx, ast.Del))
        for node in body
        for one in ast.walk(node)
    )


def _comes_anew(value: Any, loop: ast.For, targets: set[str]) -> bool:
    """Whether a value is made of what the loop goes over, and of nothing that an earlier turn has left."""
    made: dict[str, set[str]] = {}
    for node in loop.body:
        for one in ast.walk(node):
            goals: list[Any] = []
            given: Any = None
            if isinstance(one, ast.Assign):
                goals, given = list(one.targets), one.value
            elif isinstance(one, ast.AugAssign | ast.NamedExpr | ast.AnnAssign):
                goals, given = [one.target], one.value
            elif isinstance(one, ast.For):
                goals, given = [one.target], one.iter
            names = _names_in(given) if given is not None else set()
            for goal in goals:
                for left in _names_in(goal):
                    made.setdefault(left, set()).update(
                        names | ({left} if isinstance(one, ast.AugAssign) else set())
                    )
    from_value = _closure(_names_in(value), made)
    carried = any(left in _closure(made[left], made) for left in from_value if left in made)
    return bool(from_value & targets) and not carried


def _names_in(node: Any) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _closure(names: set[str], made: dict[str, set[str]]) -> set[str]:
    found = set(names)
    waiting = list(names)
    while waiting:
        more = made.get(waiting.pop(), set()) - found
        found |= more
        waiting.extend(more)
    return found


def _is_backward_of(node: Any, name: str) -> bool:
    return any(
        isinstance(one, ast.Call)
        and isinstance(one.func, ast.Attribute)
        and one.func.attr == "backward"
        and (_reads(one.func.value, name) or any(_reads(arg, name) for arg in one.args))
        for one in ast.walk(node)
    )


def _differentiated(node: Any) -> set[str]:
    """Returns the names whose values a statement differentiates: not what it makes a loss of, as a model with a memory
    that is asked in each turn has answered last.
    """
    found: set[str] = set()
    one: Any
    for one in ast.walk(node):
        if not _is_backward(one):
            continue
        waiting = [one.func.value, *one.args]
        while waiting:
            value = waiting.pop()
            if isinstance(value, ast.Name):
                found.add(value.id)
            elif isinstance(value, ast.BinOp):
                waiting += [value.left, value.right]
            elif isinstance(value, ast.UnaryOp):
                waiting.append(value.operand)
            elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
                waiting += [value.func.value, *value.args] if len(value.args) < 2 else []
    return found


def _other_variable(function: Any) -> Iterator[Found]:
    """A loop over batches that reads neither inputs nor targets, but those of another loop."""
    outside = [node for node, _, _ in statements_of(function)]
    for loop in outside:
        if not isinstance(loop, ast.For) or called(loop.iter).rpartition(".")[2] in _COUNTS:
            continue
        target, over = loop.target, loop.iter
        while (
            isinstance(over, ast.Call)
            and called(over).rpartition(".")[2] in ("enumerate", "tqdm")
            and over.args
        ):
            if called(over).rpartition(".")[2] == "enumerate":
                if not isinstance(target, ast.Tuple) or len(target.elts) != 2:
                    break
                target = target.elts[1]
            over = over.args[0]
        if not isinstance(target, ast.Tuple) or len(target.elts) < 2:
            continue
        if not all(isinstance(one, ast.Name) and not one.id.startswith("_") for one in target.elts):
            continue
        own = [one.id for one in target.elts if isinstance(one, ast.Name)]
        if any(_reads(one, name) or _writes(one, name) for one in loop.body for name in own):
            continue
        updates = {
            one.func.attr
            for node in loop.body
            for one in ast.walk(node)
            if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute)
        }
        if not updates >= _UPDATES:
            continue
        others = [
            one.id
            for node in outside
            if node is not loop and isinstance(node, ast.For) and not _is_within(loop, node)
            for one in ast.walk(node.target)
            if isinstance(one, ast.Name)
        ]
        others += [
            one.id
            for node in outside
            if isinstance(node, ast.Assign) and called(node.value) == "next" and not _is_within(node, loop)
            for goal in node.targets
            for one in ast.walk(goal)
            if isinstance(one, ast.Name)
        ]
        read = [
            one
            for one in others
            if any(_reads(node, one) for node in loop.body)
            and not any(_writes(node, one) for node in loop.body)
        ]
        if read:
            yield Found("other_variable", loop, ", ".join(own), read[0])


def _is_within(node: Any, loop: Any) -> bool:
    return any(one is node for one in ast.walk(loop))


def _same_operands(function: Any, names: Names) -> Iterator[Found]:
    for node, _, _ in statements_of(function):
        for one in _expressions(node):
            if not isinstance(one, ast.Call) or len(one.args) < 2:
                continue
            full = names.meant(one.func)
            plain = isinstance(one.func, ast.Name) and one.func.id in ("min", "max") and len(one.args) == 2
            layer = names.layers.get(dotted(one.func))
            is_loss = layer is not None and layer.__name__.endswith("Loss")
            pair = full.rpartition(".")[0] == "torch.nn.functional" and full.rpartition(".")[2] in _PAIRS
            if not (plain or full in _EXTREMES or is_loss or pair):
                continue
            first, second = one.args[0], one.args[1]
            if isinstance(first, ast.Constant | ast.Starred) or ast.dump(first) != ast.dump(second):
                continue
            calls = [part for part in ast.walk(first) if isinstance(part, ast.Call)]
            words = {dotted(part.func).rpartition(".")[2] for part in calls}
            if (is_loss or pair) and calls and not without_effect(first, names):
                continue  # two passes of a model that draws: they are to be alike
            if not words & _DRAWS and all(part.args or part.keywords for part in calls):
                yield Found("same_operands", one, ast.unparse(first), ast.unparse(one.func))


def _expressions(node: Any) -> Iterator[Any]:
    """Yields what a statement itself evaluates; not the statements within it."""
    waiting = [one for one in ast.iter_child_nodes(node) if not isinstance(one, ast.stmt)]
    while waiting:
        one = waiting.pop()
        yield one
        waiting.extend(ast.iter_child_nodes(one))


def _unreachable(function: Any) -> Iterator[Found]:
    """Backward passes and updates that stand only behind a statement which leaves the loop or the function.

    Not where the same call stands elsewhere: what is behind the statement is then an older form that was left.
    """
    for node, body, at in statements_of(function):
        if not isinstance(node, ast.Return | ast.Break | ast.Continue):
            continue
        behind: list[Any] = [one for later in body[at + 1 :] for one in ast.walk(later) if _trains(one)]
        if not behind:
            continue
        left = {id(one) for one in behind}
        others = {_acts(one) for one in ast.walk(function) if _trains(one) and id(one) not in left}
        for one in behind:
            if _acts(one) not in others:
                yield Found("unreachable", node, ast.unparse(one.func), str(one.lineno))
                break


def _acts(call: Any) -> str:
    """Returns what a call does: a backward pass of whatever loss, or which object makes its step."""
    return "backward" if call.func.attr == "backward" else ast.unparse(call.func)


def _trains(node: Any) -> bool:
    """Whether a node calls a backward pass, an update or what clears gradients."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("backward", "step", "zero_grad")
    )
