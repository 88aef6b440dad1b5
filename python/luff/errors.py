"""The errors that Luff raises.

Each status code of the C++ library has one class. All derive from `LuffError`; each also derives from the
built-in class that a caller who knows nothing of Luff would catch. Messages say what was found, what was
expected, where, and what to do.
"""

from __future__ import annotations

__all__ = [
    "AlreadyExistsError",
    "CancelledError",
    "CorruptionError",
    "DeadlineExceededError",
    "FailedPreconditionError",
    "InternalError",
    "InvalidArgumentError",
    "IoError",
    "LuffError",
    "NotFoundError",
    "OutOfRangeError",
    "ResourceExhaustedError",
    "StopTraining",
    "TrialStopped",
    "UnavailableError",
    "UnsupportedVersionError",
]


class LuffError(Exception):
    """Base class of all errors that Luff raises.

    Attributes
    ----------
    code
        Name of the status code, e.g. ``"not found"``; the same in C++ and in JSON.
    """

    code: str = "internal error"


class InvalidArgumentError(LuffError, ValueError):
    """An argument is malformed or contradicts another."""

    code = "invalid argument"


class NotFoundError(LuffError, LookupError):
    """A run, tensor, collection, step or rule of that name does not exist."""

    code = "not found"


class AlreadyExistsError(LuffError, FileExistsError):
    """The thing to create already exists."""

    code = "already exists"


class OutOfRangeError(LuffError, IndexError):
    """A position lies outside the existing range."""

    code = "out of range"


class FailedPreconditionError(LuffError, RuntimeError):
    """The object is not in the state that the call requires, e.g. it was closed."""

    code = "failed precondition"


class CorruptionError(LuffError, ValueError):
    """Stored bytes are damaged; the message names file and offset."""

    code = "corruption"


class UnsupportedVersionError(LuffError, RuntimeError):
    """The run was written by a newer version of the format."""

    code = "unsupported version"


class IoError(LuffError, OSError):
    """The operating system refused to read or write."""

    code = "input/output error"


class ResourceExhaustedError(LuffError, RuntimeError):
    """A budget, a quota or the disk is used up."""

    code = "resource exhausted"


class UnavailableError(LuffError, RuntimeError):
    """Not available now; trying again later may succeed."""

    code = "unavailable"


class DeadlineExceededError(LuffError, TimeoutError):
    """A wait timed out."""

    code = "deadline exceeded"


class CancelledError(LuffError, RuntimeError):
    """The operation was cancelled by its owner."""

    code = "cancelled"


class InternalError(LuffError, RuntimeError):
    """A bug in Luff itself; please report it."""

    code = "internal error"


class StopTraining(SystemExit):
    """Raised at a step boundary in the training process when a finding stops the job.

    It derives from `SystemExit`, so that ``finally`` blocks run and ``except Exception`` does not swallow it.
    """


class TrialStopped(Exception):
    """Raised at the end of `luff.trial_run` when a finding has stopped the trial.

    An ordinary exception, unlike `StopTraining`: a sweep's driver counts the trial as failed, and goes on.

    Attributes
    ----------
    reason
        The finding in words.
    rule
        Name of the rule that stopped the trial; "" if a person did.
    run
        Directory of the trial's run.
    """

    def __init__(self, reason: str, rule: str = "", run: str = "") -> None:
        super().__init__(reason, rule, run)
        self.reason, self.rule, self.run = reason, rule, run

    def __str__(self) -> str:
        return f"stopped by {self.reason}" + (f"; run: {self.run}" if self.run else "")
