"""Errors of jobs."""

from __future__ import annotations

from luff.errors import LuffError

__all__ = ["UnexpectedStatusException"]


class UnexpectedStatusException(LuffError):
    """A job that was waited for has failed.

    Attributes
    ----------
    actual_status
        "Failed".
    """

    def __init__(self, message: str, allowed_statuses: list[str], actual_status: str) -> None:
        super().__init__(message)
        self.allowed_statuses = allowed_statuses
        self.actual_status = actual_status
