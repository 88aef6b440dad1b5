"""Base class of rules. A rule for smdebug runs by `invoke_rule`, or by name as a rule of Luff: ``luff check
--rules``.
"""

from __future__ import annotations

import os
from typing import Any

from luff import rule as luff_rule
from luff import trial as luff_trial
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
from luff.compat.smdebug.trials.luff_trial import LuffTrial
from luff.errors import OutOfRangeError

__all__ = ["NOT_THERE", "Rule"]

#: Errors which say that a step lacks what a rule reads; the rule continues with the next step.
NOT_THERE = (TensorUnavailableForStep, StepUnavailable, TensorUnavailable)


def _as_smdebug(trial: Any) -> Any:
    """Returns the trial with smdebug's API, also if Luff passes one of its own."""
    if isinstance(trial, luff_trial.Trial):
        return LuffTrial(os.path.basename(trial.path.rstrip("/")), trial.path, opened=trial)
    return trial


class Rule(luff_rule.Rule):
    """Base class: derive from it and define `invoke_at_step`.

    Parameters
    ----------
    base_trial
        The trial that the rule reads.
    action_str
        Actions as JSON, carried out when the condition is met. The older order of arguments, with `other_trials`
        second, also works.
    other_trials
        Further trials.
    """

    def __init__(self, base_trial: Any, action_str: Any = "", other_trials: Any = None) -> None:
        if action_str is not None and not isinstance(action_str, str):
            action_str, other_trials = other_trials if isinstance(other_trials, str) else "", action_str
        super().__init__()
        self.other_trials = list(other_trials or ())
        self.base_trial = base_trial
        self.logger = get_logger()
        self.actions = Actions(action_str or "", rule_name=self.rule_name)
        self.report: Any = {
            "RuleTriggered": 0,
            "Violations": 0,
            "Details": {},
            "Datapoints": 0,
            "RuleParameters": "",
        }

    @property
    def base_trial(self) -> Any:
        """The trial that the rule reads."""
        return self._base_trial

    @base_trial.setter
    def base_trial(self, trial: Any) -> None:
        self._base_trial = _as_smdebug(trial)
        self.req_tensors = RequiredTensors(self._base_trial, self.other_trials)

    @property
    def trials(self) -> list[Any]:
        """All trials: `base_trial` first, then the others."""
        return [self.base_trial, *self.other_trials]

    def set_required_tensors(self, step: int) -> None:
        """Declares what is needed at a global step, by ``self.req_tensors.add``."""

    def invoke_at_step(self, step: int) -> bool:
        """Returns whether the condition is met at a global step."""
        raise NotImplementedError(f"{self.rule_name} has no invoke_at_step")

    def _met(self, step: int) -> bool:
        self.req_tensors.clear()
        self.set_required_tensors(step)
        self.req_tensors.fetch()
        return bool(self.invoke_at_step(step))

    def invoke(self, step: int) -> None:
        """Waits for a step and evaluates it.

        Raises
        ------
        RuleEvaluationConditionMet
            If the condition is met; the actions have been carried out.
        """
        self.base_trial.wait_for_steps([step])
        with no_refresh(self.trials):
            met = self._met(step)
        if met:
            self.actions.invoke()
            raise RuleEvaluationConditionMet(self.rule_name, step)

    def _step(self, view: luff_rule.StepView) -> list[tuple[str, Any]]:
        """Evaluates a step for Luff; raises an error if the step does not hold what the rule reads."""
        self._view, self._told = view, []
        self.base_trial.refresh_data()
        try:
            with no_refresh(self.trials):
                met = self._met(view.step)
        except (*NOT_THERE, StepNotYetAvailable) as error:
            raise OutOfRangeError(str(error)) from error
        if met:
            text = self.message or f"the condition of {self.rule_name} is met"
            finding = luff_rule.Finding(text, severity=self.severity, mode=view.mode)
            luff_rule.Rule.report(self, finding)
        return self._told
