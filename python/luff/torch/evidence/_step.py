"""One step that has begun, and limits of what is kept of it until it is published."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from luff import _codes as codes
from luff._codes import Mode
from luff._hook import Session

__all__ = ["MAX_EVENTS", "MAX_WAITING", "Step", "resolved"]

MAX_EVENTS = 256  # of one step, while it is undecided
MAX_WAITING = 1024  # scalars and evaluation steps that wait for a step to be published
_TRAIN = int(Mode.TRAIN)


class Step:
    """One step that has begun and is not yet published."""

    begun = False  # the session knows of it
    captured = False  # the session holds values that cannot be taken again
    direct = False  # its events go to the session at once
    forwards = 0
    plain_loss = False  # a loss was computed while no saved-tensor hooks were in use
    weights_done = False
    update = -1
    updated = False
    ended = False  # a framework's loop says so of an evaluation: the next forward pass begins another step
    may_train = False  # eval mode, but with gradients: a backward pass would make it a TRAIN step
    clips = 0  # calls that clipped gradients
    samples = False  # takes samples
    root: Any = None  # weak reference to the model that an EVAL step called

    def __init__(self, mode: int) -> None:
        self.mode = mode
        self.decided = mode != _TRAIN  # a backward pass was seen
        # Subject: a number, or a weak reference to a module; argument: a number, or what gives one.
        self.events: list[tuple[int, Any, Any]] = []
        self.pending: list[tuple[str, int, float | None, int]] = []  # losses before the session was opened
        self.losses: dict[str, int] = {}  # loss names used, with counts
        self.loss_outputs: list[Any] = []  # weak references to outputs of loss modules
        self.function_outputs: list[tuple[Any, str]] = []  # of functional losses: weak reference, kind
        self.module_losses: dict[str, int] = {}
        self.graph_losses: dict[str, int] = {}
        self.sampled: dict[int, int] = {}  # id of a model: its tensors that were sampled
        self.sampled_losses: dict[str, int] = {}  # kind of loss: its calls
        self.early: list[Any] = []  # samples taken before the session was open


def resolved(
    events: list[tuple[int, Any, Any]], session: Session, find: Callable[[Any], Any]
) -> list[tuple[int, int, int]]:
    """Events seen before the session was open, with the numbers and hashes that could not be told then."""
    found = []
    for kind, subject, argument in events:
        if callable(subject):
            module = subject()
            known = None if module is None else find(module)
            subject = codes.NO_ID if known is None else known[1]
        if callable(argument):
            argument = argument(session)
        if argument is not None:
            found.append((kind, subject, argument))
    return found
