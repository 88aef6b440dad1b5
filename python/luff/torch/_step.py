"""One step that has begun, and limits of what is kept of it until it is published."""

from __future__ import annotations

from typing import Any

from luff._codes import Mode

__all__ = ["MAX_EVENTS", "MAX_WAITING", "Step"]

MAX_EVENTS = 256  # of one step, while it is undecided
MAX_WAITING = 1024  # scalars and evaluation steps that wait for a step to be published
_TRAIN = int(Mode.TRAIN)


class Step:
    """One step that has begun and is not yet published."""

    __slots__ = (
        "begun",
        "captured",
        "compiled",
        "decided",
        "events",
        "forwards",
        "graph_losses",
        "loss_outputs",
        "losses",
        "may_train",
        "mode",
        "module_losses",
        "pending",
        "root",
        "saved_hooks",
        "settings_done",
        "update",
        "updated",
        "weights_done",
    )  # fmt: skip

    def __init__(self, mode: int) -> None:
        self.mode = mode
        self.begun = False  # the session knows of it
        self.decided = mode != _TRAIN  # a backward pass was seen
        self.captured = False  # the session holds values that cannot be taken again
        self.events: list[tuple[int, int, int]] = []
        self.pending: list[tuple[str, int, float | None, int]] = []  # losses before the session was opened
        self.losses: dict[str, int] = {}  # loss names used, with counts
        self.loss_outputs: list[Any] = []  # weak references to outputs of loss modules
        self.module_losses: dict[str, int] = {}
        self.graph_losses: dict[str, int] = {}
        self.forwards = 0
        self.weights_done = False
        self.settings_done = False
        self.update = -1
        self.updated = False
        self.may_train = False  # eval mode, but with gradients: a backward pass would make it a TRAIN step
        self.root: Any = None
        self.saved_hooks = False
        self.compiled = False
