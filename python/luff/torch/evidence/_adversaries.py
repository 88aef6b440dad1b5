"""Finds generators that are trained the way their critic is: both make its score of what is made smaller, or larger.

A critic is a model that two batches are given for an update, what another model has made and something else, and whose
scores of the two are drawn apart. The signs of the gradients at its scores, or the target of squared errors that they
show, are facts of the losses, whatever their formula is. Looked at in the first steps of trainings with several
optimizers; values are read as memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch

from luff._codes import Mode
from luff.torch.capture._graphs import operation_of
from luff.torch.capture._memory import Array, array_of, gradient_of
from luff.torch.capture._modules import tensors_in
from luff.torch.capture._names import Names
from luff.torch.evidence._accumulated import Accumulated
from luff.torch.evidence._events import WaitingEvents
from luff.torch.evidence._loss_terms import MOVES
from luff.torch.evidence._step import StepContext

__all__ = ["Adversaries", "looking"]

_TRAIN = int(Mode.TRAIN)
_ROUNDS = 6  # updates of a generator that show it
_IDLE = 64  # TRAIN steps without a critic after which nobody looks, until models or optimizers are others
_STEPS = 512  # that are looked at where there is one
_TENSORS = 4  # of a model's arguments, and of its result
_MADE = 8  # results that are remembered
_CALLS = 32  # of models between two updates
_NUMBERS = 64  # of the first samples that tell what a model has made
_DISTINCT = 8  # of them, at least
_REGION = 1 << 18  # numbers of the first samples that are looked through
_NODES = 4096  # between a score and what it judges
_SCORES = 1024  # numbers of a score
_FEWEST = 4  # of them that show a straight line
_STRAIGHT = 1e-6  # of the largest gradient, off that line: rounding of float32
_SPREAD = 0.02  # of scores
_SAME_TARGET = 1e-2
_SHOWS = 1e-3  # of scores that are apart: what their gradients follow is seen
_ALIKE = 1e-4  # rounding of float32, of gradients over what they follow
_PARAMETERS = 4096  # of a model that are looked at
_MOVED = 16  # nodes between what a model has made and what is judged
_HANDS_ON = MOVES | {"Cat", "Stack", "Permute", "Transpose", "ConstantPadNd"}


class _Looking:
    """Which hooks' `Adversaries` calls of models are told to; who tells them sets `changed`."""

    def __init__(self) -> None:
        self.changed: Callable[[bool], object] = bool
        self._who: weakref.WeakSet[Adversaries] = weakref.WeakSet()

    @property
    def on(self) -> bool:
        return bool(self._who)

    def begin(self, who: Adversaries) -> None:
        self._who.add(who)
        self.changed(self.on)

    def end(self, who: Adversaries) -> None:
        self._who.discard(who)
        self.changed(self.on)


looking = _Looking()


class _Pull(NamedTuple):
    """Which way gradients draw scores.

    Attributes
    ----------
    sign
        Of all gradients; 0: there are both.
    target
        The number that squared errors draw scores to; None for other losses.
    steady
        The loss is known to fall that way from any score: its gradients are all the same, or those of a logarithm.
        Other losses may draw scores to a number in between, which all of them lie above at first.
    """

    sign: int
    target: float | None
    steady: bool = False

    @property
    def unknown(self) -> bool:
        return self.sign == 0 and self.target is None

    def with_(self, other: _Pull) -> _Pull:
        """Returns what both have in common."""
        same = self.target is not None and other.target is not None and _are_close(self.target, other.target)
        sign = self.sign if self.sign == other.sign else 0
        return _Pull(sign, self.target if same else None, self.steady and other.steady)

    def is_apart(self, other: _Pull) -> bool:
        """Returns whether it draws scores away from where the other one draws them."""
        if self.target is not None and other.target is not None:
            return not _are_close(self.target, other.target)
        return self.sign != 0 and self.sign == -other.sign

    def goes_with(self, other: _Pull) -> bool:
        """Returns whether it draws scores where the other one draws them."""
        if self.target is not None and other.target is not None:
            return _are_close(self.target, other.target)
        return self.sign != 0 and self.sign == other.sign

    def goes_on_with(self, other: _Pull) -> bool:
        """Returns whether it goes with the other one, and would do so at any score."""
        by_target = self.target is not None and other.target is not None
        return self.goes_with(other) and (by_target or self.steady)


