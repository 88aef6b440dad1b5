"""Actions as the JSON of a rule describes them."""

from __future__ import annotations

import json
from typing import Any

from luff.compat.smdebug.core.logger import get_logger
from luff.compat.smdebug.exceptions import SMDebugValueError
from luff.compat.smdebug.rules.action.message_action import MessageAction
from luff.compat.smdebug.rules.action.stop_training_action import StopTrainingAction

__all__ = ["Actions", "TrainingActions"]


class TrainingActions:
    """Names of actions."""

    EMAIL = "email"
    SMS = "sms"
    STOPTRAINING = "stoptraining"


class Actions:
    """The actions of a rule; an action with a missing key or an unknown name is reported and skipped.

    Parameters
    ----------
    actions_str
        One object or a list of objects, as JSON. Empty means none.
    rule_name
        Name of the rule.
    """

    def __init__(self, actions_str: str = "", rule_name: str = "") -> None:
        self._actions: list[Any] = []
        self._logger = get_logger()
        text = (actions_str or "").strip()
        if not text:
            return
        try:
            found = json.loads(text)
        except ValueError as error:
            raise SMDebugValueError(f"rule {rule_name}: found no JSON ({error}), expected actions") from None
        for item in found if isinstance(found, list) else [found]:
            self._add(item, rule_name)

    def _add(self, item: Any, rule_name: str) -> None:
        given = {str(key).lower(): value for key, value in item.items()} if isinstance(item, dict) else {}
        name = str(given.get("name", "")).lower()
        if name == TrainingActions.STOPTRAINING:
            if "training_job_prefix" in given:
                self._actions.append(StopTrainingAction(rule_name, str(given["training_job_prefix"])))
                return
            missing = "training_job_prefix"
        elif name in (TrainingActions.EMAIL, TrainingActions.SMS):
            if "endpoint" in given:
                self._actions.append(MessageAction(rule_name, name, str(given["endpoint"])))
                return
            missing = "endpoint"
        else:
            self._logger.warning(
                "rule %s: found action %r, expected stoptraining, email or sms", rule_name, item
            )
            return
        self._logger.warning("rule %s: action %s has no %s, so it is left out", rule_name, name, missing)

    def invoke(self) -> None:
        """Carries out all actions."""
        for action in self._actions:
            action.invoke()
