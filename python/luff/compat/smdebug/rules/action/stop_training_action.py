"""Stops the training."""

from __future__ import annotations

from luff.compat.smdebug.core.logger import get_logger

__all__ = ["StopTrainingAction"]


class StopTrainingAction:
    """Stops the job with a given name. It cannot reach jobs in the cloud; the log says what would be done."""

    def __init__(self, rule_name: str, training_job_prefix: str) -> None:
        self._rule_name = rule_name
        self._training_job_prefix = training_job_prefix

    def invoke(self, message: str | None = None) -> None:  # noqa: ARG002
        """Logs what would be done."""
        get_logger().warning(
            "rule %s fired; the job %s is not stopped from here: luff run --on-finding stop does (docs/actions.md)",
            self._rule_name, self._training_job_prefix,
        )  # fmt: skip
