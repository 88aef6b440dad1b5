"""Typed dictionaries that a trial returns for steps, workers, gaps and events."""

from __future__ import annotations

from typing import TypedDict

__all__ = ["Event", "Gap", "StepInfo", "Worker"]


class StepInfo(TypedDict):
    """Numbers of a step."""

    global_step: int
    mode_step: int
    update: int  # updates before the step
    mode: str
    wall_unix_ns: int  # when it ended
    duration_ns: int


class Worker(TypedDict):
    """State of a worker."""

    worker: int
    alive: bool
    ended: bool
    reason: str  # why it ended, e.g. "completed"; empty while it runs
    last_step: int  # -1: none
    last_train_step: int
    heartbeat_unix_ns: int


class Gap(TypedDict):
    """Something that was not recorded."""

    worker: int
    tensor: str  # empty if the gap is not about one tensor
    collection: str  # empty if it is not about a collection
    reason: str  # e.g. "pool full"
    forms: str  # e.g. "raw"
    count: int
    bytes: int
    first_step: int
    last_step: int


class _Happened(TypedDict):
    step: int  # global
    worker: int
    kind: str


class Event(_Happened, total=False):
    """An event of the training loop. Events recorded as JSON have their own keys instead of the last three."""

    subject: int  # number of a module, an optimizer or the like, depending on the kind
    argument: int
    since_step_ns: int