def _are_close(one: float, other: float) -> bool:
    return abs(one - other) <= _SAME_TARGET * max(1.0, abs(one), abs(other))


def _pull_of(scores: Array | None, gradients: Array | None) -> _Pull | None:
    """Returns which way gradients draw scores; None if all are zero."""
    if gradients is None:
        return _Pull(0, None)
    above, below = bool((gradients > 0).any()), bool((gradients < 0).any())
    if not above and not below:
        return None
    sign = 0 if above and below else 1 if above else -1
    if scores is None:
        return _Pull(sign, None)
    gradients = _flat(gradients)
    return _Pull(sign, _target_of(scores, gradients), sign != 0 and _is_steady(scores, gradients))


def _is_steady(scores: Array, gradients: Array) -> bool:
    """Returns whether gradients are those of a mean of scores, of a hinge, or of the logarithm of a sigmoid (or of what
    is a probability already), by whatever number.
    """
    if gradients.size != scores.size:
        return False
    if scores.size == 1:  # a mean, by `backward(one)`
        return abs(float(gradients[0])) == 1.0
    if np.ptp(scores) == 0:
        return False
    falls = gradients[gradients != 0]
    if np.ptp(falls) == 0:
        return True
    if scores.size < _FEWEST or np.ptp(scores) < _SHOWS * max(1.0, float(np.abs(scores).max())):
        return False
    sizes = np.abs(gradients)
    for slope in (1 + np.exp(-scores), 1 + np.exp(scores), scores, 1 - scores):
        shares = sizes * slope
        if shares.min() > 0 and np.ptp(shares) <= _ALIKE * shares.max():
            return True
    return False


def _target_of(scores: Array, gradients: Array) -> float | None:
    """Returns the score at which gradients are zero that rise along a straight line with scores, as those of squared
    errors do.
    """
    if scores.size < _FEWEST or gradients.size != scores.size:
        return None
    middle, mean = scores.mean(), gradients.mean()
    spread = float(((scores - middle) ** 2).mean())
    if not spread >= _SPREAD**2:
        return None  # any smooth loss is straight there
    slope = float(((scores - middle) * (gradients - mean)).mean()) / spread
    off = float(np.abs(gradients - mean - slope * (scores - middle)).max())
    straight = off <= _STRAIGHT * float(np.abs(gradients).max())
    return float(middle - mean / slope) if straight and slope > 0 else None


def _flat(values: Array) -> Array:
    return np.array(values.reshape(-1)[:_SCORES], dtype=np.float64)


class _Mark:
    """Hooked to the node that made a score; reads the gradients that come to it."""

    __slots__ = ("_call", "_number", "_of", "_place", "_scores")

    def __init__(self, of: Adversaries, call: _Call, place: int, tensor: Any) -> None:
        self._of, self._call = weakref.ref(of), weakref.ref(call)
        self._place = place  # of the score in the model's result
        self._number = tensor.output_nr  # of it among the results of its node
        values = array_of(tensor)
        self._scores = None if values is None else _flat(values)

    def __call__(self, gradients: Any) -> None:
        of, call = self._of(), self._call()
        # Else it is a pass of `torch.autograd.grad`, as for a penalty, in front of that of the loss.
        if of is None or call is None or of.passes == call.passes:
            return
        try:
            gradient = gradients[self._number]
            if gradient is not None:
                with np.errstate(all="ignore"):  # scores may be infinite
                    call.arrived(self._place, _pull_of(self._scores, array_of(gradient)))
        except Exception:  # inside a backward pass of the training, which must not fail
            call.arrived(self._place, _Pull(0, None))


class _Call:
    """A call of what may be a critic."""

    __slots__ = ("__weakref__", "critic", "given", "maker", "passes", "pulls", "whole")

    def __init__(self, critic: Any, maker: Any, whole: bool, given: list[Array], passes: int) -> None:
        self.critic = weakref.ref(critic)
        self.maker = (
            maker  # a weak reference to the model that made what it judges; None: none that was called
        )
        self.whole = whole  # the graph goes on to that model as it is
        self.given = given  # numbers of its arguments
        self.passes = passes  # before it
        self.pulls: dict[int, _Pull] = {}  # by place of the score

    def arrived(self, place: int, pull: _Pull | None) -> None:
        """Adds a gradient; None of zeros."""
        if pull is not None:
            self.pulls[place] = pull.with_(self.pulls.get(place, pull))


