"""Rules for smdebug, run by its own API and as rules of Luff."""

from __future__ import annotations

from pathlib import Path

import luff.testing
import numpy as np
import pytest
from luff._rules import load
from luff.compat.smdebug import CollectionManager, Rule, create_trial, invoke_rule, modes
from luff.compat.smdebug.core.access_layer.utils import training_has_ended
from luff.compat.smdebug.core.writer import FileWriter
from luff.compat.smdebug.exceptions import NoMoreData, RuleEvaluationConditionMet, SMDebugValueError
from luff.compat.smdebug.rules.action.action import Actions

CUSTOM = """
from smdebug.exceptions import TensorUnavailableForStep
from smdebug.rules.rule import Rule


class TooSmall(Rule):
    def __init__(self, base_trial, threshold=0.5):
        super().__init__(base_trial, other_trials=None)
        self.threshold = float(threshold)

    def set_required_tensors(self, step):
        for name in self.base_trial.tensor_names(regex="^gradient"):
            self.req_tensors.add(name, steps=[step])

    def invoke_at_step(self, step):
        for tensor in self.req_tensors.get():
            if tensor.reduction_value(step, "mean", abs=True) < self.threshold:
                return True
        return False
"""


class Above(Rule):
    def __init__(self, base_trial, limit=2.0, **kwargs):
        super().__init__(base_trial, **kwargs)
        self.limit = limit
        self.seen = []

    def invoke_at_step(self, step):
        self.seen.append(step)
        return self.base_trial.tensor("w").value(step)[0] > self.limit


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    manager = CollectionManager()
    manager.export(str(tmp_path), "worker_0_collections.json")
    for step in (0, 2, 4, 6):
        with FileWriter(trial_dir=str(tmp_path), step=step, worker="worker_0") as writer:
            if step != 4:
                writer.write_tensor(np.array([float(step)]), "w", mode=modes.TRAIN, mode_step=step)
            else:
                writer.write_tensor(np.array([0.0]), "v", mode=modes.TRAIN, mode_step=step)
    training_has_ended(str(tmp_path))
    return tmp_path


def test_every_step_is_looked_at_until_the_training_is_over(finished: Path):
    rule = Above(create_trial(str(finished)))
    with pytest.raises(NoMoreData):
        invoke_rule(rule)
    assert rule.seen == [0, 2, 4, 6]


def test_the_condition_is_raised_on_request(finished: Path):
    rule = Above(create_trial(str(finished)))
    with pytest.raises(RuleEvaluationConditionMet) as met:
        invoke_rule(rule, raise_eval_cond=True)
    assert (met.value.rule_name, met.value.step) == ("Above", 6)
    invoke_rule(rule, start_step=0, end_step=7)


def test_the_older_order_of_arguments_is_understood(finished: Path):
    trial, other = create_trial(str(finished)), create_trial(str(finished), name="other")

    class Old(Rule):
        def __init__(self, base_trial, other_trials=None):
            super().__init__(base_trial, other_trials)

    class New(Rule):
        def __init__(self, base_trial, other_trials=None):
            super().__init__(base_trial, "", other_trials)

    assert Old(trial, [other]).trials == New(trial, [other]).trials == [trial, other]
    assert Old(trial).trials == [trial]


def test_an_unchanged_rule_is_a_rule_of_luffs(tmp_path: Path):
    file = tmp_path / "custom.py"
    file.write_text(CUSTOM)
    trial = luff.testing.trial({"gradient/w": [[2.0, 2.0], [0.1, -0.1], [3.0, 3.0]], "loss": [1.0, 2.0, 3.0]})
    kind = load(f"{file}:TooSmall")
    found = luff.testing.findings(kind(None), trial)
    assert [finding.step for finding in found] == [1]
    assert found[0].rule == "TooSmall"
    assert [f.step for f in luff.testing.findings(kind(None, threshold="2.5"), trial)] == [0]


def test_actions_that_lack_something_are_left_out():
    made = Actions(
        '[{"Name": "StopTraining", "training_job_prefix": "My-Job"}, {"name": "sms"}, {"name": "x"}]', "r"
    )
    assert [action._training_job_prefix for action in made._actions] == ["My-Job"]
    made.invoke()
    with pytest.raises(SMDebugValueError, match="rule r: found no JSON"):
        Actions("{", "r")
