"""Records the calls of one function as steps: arguments, results, and what happened while it was traced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from luff._codes import Mode, Phase, Role
from luff._core import enter_phase, leave_phase
from luff.jax._auto import note_gradients, traced
from luff.jax._facts import CALLS, CallFacts
from luff.jax._find import (
    CAN_ASK,
    Call,
    Outcome,
    at,
    has_tracer,
    in_trace,
    look_at_call,
    look_at_result,
    name_numbers,
    names_of_parameters,
    told,
)
from luff.jax._optimizer import accumulates, count_of, state_parts
from luff.jax._trees import Part
from luff.jax._values import is_gone

if TYPE_CHECKING:
    from luff.jax._hook import Hook

__all__ = ["Watcher"]

_COMPUTE = int(Phase.COMPUTE)
_TRAIN, _EVAL, _LOSS = int(Mode.TRAIN), int(Mode.EVAL), int(Role.LOSS)
_MAX_KINDS = 64  # most kinds of calls remembered per function
_LOOKED_AT = 4  # leaves of each model that are checked for donation
_COUNTED_CALLS = 4  # number of calls in which the updates per call are counted
_COUNTED_LATER = (16, CALLS)  # calls at which it is looked whether the state still counts
# Found kinds of functions: not known yet, computes gradients only, unrelated to a training.
_UNKNOWN, _GRADIENTS, _OTHER = 0, -1, -2


@dataclass
class _Seen:
    call: Call
    root: tuple[Any, Any]  # positional and keyword arguments
    kind: Any  # kind of the call: all calls of a kind share what was found out about one
    parts: list[Part]
    count: int | None = None  # updates before the call

    def has_trees(self) -> bool:
        """Whether something among the arguments may be a tree of parameters."""
        values = (at(path, self.root) for path in self.call.batch)
        plain = (int, float, complex, str, bytes, type(None))
        return any(not hasattr(value, "ndim") and not isinstance(value, plain) for value in values)

    def states(self) -> list[Any]:
        """Returns the Optax states among the arguments."""
        return [at(path, self.root) for path in self.call.states]


class Watcher:
    """Records the calls of one function.

    Parameters
    ----------
    hook_for
        Returns the hook, or None.
    function
        The function, for its name and the names of its parameters.
    mode
        Mode of its steps; 0 means that it is determined from the calls.
    read
        Identifies the values, see `Hook.watch`.
    """

    def __init__(
        self,
        hook_for: Callable[[], Hook | None],
        function: Any,
        mode: int = _UNKNOWN,
        read: Callable[..., Mapping[str, Any]] | None = None,
    ) -> None:
        self._hook_for = hook_for
        self._auto = mode == _UNKNOWN
        self._kind = mode
        self._read = read
        self._name = str(getattr(function, "__name__", "function"))
        self._names = names_of_parameters(function)
        self._donates = mode == _TRAIN  # assumed until seen
        self._calls = 0
        self._per_call = 1
        self._accumulates: bool | None = None
        self._known: dict[Any, Call] = {}
        self._results: dict[Any, Outcome] = {}
        self._structure: Any = None  # of the parameters, once an update was traced
        self._facts = CallFacts(self._name)
        self._looped = False  # it was seen to update in a loop

    def __call__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        bound: tuple[Any, ...] = (),
    ) -> Any:
        """Calls the function and records what it did; `bound` are arguments that were bound to it before."""
        hook = None if traced.depth else self._hook_for()
        if hook is None or not hook.live or in_trace():
            return function(*args, **kwargs)
        if not self._facts.are_of(hook):  # the first call of this run
            self._facts = CallFacts(self._name, hook)
        if self._kind == _TRAIN:
            hook.boundary()
        traced.reset()
        traced.depth = 1
        try:
            seen = (
                None
                if self._kind == _OTHER
                else hook.told("watch", self._before, hook, (*bound, *args), kwargs)
            )
            enter_phase(_COMPUTE)
            try:
                result = function(*args, **kwargs)
            except BaseException:
                if self._kind > 0:
                    hook.told("watch", hook.steps.abandon)
                raise
            finally:
                leave_phase(_COMPUTE)
            if self._auto:
                self._learn(seen)
            if seen is not None:
                hook.told("watch", self._after, hook, seen, args, kwargs, result)
            elif self._kind == _GRADIENTS:
                hook.told("watch", note_gradients, result, _has_value(result), False)
            return result
        finally:
            traced.depth = 0

    def _learn(self, seen: _Seen | None) -> None:
        if traced.trains:
            self._kind = _TRAIN
            self._structure = traced.structure
        elif traced.differentiates and self._kind != _TRAIN:
            self._kind = _GRADIENTS
        elif self._kind == _UNKNOWN and (seen is None or (not seen.parts and not seen.has_trees())):
            self._kind = _OTHER  # none of its arguments can be parameters

    def _before(self, hook: Hook, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Seen | None:
        if self._kind == _GRADIENTS:
            return None
        kind = (*map(type, args), *kwargs)
        call = self._known.get(kind)
        if call is None:
            call = look_at_call(self._names, args, kwargs)
            if self._read is not None:
                call.params = []
            elif not call.params:
                self._find_parameters(hook, call, (args, kwargs))
            if len(self._known) < _MAX_KINDS and (call.params or self._kind != _UNKNOWN):
                self._known[kind] = call
        seen = _Seen(call, (args, kwargs), kind, [])
        seen.parts = [part for path in call.params for part in hook.trees.parts(at(path, seen.root))]
        if not CAN_ASK and has_tracer(value for part in seen.parts for value in part.values):
            return None
        if self._kind == _TRAIN:
            counted = self._calls < _COUNTED_CALLS or self._calls in _COUNTED_LATER
            if call.states and (counted or self._accumulates):
                state = seen.states()[0]
                seen.count = count_of(state)
                if self._accumulates is None:
                    self._accumulates = accumulates(state)
            if self._donates and hook.steps.begin(_TRAIN) is not None:
                hook.parameters(seen.parts)
        return seen

    def _find_parameters(self, hook: Hook, call: Call, root: Any) -> None:
        """Finds parameters by their structure: that of trained parameters, or of an optimizer's moments."""
        if self._structure is None and call.states:
            for _, tree in state_parts(at(call.states[0], root)):
                if not hasattr(tree, "ndim"):
                    self._structure = jax.tree_util.tree_structure(tree)
                    break
        for index, path in enumerate(call.batch):
            tree = at(path, root)
            if hasattr(tree, "ndim") or isinstance(tree, (int, float, str, bytes)):
                continue
            structure = jax.tree_util.tree_structure(tree)
            like = self._structure is not None and structure == self._structure
            if like or hook.is_trained(hook.trees.leaves_of(structure)):
                call.params.append(call.batch.pop(index))
                return

    def _after(
        self, hook: Hook, seen: _Seen, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        if self._kind == _GRADIENTS:
            note_gradients(result, _has_value(result), False)
        elif self._kind == _TRAIN:
            self._trained(hook, seen, args, kwargs, result)
        elif self._kind > 0 or (
            self._kind == _UNKNOWN and any(hook.is_trained(part.leaves) for part in seen.parts)
        ):
            self._evaluated(hook, seen, args, kwargs, result)

    def _trained(
        self, hook: Hook, seen: _Seen, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        if not seen.parts and self._read is None and self._structure is not None:
            self._find_parameters(hook, seen.call, seen.root)
            seen.parts = [p for path in seen.call.params for p in hook.trees.parts(at(path, seen.root))]
        if not hook.steps.mode:
            if hook.steps.begin(_TRAIN) is None:
                return
            hook.parameters(seen.parts)
        if seen.parts:
            self._donates = any(is_gone(value) for part in seen.parts for value in part.values[:_LOOKED_AT])
            hook.trained(seen.parts)
        outcome, states = self._outcome(hook, seen, args, kwargs, result)
        updates = self._updates(hook, seen, states)
        if self._read is None and self._facts.looks() and len(seen.call.params) == 1:
            given = at(seen.call.params[0], seen.root)
            self._looped = self._looped or updates > 1 or traced.looped
            self._facts.look(hook, given, outcome.params, seen.states(), outcome.states, self._looped)
        if updates > 1 and not outcome.losses:
            outcome.losses = [(name or "loss", v[-1]) for name, v in outcome.series if len(v) == updates][:1]
        if updates > 1 or traced.looped:
            hook.hidden(max(1, updates - 1))
        _numbers(hook, outcome)
        hook.gradients(outcome.grads)
        hook.steps.clock.updates[0] = hook.steps.clock.update_of(0) + max(0, updates - 1)
        if updates:
            hook.steps.updated()
        for state in states:
            hook.optimizer_state(state)
        hook.steps.end()
        self._calls += 1

    def _evaluated(
        self, hook: Hook, seen: _Seen, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        outcome, _ = self._outcome(hook, seen, args, kwargs, result)
        if not outcome.losses and not outcome.scalars:
            return
        if hook.steps.begin(self._kind if self._kind > 0 else _EVAL) is None:
            return
        _numbers(hook, outcome)
        hook.steps.end()

    def _outcome(
        self, hook: Hook, seen: _Seen, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> tuple[Outcome, list[Any]]:
        if self._read is None:
            kind = (seen.kind, type(result), len(result) if isinstance(result, (tuple, list, dict)) else 0)
            places = self._results.get(kind)
            if places is None:
                places = look_at_result([at(path, seen.root) for path in seen.call.params], result)
                name_numbers(places, self._name if self._kind == _UNKNOWN else "")
                if len(self._results) < _MAX_KINDS:
                    self._results[kind] = places
            outcome = places.of(result)
            return outcome, outcome.states or seen.states()
        given = self._read(args, kwargs, result)
        if given.get("params") is not None and self._kind == _TRAIN:
            parts = hook.trees.parts(given["params"])
            hook.parameters(parts)
            hook.trained(parts)
        return told(given)

    def _updates(self, hook: Hook, seen: _Seen, states: list[Any]) -> int:
        """Returns how often the call has updated."""
        if seen.count is not None and states:
            after = count_of(states[0])
            if after is not None and 0 <= after - seen.count < 1 << 31:
                if self._accumulates:
                    return after - seen.count
                if self._facts.counted(hook, self._calls, seen.count, after):
                    return self._per_call  # the state was made anew inside: its count says nothing
                if self._calls < _COUNTED_CALLS:
                    self._per_call = after - seen.count
                return after - seen.count
        return self._per_call


def _numbers(hook: Hook, outcome: Outcome) -> None:
    for name, value in outcome.losses:
        hook.steps.scalar(name, np.asarray(value), _LOSS)
    for name, value in outcome.scalars:
        hook.steps.scalar(f"scalar/{name}", np.asarray(value))


def _has_value(result: Any) -> bool:
    """Whether a function of gradients returns the value before them."""
    if not isinstance(result, tuple) or len(result) != 2:
        return False
    first = result[0]
    return isinstance(first, tuple) or (isinstance(first, (jax.Array, np.ndarray)) and not first.ndim)
