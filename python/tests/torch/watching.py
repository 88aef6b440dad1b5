"""Watches all trainings of a process, as ``luff run`` would, with a fake session or with the real one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fake_session import DEFAULT_ROLES, FakeSession
from luff._codes import Role


def trace() -> None:
    """Traces the following steps, unless a trace is being made."""
    import luff

    why = luff.trace(10)
    assert why in ("", "a trace is being made"), why


def watch(run: str | None, roles: str) -> Callable[[], dict[str, Any]]:
    """Starts watching; the returned function ends it and reports what happened."""
    config: dict[str, Any] = {}
    if roles == "all":
        on_request = [{"name": name} for name in ("output_gradients", "input_gradients", "attention")]
        config = {"save_all": True, "save": {"save_interval": 1}, "collections": on_request}
    if roles == "modules":
        from luff.torch.capture import _module_times

        config = {"profile": "full"}
        _module_times.FIRST, _module_times.EVERY = 0, 1
    if roles == "traced":
        from luff import _tracer

        # However much memory and time this machine has left.
        _tracer._MOST_TRACES, _tracer._MOST_BYTES = 1000, 1 << 40
        _tracer._LEAST_MEMORY, _tracer._LEAST_SHARE = 0, 0.0
    os.environ["LUFF_SESSION"] = json.dumps({"run": run or "/nowhere", "config": config})
    import luff.torch
    from luff import _base_hook

    fake = FakeSession(frozenset(Role) if roles == "all" else DEFAULT_ROLES)
    if run is None:
        _base_hook.open_session = lambda options, rank: fake  # type: ignore[assignment]
    hook = luff.torch.attach_to_all()
    assert hook is not None

    def finish() -> dict[str, Any]:
        hook.close()
        return {
            "errors": hook.guard.count,
            "places": hook.guard.first,
            "misuse": fake.misuse,
            "steps": len(fake.steps),
            "train": len(fake.train()),
            "timed": fake.timed,
            "traces": 0 if run is None else len(list(Path(run).glob("w0000/traces/*.json"))),
            "health": hook.health(),
        }

    return finish
