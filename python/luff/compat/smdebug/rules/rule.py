"""Base of rules. A rule of smdebug's runs by `invoke_rule`, and as a rule of Luff's by name: ``luff check --rules``."""

from __future__ import annotations

from typing import Any

from luff import rule as luff_rule
from luff.compat.smdebug.analysis.utils import no_refresh
from luff.compat.smdebug.core.logger import get_logger
from luff.compat.smdebug.exceptions import (
    RuleEvaluationConditionMet,
    StepNotYetAvailable,
    StepUnavailable,
    TensorUnavailable,
    TensorUnavailableForStep,
)
from luff.compat.smdebug.rules.action.action import Actions
from luff.compat.smdebug.rules.req_tensors import RequiredTensors

__all__ = ["NOT_THERE", "Rule"]

#: What says that a step does not hold what a rule reads; the rule goes on with the next.
NOT_THERE = (TensorUnavailableForStep, StepUnavailable, TensorUnavailable)


class Rule(luff_rule.Rule):
    """Derive from it and write `invoke_at_step`.

    Parameters
    ----------
    base_trial
        The trial.
    action_str
        Actions as JSON, done when the condition is met. The older order, with `other_trials` in the second place,
        is understood.
    other_trials
        Further trials.
    """

    def __init__(self, base_trial: Any, action_str: Any = "", other_trials: Any = None) -> None:
        if action_str is not None and not isinstance(action_str, str):
            action_str, other_trials = other_trials if isinstance(other_trials, str) else "", action_str
        super().__init__(base_trial)
        self.other_trials = list(other_trials or ())
        self.trials = [self.base_trial, *self.other_trials]
        self.req_tensors = RequiredTensors(self.base_trial, self.other_trials)
        self.logger = get_logger()
        self.actions = Actions(action_str or "", rule_name=self.rule_name)
        self.report: Any = {
            "RuleTriggered": 0,
            "Violations": 0,
            "Details": {},
            "Datapoints": 0,
            "RuleParameters": "",
        }

    def set_required_tensors(self, step: int) -> None:
        """Say what is needed at a global step, with ``self.req_tensors.add``."""

    def invoke_at_step(self, step: int) -> bool:
        """Tell whether the condition is met at a global step."""
        raise NotImplementedError(f"{self.rule_name} has no invoke_at_step")

    def _met(self, step: int) -> bool:
        self.req_tensors.clear()
        self.set_required_tensors(step)
        self.req_tensors.fetch()
        return bool(self.invoke_at_step(step))

    def invoke(self, step: int) -> None:
        """Wait for a step and look at it.

        Raises
        ------
        RuleEvaluationConditionMet
            The condition is met; the actions are done.
        """
        self.base_trial.wait_for_steps([step])
        with no_refresh(self.trials):
            met = self._met(step)
        if met:
            self.actions.invoke()
            raise RuleEvaluationConditionMet(self.rule_name, step)

    def _told_of(self, step: int) -> bool:
        """Look at a step that is there; False where it does not hold what the rule reads."""
        try:
            with no_refresh(self.trials):
                return self._met(step)
        except (*NOT_THERE, StepNotYetAvailable):
            return False
