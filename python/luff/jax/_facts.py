"""What the calls of one function that trains have in common: the same state of the optimizer, again and again.

Told once it is certain (event `training_call`, docs/spec/evidence.md), and again when it is over. Nothing is kept
alive, and no value is read.
"""

from __future__ import annotations

import json
import weakref
from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from luff.jax._hook import Hook

__all__ = ["CALLS", "CallFacts"]

#: Calls in a row, from the first one on, after which a fact is told.
CALLS = 64
_LEAVES = 4

_References = list["weakref.ref[Any]"]


class DroppedState:
    """Whether a state that a function returns is dropped, though each call gets the parameters of the last one.

    Who begins again with the parameters as well (clients of federated learning, tasks) means a new state.
    """

    def __init__(self) -> None:
        self.calls = 0  # in a row that were given the same state
        self.over = False  # something else was seen: no longer looked at
        self._given: _References = []
        self._params: _References = []  # that the last call returned
        self._before: _References = []  # states that the last two calls returned: a variable may still hold one
        self._last: _References = []

    def look(self, params: list[Any], new_params: list[Any], state: list[Any], new_state: list[Any]) -> None:
        """Called with leaves of what a call was given, and of what it returned in its place."""
        if self.over:
            return
        whole = params and new_params and state and new_state
        kept = any(ref() is not None for ref in self._before)
        if (
            not whole
            or kept
            or (self.calls and not (_are(self._given, state) and _are(self._params, params)))
        ):
            self.over = True
            return
        self.calls += 1
        self._given, self._params = _references(state), _references(new_params)
        self._last, self._before = _references(new_state), self._last


class CallFacts:
    """Looks at the calls of one function that trains in one run, until each fact is certain or out of the question."""

    def __init__(self, name: str, hook: Hook | None = None) -> None:
        self._name = name
        self._hook = None if hook is None else weakref.ref(hook)
        self._state = DroppedState()
        self._told: set[str] = set()
        self._anew = (
            0  # looks at which the optimizer's state had counted one update, before the call and after
        )
        self._moved = False  # a call was given other parameters than the first one
        self._first: _References = []

    def are_of(self, hook: Hook) -> bool:
        """Whether these are facts of the run of this hook."""
        return self._hook is not None and self._hook() is hook

    def looks(self) -> bool:
        """Whether anything can still be found, or be over."""
        return not self._state.over or not self._moved

    def look(
        self, hook: Hook, params: Any, new_params: Any, states: Any, new_states: Any, looped: bool
    ) -> None:
        """Looks at a call: trees that it was given and returned; None for those that it does not return.

        `looped`: it may update several times, and then begin with a new state on purpose.
        """
        given = _leaves(params)
        if not self._moved:
            self._moved = bool(self._first) and not _are(self._first, given)
            self._first = self._first or _references(given)
        if looped:
            self._state.over = True
        one = _alike(states, new_states)  # of several, one may rest
        self._state.look(
            given, _leaves(new_params), _leaves(states) if one else [], _leaves(new_states) if one else []
        )
        self._say(hook, "state_dropped", self._state.calls >= CALLS, self._state.over, self._state.calls)

    def counted(self, hook: Hook, call: int, before: int, after: int) -> bool:
        """Called with the updates that the state had counted before and after some calls.

        Returns whether the state does not count on, though the function updates.
        """
        anew = before == 1 and after == 1 and call > 0
        self._anew = self._anew + 1 if anew else 0
        self._say(hook, "state_anew", self._anew >= 5 and self._moved, not anew, call + 1)
        return anew

    def _say(self, hook: Hook, fault: str, certain: bool, over: bool, calls: int) -> None:
        if hook.session is None or (fault in self._told) == (certain and not over):
            return
        if over and fault not in self._told:
            return
        self._told ^= {fault}
        event = {
            "kind": "training_call",
            "function": self._name,
            "fault": fault,
            "calls": calls,
            "over": over,
        }
        hook.session.event_json(json.dumps(event))


def _leaves(tree: Any) -> list[Any]:
    """Returns some arrays of a tree; nothing if one of them may change in place."""
    leaves = [leaf for leaf in jax.tree_util.tree_leaves(tree) if hasattr(leaf, "dtype")][:_LEAVES]
    return leaves if all(isinstance(leaf, jax.Array) for leaf in leaves) else []


def _alike(states: Any, new_states: Any) -> bool:
    """Whether one state was given, and one of the same structure came back."""
    if not isinstance(states, list) or not isinstance(new_states, list) or len(states) != 1:
        return False
    return bool(jax.tree_util.tree_structure(states) == jax.tree_util.tree_structure(new_states))


def _references(leaves: list[Any]) -> _References:
    return [weakref.ref(leaf) for leaf in leaves]


def _are(references: _References, leaves: list[Any]) -> bool:
    return len(references) == len(leaves) and all(
        reference() is leaf for reference, leaf in zip(references, leaves, strict=True)
    )
