"""What the calls of one function that trains have in common: results that are never given back, one key for all.

Told once it is certain (event `training_call`, docs/spec/evidence.md), and again when it is over. Nothing is kept
alive, and of values only keys are read.
"""

from __future__ import annotations

import json
import weakref
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

if TYPE_CHECKING:
    from luff.jax._hook import Hook

__all__ = ["CALLS", "CallFacts"]

#: Calls in a row, from the first one on, after which a fact is told.
CALLS = 64
_LEAVES = 4
_MAX_LEAVES = 64
_NEW_BATCHES = 48  # of these calls, those with another batch: a function that is timed gets one and the same

_References = list["weakref.ref[Any]"]


class Returned:
    """Whether a function is ever given what it returned: the same objects come again, and the results are gone."""

    def __init__(self) -> None:
        self.calls = 0  # in a row that were given the same
        self.moved = False  # it was given something else
        self.over = False  # for that, or since its results are kept: no longer looked at
        self._given: _References = []
        self._last: _References = []  # what the last call returned: its variable may still hold it
        self._before: _References = []  # what the one before it returned

    def look(self, given: list[Any], returned: list[Any]) -> None:
        """Called with leaves of what a call was given, and of what it returned in its place."""
        if self.over:
            return
        alike = len(given) == len(self._given) and all(
            ref() is leaf for ref, leaf in zip(self._given, given, strict=True)
        )
        kept = any(ref() is not None for ref in self._before)
        self.moved = bool(self._given) and not alike
        if not given or not returned or kept or self.moved:
            self.over = True
            return
        self.calls += 1
        self._given = [weakref.ref(leaf) for leaf in given]
        self._last, self._before = [weakref.ref(leaf) for leaf in returned], self._last


class SameKey:
    """Whether a function draws from one and the same key in all calls, while its batches change."""

    def __init__(self) -> None:
        self.calls = 0
        self.over = False
        self._key: Any = None
        self._value = b""

    def look(self, keys: list[Any]) -> None:
        """Called with the keys among a call's arguments."""
        if self.over:
            return
        if len(keys) != 1:
            self.over = True  # of several keys, the others may differ
            return
        key = keys[0]
        same_object = self._key is not None and self._key() is key
        value = self._value if same_object else value_of(key)
        if self.calls and not same_object and (not value or value != self._value):
            self.over = True
            return
        self.calls += 1
        self._key, self._value = weakref.ref(key), value


class CallFacts:
    """Looks at the calls of one function that trains, until each fact is certain or out of the question."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._params, self._states, self._key = Returned(), Returned(), SameKey()
        self._told: set[str] = set()
        self._batch: weakref.ref[Any] | None = None
        self._new_batches = 0
        self._anew = (
            0  # looks at which the optimizer's state had counted one update, before the call and after
        )
        self._draws = False  # from a key that is not made inside of the function
        self._varies = False  # a key is made or varied by a value inside of the function

    def traced(self, draws: bool, varies: bool) -> None:
        """Called when the function was traced, with what it does to keys."""
        self._draws, self._varies = self._draws or draws, self._varies or varies

    def looks(self) -> bool:
        """Whether anything can still be found, or be over."""
        return not (self._params.over and self._states.over and self._key.over)

    def look(
        self, hook: Hook, params: Any, returned: Any, states: Any, new_states: Any, batch: list[Any]
    ) -> None:
        """Looks at a call: trees that it was given and returned, and its other arguments.

        The results are trees like what was given, or None.
        """
        if not self._params.over:
            self._params.look(_leaves(params), _leaves(returned))
        if not self._states.over:
            self._states.look(_leaves(states), _leaves(new_states))
        if self._varies:
            self._key.over = True
        keys, array = _keys_and_batch(batch)
        self._key.look(keys)
        if array is not None and (self._batch is None or self._batch() is not array):
            self._new_batches += 1
            self._batch = weakref.ref(array)
        # Without new parameters nothing else of the calls matters.
        for fault, line, also in (
            ("params_dropped", self._params, True),
            ("state_dropped", self._states, self._params.moved),
            ("same_key", self._key, self._draws),
        ):
            certain = also and line.calls >= CALLS and self._new_batches >= _NEW_BATCHES
            self._say(hook, fault, certain, line.over, line.calls)

    def counted(self, hook: Hook, call: int, before: int, after: int) -> bool:
        """Called with the updates that the state had counted before and after some calls.

        Returns whether the state does not count on, though the function updates.
        """
        anew = before == 1 and after == 1 and call > 0
        self._anew = self._anew + 1 if anew else 0
        self._say(hook, "state_anew", self._anew >= 5 and self._params.moved, not anew, call + 1)
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
    """Returns some arrays of a tree, none of them a number."""
    if tree is None:
        return []
    leaves = [leaf for leaf in jax.tree_util.tree_leaves(tree) if isinstance(leaf, (jax.Array, np.ndarray))]
    return leaves[:_LEAVES]


def _keys_and_batch(arguments: list[Any]) -> tuple[list[Any], Any]:
    keys: list[Any] = []
    batch = None
    for leaf in jax.tree_util.tree_leaves(arguments)[:_MAX_LEAVES]:
        if is_key(leaf):
            keys.append(leaf)
        elif batch is None and isinstance(leaf, (jax.Array, np.ndarray)) and leaf.ndim:
            batch = leaf
    return keys, batch


def is_key(value: Any) -> bool:
    """Whether the value is a key of random numbers, or looks like one of the old kind."""
    if not isinstance(value, jax.Array):
        return False
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        return not value.ndim
    return bool(value.dtype == np.uint32) and value.shape in ((2,), (4,))


def value_of(key: Any) -> bytes:
    """Returns the value of a key of the old kind; empty for others, whose value only a computation tells."""
    old = not jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not old or key.is_deleted() or not key.is_fully_addressable:
        return b""
    return np.asarray(key).tobytes()
