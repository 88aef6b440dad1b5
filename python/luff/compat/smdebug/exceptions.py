"""The errors of smdebug's API. All derive from `SMDebugError`; messages say what was found and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from luff._nearest import hint
from luff.compat.smdebug.core.modes import ModeKeys

__all__ = [
    "IndexReaderException",
    "InsufficientInformationForRuleInvocation",
    "InvalidCollectionConfiguration",
    "InvalidWorker",
    "MissingCollectionFiles",
    "NoMoreData",
    "NoMoreProfilerData",
    "RuleEvaluationConditionMet",
    "SMDebugCustomerError",
    "SMDebugError",
    "SMDebugNotImplementedError",
    "SMDebugRuntimeError",
    "SMDebugTypeError",
    "SMDebugValueError",
    "ShapeUnavailableForStep",
    "StepNotYetAvailable",
    "StepUnavailable",
    "TensorUnavailable",
    "TensorUnavailableForStep",
]


def _mode(mode: Any) -> str:
    return getattr(mode, "name", str(mode))


class SMDebugError(Exception):
    """Base class of all errors."""


class SMDebugCustomerError(SMDebugError):
    """A mistake in what the user configured."""


class SMDebugTypeError(SMDebugError, TypeError):
    """A value of the wrong type."""


class SMDebugRuntimeError(SMDebugError, RuntimeError):
    """An operation that is impossible in the current state."""


class SMDebugNotImplementedError(SMDebugError, NotImplementedError):
    """Something that is not implemented."""


class SMDebugValueError(SMDebugError, ValueError):
    """A value that is not allowed."""


class InvalidCollectionConfiguration(SMDebugError):
    """A collection that can match nothing."""

    def __init__(self, c_name: str) -> None:
        super().__init__(c_name)
        self.c_name = c_name

    def __str__(self) -> str:
        return (
            f"collection {self.c_name!r} has neither a regular expression nor a tensor name; "
            f"call hook.get_collection({self.c_name!r}).include(...) before the first step"
        )


class StepNotYetAvailable(SMDebugError):
    """A step that may still be written."""

    def __init__(self, step: int, mode: Any) -> None:
        super().__init__(step, mode)
        self.step, self.mode = step, mode

    def __str__(self) -> str:
        return f"step {self.step} of mode {_mode(self.mode)} is not there yet"


class StepUnavailable(SMDebugError):
    """A step that was not saved and will not be."""

    def __init__(self, step: int, mode: Any) -> None:
        super().__init__(step, mode)
        self.step, self.mode = step, mode

    def __str__(self) -> str:
        return (
            f"step {self.step} of mode {_mode(self.mode)} was not saved; trial.steps() names those that were"
        )


class MissingCollectionFiles(SMDebugError):
    """Collections files are missing although the training is over."""

    def __str__(self) -> str:
        return "the training has ended, and collections files of some workers are missing" + (
            f": {self.args[0]}" if self.args else ""
        )


class IndexReaderException(SMDebugError):
    """A file of the index that cannot be used."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class TensorUnavailable(SMDebugError):
    """A tensor that was never saved."""

    def __init__(self, tname: str, names: Sequence[str] = ()) -> None:
        super().__init__(tname)
        self.tname = tname
        self._names = names

    def __str__(self) -> str:
        near = hint(self.tname, self._names)
        return f"tensor {self.tname!r} was not saved at any step{near}; trial.tensor_names() names those that were"


class TensorUnavailableForStep(SMDebugError):
    """A tensor that has no value at a step."""

    def __init__(
        self, tname: str, step: int, mode: Any = ModeKeys.GLOBAL, has_reductions: bool = False
    ) -> None:
        super().__init__(tname, step, mode, has_reductions)
        self.tname, self.step, self.mode, self.has_reductions = tname, step, mode, has_reductions

    def __str__(self) -> str:
        text = f"tensor {self.tname!r} has no value at step {self.step} of mode {_mode(self.mode)}"
        if self.has_reductions:
            text += "; reductions of it were saved, see tensor.reduction_values(step)"
        return text


class ShapeUnavailableForStep(SMDebugError):
    """A tensor of which neither shape nor value was saved at a step."""

    def __init__(self, tname: str, step: int, mode: Any = ModeKeys.GLOBAL) -> None:
        super().__init__(tname, step, mode)
        self.tname, self.step, self.mode = tname, step, mode

    def __str__(self) -> str:
        return f"the shape of {self.tname!r} was not saved at step {self.step} of mode {_mode(self.mode)}"


class InvalidWorker(SMDebugError):
    """A worker that the trial does not have."""

    def __init__(self, worker: Any, workers: Sequence[str] = ()) -> None:
        super().__init__(worker, tuple(workers))
        self.worker = worker
        self.workers = tuple(workers)

    def __str__(self) -> str:
        known = f" of this tensor; there are {', '.join(self.workers[:8])}" if self.workers else ""
        return f"there is no worker {self.worker!r}{known or '; trial.workers() names those that there are'}"


class NoMoreData(SMDebugError):
    """The training is over, and did not reach the step."""

    def __init__(self, step: int, mode: Any = ModeKeys.GLOBAL, last_step: int = -1) -> None:
        super().__init__(step, mode, last_step)
        self.step, self.mode, self.last_step = step, mode, last_step
        self.msg = (
            f"the training has ended before step {step} of mode {_mode(mode)}; the last one is {last_step}"
        )

    def __str__(self) -> str:
        return self.msg


class NoMoreProfilerData(SMDebugError):
    """The job is over, and did not reach the time."""

    def __init__(self, timestamp: Any) -> None:
        super().__init__(timestamp)
        self.timestamp = timestamp
        self.msg = f"the job has ended before {timestamp}"

    def __str__(self) -> str:
        return self.msg


class RuleEvaluationConditionMet(SMDebugError):
    """The condition of a rule is met."""

    def __init__(self, rule_name: str, step: int, end_of_rule: bool = False) -> None:
        super().__init__(rule_name, step, end_of_rule)
        self.rule_name, self.step, self.end_of_rule = rule_name, step, end_of_rule

    def __str__(self) -> str:
        return f"rule {self.rule_name}: its condition is met at step {self.step}"


class InsufficientInformationForRuleInvocation(SMDebugError):
    """A rule lacks information that it needs."""

    def __init__(self, rule_name: str, message: str) -> None:
        super().__init__(rule_name, message)
        self.rule_name, self.message = rule_name, message

    def __str__(self) -> str:
        return f"rule {self.rule_name} lacks what it needs: {self.message}"
