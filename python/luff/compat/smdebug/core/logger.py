"""The logger named smdebug. SMDEBUG_LOG_* set its level and place; each message appears at most three times."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections import Counter

from luff.compat.smdebug.core.config_constants import LOG_DUPLICATION_THRESHOLD

__all__ = ["DuplicateLogFilter", "get_logger"]

_MOST_REMEMBERED = 4096
_LEVELS = ("debug", "info", "warning", "error", "critical")


class DuplicateLogFilter(logging.Filter):
    """Lets each message pass a few times."""

    def __init__(self, repeat_threshold: int = LOG_DUPLICATION_THRESHOLD) -> None:
        super().__init__()
        self.repeat_threshold = repeat_threshold
        self.msgs: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether the message passes."""
        text = str(record.msg)
        if len(self.msgs) > _MOST_REMEMBERED:
            self.msgs.clear()
        self.msgs[text] += 1
        return self.msgs[text] <= self.repeat_threshold


class _BelowErrors(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno < logging.ERROR


_made: logging.Logger | None = None


def get_logger(name: str = "smdebug") -> logging.Logger:
    """Returns the logger, which the first call makes."""
    global _made
    if _made is not None:
        return _made
    logger = logging.getLogger(name)
    level = os.environ.get("SMDEBUG_LOG_LEVEL", "info").lower()
    if level == "off":
        logger.disabled = True
    logger.setLevel(level.upper() if level in _LEVELS else "INFO")
    context = os.environ.get("SMDEBUG_LOG_CONTEXT", f"{socket.gethostname()}:{os.getpid()}")
    layout = logging.Formatter(
        f"[%(asctime)s.%(msecs)03d {context} %(levelname)s %(filename)s:%(lineno)d] %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
    )
    places: list[logging.Handler] = [logging.StreamHandler(sys.stdout)]
    if os.environ.get("SMDEBUG_LOG_ALL_TO_STDOUT", "TRUE").lower() == "false":
        places[0].addFilter(_BelowErrors())
        errors = logging.StreamHandler(sys.stderr)
        errors.setLevel(logging.ERROR)
        places.append(errors)
    path = os.environ.get("SMDEBUG_LOG_PATH")
    if path:
        places.append(logging.FileHandler(path, delay=True))
    for place in places:
        place.setFormatter(layout)
        logger.addHandler(place)
    logger.addFilter(DuplicateLogFilter())
    logger.propagate = False
    _made = logger
    return logger