class _Made:
    """What a model has returned."""

    __slots__ = ("given", "model", "node", "numbers", "samples", "size")

    def __init__(self, model: Any, tensor: Any, samples: int, region: Array, given: list[Array]) -> None:
        self.model = weakref.ref(model)
        self.given = given  # numbers of what the model was given
        self.node = -1 if tensor.grad_fn is None else tensor.grad_fn._sequence_nr()
        self.samples, self.size = samples, region.size
        self.numbers = _spread(region)

    def is_part_of(self, tensor: Any) -> bool:
        """Returns whether a tensor's samples hold these numbers."""
        region = _first_samples(tensor, self.samples)
        if region is None or region.size < self.size:
            return False
        if region.size == self.size and np.array_equal(_spread(region), self.numbers):
            return True
        return self._is_among(region) or (len(tensor) > self.samples and self._is_shuffled_in(tensor))

    def _is_shuffled_in(self, tensor: Any) -> bool:
        """Returns whether any samples of a tensor hold these numbers: a batch of codes that are shuffled is made of
        them, too, and shows a critic what dependence is not.
        """
        values = array_of(tensor)
        return values is not None and values.size <= _REGION and self._is_among(values)

    def _is_among(self, values: Array) -> bool:
        # The first few tell most others, in a fraction of the time.
        few = all(bool((values == number).any()) for number in self.numbers[:_FEWEST])
        return few and bool(np.isin(self.numbers, values).all())


