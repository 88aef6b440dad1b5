"""What who judges runs of a bucket knows of one of them."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from luff.remote._spool import GONE_S

if TYPE_CHECKING:
    from luff.remote._commits import Ledger
    from luff.remote._spool import Spool
    from luff.remote._store import Store

QUIET_LOOK_S = 60.0  # of a run whose heads do not change, or that its host judges
_LATE_LOOK_S = 10.0
_FAILED_LOOK_S = 600.0  # of a run that cannot be judged as it is


class JudgedRun:
    """What is known of a run. One thread at a time works on it."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        # "new"; "open": it has a copy; "elsewhere": its host judges it; "over": judged to its end; "late": also, but
        # what another judge has committed is not known to be acted on; "failed": it cannot be judged as it is.
        self.state = "new"
        self.heads: tuple[tuple[str, str], ...] = ()  # names and etags in the list
        self.looked: tuple[tuple[str, str], ...] = ()  # those at the last look
        self.modified_unix_ns = 0
        self.looked_at = float("-inf")
        self.queue: deque[dict[str, Any]] = deque()
        self.busy = False
        self.failing = False
        self.refused = False  # and for a reason that does not pass by itself
        self.retry_at, self.pause = 0.0, 0.0
        self.spool: Spool | None = None
        self.ledger: Ledger | None = None
        self.store: Store | None = None
        self.steps = 0
        self.judged: dict[Any, int] | None = None  # all rows are, but perhaps more come: what there was then
        self.ended: dict[int, int] = {}  # sequences of the heads once all uploaders had ended
        self.sequences: dict[int, int] = {}
        self.changed_at = time.monotonic()
        self.saved_at, self.saved = time.monotonic(), 0
        self.found, self.card_at = False, float("-inf")  # something that the card does not say
        self.told: set[str] = set()

    def is_due(self, now: float, pace_s: float) -> bool:
        """Whether something is to be done. `pace_s`: between two looks."""
        if self.busy or now < self.retry_at:
            return False
        passed = now - self.looked_at
        if self.state == "elsewhere" and not self.queue:
            return self.heads != self.looked and passed > QUIET_LOOK_S
        if self.state == "failed" and not self.queue:
            return self.heads != self.looked and passed > _FAILED_LOOK_S
        if self.queue or self.failing:
            return True
        if self.heads != self.looked:
            return passed >= pace_s
        return passed > {"open": QUIET_LOOK_S, "late": _LATE_LOOK_S}.get(self.state, float("inf"))

    def is_at_rest(self) -> bool:
        """Nothing more is expected of it for now."""
        if self.busy or self.queue:
            return False
        if self.state in ("over", "elsewhere", "failed"):
            return True
        if self.state != "new":
            return False
        if self.failing:
            return self.refused
        # Its job has died before it published anything.
        return self.heads == self.looked and time.monotonic() - self.changed_at > GONE_S
