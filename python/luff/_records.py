"""Typed dictionaries that a trial returns for steps, workers, gaps, events and findings."""

from __future__ import annotations

from typing import Any, TypedDict

__all__ = ["Event", "Finding", "Gap", "StepInfo", "Worker"]


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


class Finding(TypedDict):
    """What a rule found (docs/spec/findings.md). Numbers that are not finite are texts: ``"NaN"``, ``"Infinity"``."""

    id: str
    rule: str
    cause: str
    severity: str  # "stop": further training is wasted; "warn": somebody should know
    tensor: str  # the one that leads; empty if it is not about one
    other_tensors: list[str]  # also affected, at most 20
    other_count: int  # affected beyond those
    mode: str
    worker: int
    step: int  # of the mode, at which it was seen first
    global_step: int
    update: int
    since_step: int  # of the mode, at which it began
    last_step: int  # newest step of the mode at which it held
    healed: bool
    leader: str  # id of the finding that this one follows from; empty if it leads
    forecast: bool
    lead_steps: int
    what: str
    why: str
    remedy: str
    causes: list[str]
    evidence: dict[str, Any]
    series: list[list[Any]]  # pairs of step and value
    threshold: str
    page: str