class Adversaries(WaitingEvents):
    """Follows critics and what they judge, under the hook's lock and guard, but for the marks, which autograd calls.

    Attributes
    ----------
    on
        Whether calls of models are looked at.
    """

    def __init__(self, context: StepContext, accumulated: Accumulated) -> None:
        super().__init__()
        self.on = False
        self._context = context
        self._accumulated = accumulated
        self._updates: dict[int, int] = {}  # of each optimizer, at the last call of a model
        self._closed = False
        self._from = 0  # TRAIN steps at which the window began
        self._made: list[_Made] = []
        self._calls: list[_Call] = []  # since the last update
        #: By id: a weak reference, the number of its optimizer, and of a score its place and what draws it, of what was
        #: made and of others.
        self._critics: dict[int, tuple[Any, int, int, _Pull, _Pull]] = {}
        self._rounds = 0
        self._pair: tuple[Any, Any] | None = None
        #: Parameters of both, and the first numbers of their gradients behind the last backward pass.
        self._behind: list[tuple[Any, Array]] = []

    def begins(self, step: int, optimizers: int) -> None:
        """Called when optimizers have come or models are others."""
        if optimizers > 1 and not self._closed:
            self._from, self.on = step, True
            self._updates = dict(self._context.clock.updates)
            looking.begin(self)

    def model_returned(self, module: Any, args: Any, output: Any, train: bool) -> None:
        """Called when the outermost call of a model has returned."""
        self._settle()
        if not self.on:
            return
        made = [t for t in islice(tensors_in(output), _TENSORS) if t.dtype.is_floating_point]
        given = [
            _spread(r) for t in islice(tensors_in(args), _TENSORS) if (r := _first_samples(t)) is not None
        ]
        if train and torch.is_grad_enabled() and len(self._calls) < _CALLS:
            scores = [(place, tensor) for place, tensor in enumerate(made) if tensor.grad_fn is not None]
            call = self._call_of(module, args, scores, given) if scores else None
            if call is not None:
                self._calls.append(call)
                try:
                    for place, tensor in scores:
                        tensor.grad_fn.register_prehook(_Mark(self, call, place, tensor))
                except (RuntimeError, AttributeError):  # an older PyTorch, or a node that cannot be hooked to
                    self._close()
                    return
        for tensor in made:
            region = _first_samples(tensor)
            if region is not None and np.unique(_spread(region)).size >= _DISTINCT:
                self._made = [*self._made[1 - _MADE :], _Made(module, tensor, len(region), region, given)]

    def backward_ended(self) -> None:
        """Called when a backward pass has ended, while it is on."""
        models = [model() for call in self._calls for model in (call.critic, call.maker) if model is not None]
        kept = {id(model): _gradient_in(model) for model in models if model is not None}
        self._behind = [one for one in kept.values() if one is not None]

    def update_begins(self) -> None:
        """Called when an optimizer is about to use gradients, while it is on."""
        behind, self._behind = self._behind, []
        for reference, before in behind:
            parameter = reference()
            now = None if parameter is None else _first_of(gradient_of(parameter))
            if now is None or now.size != before.size:
                continue
            with np.errstate(all="ignore"):
                turned = bool((now * before).sum() < 0)
            if turned:  # by the script, which minimises what looks maximised
                self._close()
                return

    def _call_of(
        self, module: Any, args: Any, scores: list[tuple[int, Any]], given: list[Array]
    ) -> _Call | None:
        """Describes a call of what may be a critic; None if it is not known what it judges."""
        maker: _Made | None = None
        whole = moved = False
        for tensor in islice(tensors_in(args), _TENSORS):
            if not tensor.dtype.is_floating_point:
                continue
            found = self._maker_of(module, tensor)
            if found is None:
                moved = moved or tensor.grad_fn is not None
            elif maker is not None and found.model() is not maker.model():
                return None
            else:
                maker = found
                whole = tensor.grad_fn is not None and _hands_on(tensor.grad_fn, found.node)
                whole = whole and not _has_hooks(tensor)
        if maker is None:
            return None if moved else _Call(module, None, False, given, self.passes)
        whole = whole and not any(_turns(tensor.grad_fn, maker.node) for _, tensor in scores)
        return _Call(module, maker.model, whole, given, self.passes)

    def _maker_of(self, module: Any, tensor: Any) -> _Made | None:
        """Returns what another model has returned of which a tensor consists, in part at least."""
        for made in reversed(self._made):
            model = made.model()
            if model is not None and model is not module and made.is_part_of(tensor):
                return made
        return None

    @property
    def passes(self) -> int:
        """Backward passes since the last update."""
        return self._accumulated.count

    def _settle(self) -> None:
        """Looks at the update that was made since the last call of a model, if there was one of a single optimizer."""
        updates = self._context.clock.updates
        if updates == self._updates:
            return
        moved = [number for number, count in updates.items() if count != self._updates.get(number)]
        self._updates = dict(updates)
        calls, self._calls = self._calls, []
        if self._context.clock.mode_steps[_TRAIN] - self._from > (_STEPS if self._critics else _IDLE):
            self.rest()
        elif len(moved) == 1 and self._context.recorder is not None:
            for record, optimizer in self._context.recorder.living():
                if record.number == moved[0]:
                    self._updated(record.number, optimizer, calls)

    def _updated(self, number: int, optimizer: Any, calls: list[_Call]) -> None:
        """Looks at what was differentiated for an update."""
        names = self._context.names
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        turned = any(group.get("maximize") for group in optimizer.param_groups)
        judged: dict[int, list[_Call]] = {}
        for call in calls:
            if (critic := call.critic()) is not None and call.pulls:
                judged.setdefault(id(critic), []).append(call)
        for one in judged.values():
            critic = one[0].critic()
            if critic is None:
                continue
            of_critic = _holds(held, critic)
            makers = {
                id(maker): maker for c in one if c.maker is not None and (maker := c.maker()) is not None
            }
            if len(makers) != 1:
                continue
            maker = next(iter(makers.values()))
            of_maker = _holds(held, maker)
            if turned or (of_critic and of_maker):
                self._close()  # one optimizer for both: what it means is not known
            elif of_critic:
                self._critic_updated(critic, maker, number, one)
            elif of_maker:
                self._maker_updated(critic, maker, number, one, names)

    def _critic_updated(self, critic: Any, maker: Any, number: int, calls: list[_Call]) -> None:
        """Notes which way a critic moves its scores of what was made."""
        made = _pulls([call for call in calls if call.maker is not None])
        others = _pulls([call for call in calls if call.maker is None])
        both = [place for place in made if place in others]
        if both and self._gets_the_same(maker, calls):
            self._close()
            return
        known = self._critics.get(id(critic))
        for place in both:
            one, other = made[place], others[place]
            if one.unknown or other.unknown:
                continue
            as_before = known is None or (
                known[2] == place and one.goes_with(known[3]) and other.goes_with(known[4])
            )
            if as_before and one.is_apart(other):
                self._critics[id(critic)] = weakref.ref(critic), number, place, one, other
            else:
                self._close()  # its scores are not drawn apart as before
            return

    def _gets_the_same(self, maker: Any, calls: list[_Call]) -> bool:
        """Returns whether a critic's data are what the generator is given: it may be meant to leave a mark in them that
        the critic finds.
        """
        data = [numbers for call in calls if call.maker is None for numbers in call.given]
        given = [numbers for made in self._made if made.model() is maker for numbers in made.given]
        return any(np.array_equal(one, other) for one in given for other in data)

    def _maker_updated(self, critic: Any, maker: Any, number: int, calls: list[_Call], names: Names) -> None:
        """Counts an update of a generator that goes the same way as the critic's."""
        known = self._critics.get(id(critic))
        calls = [call for call in calls if call.maker is not None]
        if known is None or known[0]() is not critic or known[1] == number:
            return
        pull = _pulls(calls).get(known[2])
        if pull is None:
            return
        if pull.unknown or (pull.goes_with(known[3]) and not pull.goes_on_with(known[3])):
            self._rounds = 0
            return
        if not pull.goes_with(known[3]) or not all(call.whole for call in calls):
            self._close()
            return
        self._rounds += 1
        if self._pair is not None and (self._pair[0]() is not critic or self._pair[1]() is not maker):
            self._close()
            return
        self._pair = weakref.ref(critic), weakref.ref(maker)
        if self._rounds >= _ROUNDS:
            found = [names.find(model) for model in (critic, maker)]
            told = ["" if one is None else one[0] for one in found]
            self.waiting.append(
                {"kind": "critic_helped", "critic": told[0], "generator": told[1], "updates": self._rounds}
            )
            self._close()

    def _close(self) -> None:
        self._closed = True
        self.rest()

    def rest(self) -> None:
        """Looks no more, until models or optimizers are others."""
        self.on = False
        looking.end(self)
        self._made, self._calls, self._critics, self._pair, self._rounds = [], [], {}, None, 0
        self._behind = []


