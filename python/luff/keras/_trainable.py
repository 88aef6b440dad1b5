"""What a compiled step of `fit` trains, and what is trainable now: events `trainable_set`."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import keras

from luff._weak import Identities
from luff.keras._names import Names, layers_of

__all__ = ["TrainableSets"]

_MOST = 64  # names in an event


class _Known(NamedTuple):
    """What was trainable when the step was compiled, at its first batch."""

    function: Any  # weak reference to it
    trained: Identities[bool]


class TrainableSets:
    """Compares both sets at the first batch of a model, and at the first one after each epoch.

    Keras reads `trainable` when it traces the step of `fit`, at the first batch after `compile`, and not again.
    """

    def __init__(self) -> None:
        self._known: Identities[_Known] = Identities()
        self._told: Identities[dict[str, Any]] = Identities()
        self.again = False  # whether models are to be looked at again

    def look(self, model: Any, names: Names) -> list[dict[str, Any]]:
        """Returns an event if the sets differ in another way than was told; called in a TRAIN step."""
        self.again = False
        if not _is_trained_by_keras(model):
            return []
        now: Identities[bool] = Identities()
        for variable in model.trainable_variables:
            now[variable] = True
        known = self._of(model, now)
        added = [] if known is None else _without(now, known.trained)
        removed = [] if known is None else _without(known.trained, now)
        event = {
            "kind": "trainable_set",
            "model": str(model.name),
            "trainable": len(now),
            "frozen": _frozen(model, now),
            "added": sorted(names.of(variable).name for variable in added)[:_MOST],
            "removed": sorted(names.of(variable).name for variable in removed)[:_MOST],
        }
        told = self._told.get(model)
        faulty = bool(added or removed or (not len(now) and event["frozen"]))
        if told == event or (told is None and not faulty):
            return []
        self._told[model] = event
        return [event]

    def _of(self, model: Any, now: Identities[bool]) -> _Known | None:
        """Returns what the compiled step of a model trains; None if it is not compiled."""
        function = getattr(model, "train_function", None)
        if function is None or keras.backend.backend() != "tensorflow" or model.run_eagerly:
            return None
        known = self._known.get(model)
        if known is None or known.function() is not function:
            known = self._known[model] = _Known(weakref.ref(function), now)
        return known


def _is_trained_by_keras(model: Any) -> bool:
    """Whether neither its class nor the script gives it a step of its own, which trains what it likes."""
    return (
        getattr(model.train_step, "__func__", None) is keras.Model.train_step
        and type(model).make_train_function is keras.Model.make_train_function
    )


def _frozen(model: Any, now: Identities[bool]) -> int:
    """Returns how many variables were made to be trained and are not; others, as the codes of a layer that moves
    them by itself, are no parameters that somebody froze.
    """
    made = {
        id(variable): variable for _, layer in layers_of(model) for variable in layer._trainable_variables
    }
    return sum(variable not in now for variable in made.values())


def _without(some: Identities[bool], others: Identities[bool]) -> list[Any]:
    return [thing for thing in some.things() if thing not in others]
