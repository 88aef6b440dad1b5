"""luff.testing: trials from arrays, rules over them, and the page about own rules."""

from __future__ import annotations

import doctest
import os
import re
from pathlib import Path
from typing import Any

import luff
import luff.rule
import luff.testing
import numpy as np
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "own-rules.md"


class LossAbove(luff.Rule):
    def __init__(self, base_trial: Any = None, limit: float = 5.0) -> None:
        super().__init__(base_trial)
        self.limit = limit

    def on_step(self, view: luff.StepView) -> luff.Finding | None:
        if view.loss is None:
            return None
        if view.loss > self.limit:
            return luff.Finding(f"the loss is {view.loss:.3g}", evidence={"loss": view.loss})
        self.heal()
        return None


class Counts(luff.Rule):
    """Reports at every tenth step that it has seen, even across a restart."""

    seen = 0

    def on_step(self, view: luff.StepView) -> None:
        self.seen += 1
        if self.seen % 10 == 0:
            self.report(luff.Finding(f"{self.seen} steps", cause=f"n{self.seen}"))

    def state(self) -> Any:
        return {"seen": self.seen}

    def restore(self, state: Any) -> None:
        self.seen = state["seen"]


def test_a_trial_from_arrays_holds_what_was_given() -> None:
    w = [np.arange(6, dtype=np.float32).reshape(2, 3) + i for i in range(3)]
    trial = luff.testing.trial(
        {
            "fc.weight": w,
            "gradient/fc.weight": [None, -w[1], w[2]],
            "loss": [3, 2.0, np.nan],
            "lr": [0.1] * 3,
        },
        modes=["EVAL", "TRAIN", "TRAIN"],
        module_types={"fc.weight": "Linear"},
        collections={"mine": "fc"},
        documents={"model": {"models": []}},
    )
    assert trial.outcome == "completed"
    assert trial.steps("TRAIN") == [0, 1]
    assert trial.steps("EVAL") == [0]
    assert np.array_equal(trial.tensor("fc.weight").value(1), w[1])
    assert trial.tensor("fc.weight").summary(2)["l2"] == pytest.approx(np.linalg.norm(w[2]))
    assert trial.tensor("fc.weight").histogram(0)[2].sum() == 6
    assert trial.tensor("gradient/fc.weight").steps() == [1, 2]
    roles = {tensor.name: tensor.role for tensor in trial}
    assert roles == {"fc.weight": "weight", "gradient/fc.weight": "gradient", "loss": "loss", "lr": "scalar"}
    assert trial.tensor("fc.weight").module[1] == "Linear"
    assert "mine" in trial.tensor("gradient/fc.weight").collections
    assert "gradients" in trial.tensor("gradient/fc.weight").collections
    assert trial.scalars("loss")["value"][:2].tolist() == [3.0, 2.0]
    assert trial.document("model") == {"models": []}


def test_the_temporary_run_goes_with_its_trial(tmp_path: Path) -> None:
    trial = luff.testing.trial({"loss": [1.0]})
    path = trial.path
    assert os.path.exists(path)
    del trial
    assert not os.path.exists(path)
    kept = luff.testing.trial({"loss": [1.0]}, path=tmp_path / "run")
    del kept
    assert luff.open_trial(tmp_path / "run").steps() == [0]


def test_mistakes_say_what_is_expected() -> None:
    with pytest.raises(luff.errors.InvalidArgumentError, match="'b' has values for 1 steps, others for 2"):
        luff.testing.trial({"a": [1, 2], "b": [1]})
    with pytest.raises(luff.errors.InvalidArgumentError, match="one of other, weight"):
        luff.testing.trial({"a": [1]}, roles={"a": "nonsense"})
    with pytest.raises(luff.errors.InvalidArgumentError, match="'warn' or 'stop'"):
        luff.Finding("x", severity="fatal")


def test_findings_are_updated_and_healed() -> None:
    trial = luff.testing.trial({"loss": [1.0, 6.0, 7.0, 1.0, 9.0]})
    first, second = luff.testing.findings(LossAbove(), trial)
    assert (first.step, first.since_step, first.last_step, first.healed) == (1, 1, 3, True)
    assert (second.step, second.last_step, second.healed) == (4, 4, False)
    assert first.rule == "LossAbove"
    assert luff.testing.findings(LossAbove(limit=100), trial) == []
    assert [f.step for f in luff.testing.step(LossAbove(), trial, 2)] == [2]


def test_a_rule_sees_no_step_that_comes_later() -> None:
    class Looks(luff.Rule):
        def invoke_at_step(self, step: int) -> bool:
            shown = self.base_trial.steps()
            assert shown == list(range(step + 1))
            assert not self.base_trial.loaded_all_steps or step == 4
            assert self.base_trial.tensor("w").steps() == shown
            return False

    assert luff.testing.findings(Looks(), luff.testing.trial({"w": [np.ones(3)] * 5})) == []


def test_invoke_at_step_is_that_of_the_original() -> None:
    class Large(luff.Rule):
        severity, message = "stop", "gradients are large"

        def __init__(self, base_trial: Any, threshold: float = 10.0, other_trials: Any = None) -> None:
            super().__init__(base_trial, other_trials=other_trials)
            self.threshold = threshold

        def invoke_at_step(self, step: int) -> bool:
            for name in self.base_trial.tensors(collection="gradients"):
                if np.abs(self.base_trial.tensor(name).value(step)).max() > self.threshold:
                    return True
            return False

    trial = luff.testing.trial({"gradient/w": [[1.0], None, [50.0]]})
    (finding,) = luff.testing.findings(Large(None), trial)
    assert (finding.severity, finding.what, finding.global_step) == ("stop", "gradients are large", 2)


@pytest.mark.parametrize("after", [1, 9, 10, 35])
def test_a_restart_changes_nothing(after: int) -> None:
    trial = luff.testing.trial({"loss": [1.0] * 40})
    assert luff.testing.findings(Counts(), trial) == luff.testing.findings(
        Counts(), trial, restart_after=after
    )


def test_a_rule_that_raises_is_not_hidden() -> None:
    class Raises(luff.Rule):
        def on_step(self, view: luff.StepView) -> None:
            raise ZeroDivisionError("here")

    class Lacks(luff.Rule):
        def on_step(self, view: luff.StepView) -> None:
            view.value("nothing of this name")

    trial = luff.testing.trial({"loss": [1.0]})
    with pytest.raises(ZeroDivisionError):
        luff.testing.findings(Raises(), trial)
    assert luff.testing.findings(Lacks(), trial) == []  # missing data are not a mistake of the rule


def test_examples_in_docstrings_hold() -> None:
    for module in (luff.rule, luff.testing):
        names: dict[str, Any] = {"luff": luff, "LossAbove": LossAbove, "__name__": "examples"}
        assert module.__doc__ is not None
        test = doctest.DocTestParser().get_doctest(module.__doc__, names, module.__name__, None, 0)
        runner = doctest.DocTestRunner()
        runner.run(test)
        assert runner.summarize(verbose=False).failed == 0


def test_the_page_holds() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    rule, trial = names["LossOutlier"], names["trial"]
    assert luff.testing.findings(rule(window=10), trial, restart_after=20) == names["found"]
