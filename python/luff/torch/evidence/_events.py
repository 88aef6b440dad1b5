"""JSON events that wait for the end of the step."""

from __future__ import annotations

import json
from typing import Any

from luff._hook import Session

__all__ = ["WaitingEvents"]


class WaitingEvents:
    """Buffers the JSON events of one kind of evidence until they are recorded. False if it is empty."""

    def __init__(self) -> None:
        self._waiting: list[dict[str, Any]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def record(self, session: Session) -> None:
        """Records the buffered events."""
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            session.event_json(json.dumps(event))
