"""Keeps the states of torch's random numbers that a replay needs to draw what the step has drawn.

A step draws twice: its statements (a batch, noise), from the end of the step before on, and its model (dropout), from
its first call on; between the two a loader may have drawn, which a replay does not do again. Costs two copies of 5 KB
a step. Only torch's own numbers on the CPU: a state of NumPy's would cost ten times as much.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["Draws"]


class Draws:
    """The states of the open TRAIN step."""

    def __init__(self) -> None:
        self._begun: Any = None  # when the last update had been made
        self._called: Any = None  # when the first model of the step was called
        self._model: weakref.ref[Any] | None = None

    def updated(self) -> None:
        """Called when an update has been made: what is drawn from here on is the next step's."""
        self._begun = torch.default_generator.get_state()
        self._called = self._model = None

    def call_begins(self, model: Any, first: bool) -> None:
        """Called when an outermost forward pass begins; `first`: the first one of a TRAIN step, which counts."""
        if not first and self._called is not None:
            return
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
