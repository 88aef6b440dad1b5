"""Runs a rule over the steps of its trial."""

from __future__ import annotations

from typing import Any

from luff.compat.smdebug.core.logger import get_logger
from luff.compat.smdebug.exceptions import NoMoreProfilerData, RuleEvaluationConditionMet
from luff.compat.smdebug.rules.rule import NOT_THERE

__all__ = ["invoke_rule"]


def invoke_rule(
    rule_obj: Any, start_step: int | None = 0, end_step: int | None = None, raise_eval_cond: bool = False
) -> None:
    """Evaluates each global step from `start_step` to `end_step` (exclusive), waiting for steps that are still to
    come.

    Raises
    ------
    RuleEvaluationConditionMet
        With `raise_eval_cond`, if the condition is met.
    NoMoreData
        If the training is over and there is no further step.
    """
    step = start_step or 0
    logger = get_logger()
    while end_step is None or step < end_step:
        try:
            rule_obj.invoke(step)
        except NOT_THERE as error:
            logger.debug("%s", error)
        except RuleEvaluationConditionMet as error:
            if raise_eval_cond:
                raise
            logger.info("%s", error)
            if error.end_of_rule:
                break
        except NoMoreProfilerData as error:
            logger.info("%s", error)
            break
        step += 1
