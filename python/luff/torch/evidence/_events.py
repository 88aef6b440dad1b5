"""JSON events that wait for the end of the step."""

from __future__ import annotations

import json
from typing import Any

from luff._hook import Session

__all__ = ["WaitingEvents"]


class WaitingEvents:
    """Buffers the JSON events of one kind of evidence until they are recorded.

    Attributes
    ----------
    waiting
        The events; each step looks at it, so it is no property. Always the same list.
    """

    def __init__(self) -> None:
        self.waiting: list[dict[str, Any]] = []

    def record(self, session: Session) -> None:
        """Records the buffered events."""
        waiting = self.waiting.copy()
        self.waiting.clear()
        for event in waiting:
            session.event_json(json.dumps(event))