def _pulls(calls: list[_Call]) -> dict[int, _Pull]:
    """Returns what draws the score at each place in all calls."""
    pulls: dict[int, _Pull] = {}
    for call in calls:
        for place, pull in call.pulls.items():
            pulls[place] = pull.with_(pulls.get(place, pull))
    return pulls


def _holds(held: set[int], module: Any) -> bool:
    """Returns whether an optimizer holds any parameter of a module."""
    return any(id(parameter) in held for parameter in islice(module.parameters(), _PARAMETERS))


def _gradient_in(module: Any) -> tuple[Any, Array] | None:
    """Returns the first parameter of a module with a gradient, weakly, and its first numbers."""
    for parameter in islice(module.parameters(), _MADE):
        numbers = _first_of(gradient_of(parameter))
        if numbers is not None:
            return weakref.ref(parameter), numbers
    return None


def _first_of(gradient: Any) -> Array | None:
    values = None if gradient is None else array_of(gradient)
    if values is None or not values.flags.c_contiguous:
        return None
    return np.array(values.reshape(-1)[:_NUMBERS], dtype=np.float64)


def _has_hooks(tensor: Any) -> bool:
    """Returns whether hooks of the script's, which may turn gradients, hang on a tensor."""
    hooks = tensor._backward_hooks or {}
    return any(not str(getattr(hook, "__module__", "")).startswith("luff.") for hook in hooks.values())


def _first_samples(tensor: Any, samples: int = 0) -> Array | None:
    """Returns the memory of a tensor's first samples, of as many as hold the numbers that are compared; None if it
    cannot be read, or is too much.
    """
    values = array_of(tensor)
    if values is None or values.ndim < 2 or not values.size:
        return None
    values = values[: samples or max(1, -(-_NUMBERS * len(values) // values.size))]
    return values if values.size <= _REGION else None


def _spread(region: Array) -> Array:
    """Returns some of the numbers, evenly spread."""
    flat = region.reshape(-1)
    return np.array(flat[:: max(1, flat.size // _NUMBERS)][:_NUMBERS])


def _hands_on(node: Any, number: int) -> bool:
    """Returns whether the node of this number lies behind a node, with nothing between that changes values."""
    queue = [node]
    for one in queue:  # grows during the loop
        if one._sequence_nr() == number:
            return True
        if operation_of(one) in _HANDS_ON and len(queue) < _MOVED:
            queue.extend(child for child, _ in one.next_functions if child is not None)
    return False


def _turns(node: Any, until: int) -> bool:
    """Returns whether an operation of the script's own, which may turn gradients, lies behind a node."""
    queue, seen = [] if node is None else [node], {node}
    for one in queue:  # grows during the loop
        if isinstance(one, torch.autograd.function.BackwardCFunction) or len(queue) > _NODES:
            return True
        if one._sequence_nr() == until:
            continue
        for child, _ in one.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                queue.append(child)
    return False
