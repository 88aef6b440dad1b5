"""Keeps the states of torch's random numbers that a replay needs to draw what the step has drawn.

A step draws twice: its statements (a batch, noise), from the end of the step before on, and its model (dropout), from
its first call on; between the two a loader may have drawn, which a replay does not do again. Costs two copies of 5 KB
a step, and only where the model has layers that draw. Only torch's own numbers on the CPU: a state of NumPy's would
cost ten times as much.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from luff._codes import Mode

__all__ = ["Draws"]

_TRAIN = int(Mode.TRAIN)
_LOOKS = 16  # at models that take turns: later ones are taken for the same


class Draws:
    """The states of the open TRAIN step."""

    def __init__(self) -> None:
        self._begun: Any = None  # when the last update had been made
        self._called: Any = None  # when the first model of the step was called
        self._model: weakref.ref[Any] | None = None
        self._looks = _LOOKS
        self._seen: Callable[[], Any] = object  # the model that was called last
        self.wanted = False  # whether it draws

    def updated(self) -> None:
        """Called when an update has been made: what is drawn from here on is the next step's."""
        self._begun = torch.default_generator.get_state() if self.wanted else None
        self._called = self._model = None

    def call_begins(self, model: Any, step: Any) -> None:
        """Called when an outermost forward pass of a `Step` begins. The first one of a TRAIN step counts."""
        if self._looks and self._seen() is not model:
            self._looks -= 1
            self._seen, self.wanted = weakref.ref(model), self.wanted or any(map(_draws, model.modules()))
        if self.wanted and (self._called is None or (step.forwards == 1 and step.mode == _TRAIN)):
            self._called = torch.default_generator.get_state()
            self._model = weakref.ref(model)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Draws the same numbers while statements are evaluated again. Only for a forked child."""
        if self._begun is not None:
            torch.default_generator.set_state(self._begun)
        waiting = self._called

        def enter(module: Any, _: Any) -> None:
            nonlocal waiting
            if waiting is not None and self._model is not None and module is self._model():
                torch.default_generator.set_state(waiting)
                waiting = None

        hook = torch.nn.modules.module.register_module_forward_pre_hook(enter)
        try:
            yield
        finally:
            hook.remove()


def _draws(module: Any) -> bool:
    """Whether a layer draws numbers: dropout, or a layer with an option of that name above 0."""
    share = vars(module).get("dropout")  # not by `getattr`: a property is code of the user's
    return isinstance(module, nn.modules.dropout._DropoutNd) or (isinstance(share, float) and share > 0.0)
