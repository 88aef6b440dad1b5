"""`luff show` lists actions, `luff rules explain` describes the user's own rules, and rules need little in total."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import luff as package
import pytest
from luff import _core
from luff._codes import Mode, Role

from .conftest import Luff

_RULE = '''
import luff


class LossAbove(luff.Rule):
    """The loss is above a limit.

    A second line,\tand \x1b[31mno colour\x1b[0m.
    """

    needs = [{"include": [r"^gradient/fc"], "include_roles": ["gradient"], "save_interval": 50}]

    def __init__(self, base_trial=None, limit: float = 5.0):
        super().__init__(base_trial)
        self.limit = limit

    def on_step(self, view):
        return None


class Needy(luff.Rule):
    def __init__(self, base_trial, name: str):
        super().__init__(base_trial)

    def on_step(self, view):
        return None
'''


def test_actions_of_a_run(luff: Luff) -> None:
    config = luff.tmp / "luff.toml"
    config.write_text(
        f"""[[action]]
kind = "stop"

[[action]]
kind = "command"
name = "note it"
argv = ["true"]
dry_run = false
limit = 1
rules = ["NonFinite"]

[[action]]
kind = "command"
name = "broken"
argv = [{json.dumps(sys.executable)}, "-c", "raise SystemExit(3)"]
dry_run = false
rules = ["NonFinite"]
"""
    )
    job = luff.run("steps.py", "--config", str(config), arguments=("--nan-at", "30", "--steps", "60"))
    assert job.code == 0, job.stderr
    code, out, err = luff("show", str(job.run), "--json")
    assert code == 0, err
    shown = json.loads(out)
    actions = {action["action"]: action for action in shown["actions"]}
    assert set(actions) == {"stop", "note it", "broken"}
    ids = {finding["id"]: finding["rule"] for finding in shown["finding_list"]}
    for action in actions.values():
        assert ids[action["finding"]] == action["rule"]
        assert 0 < action["begun_unix_ns"] <= action["unix_ns"]
    assert (actions["stop"]["state"], actions["stop"]["dry_run"]) == ("dry_run", True)
    assert (actions["note it"]["state"], actions["note it"]["rule"]) == ("done", "NonFinite")
    assert (actions["broken"]["state"], actions["broken"]["kind"]) == ("failed", "command")
    code, out, err = luff("show", str(job.run))
    assert code == 0, err
    lines = [line for line in out.splitlines() if "because of" in line]
    assert len(lines) == len(shown["actions"])
    [done] = [line for line in lines if "command 'note it' because of NonFinite" in line]
    assert done.endswith("done: exit code 0")
    assert any("dry run" in line for line in lines)
    # A run without actions does not mention them.
    (job.run / "rules" / "luff" / "actions.jsonl").unlink()
    code, out, err = luff("show", str(job.run))
    assert code == 0, err
    assert "  actions " not in out


def test_a_stop_is_listed_with_its_step(luff: Luff) -> None:
    job = luff.run(
        "steps.py",
        "--on-finding",
        "stop",
        arguments=("--nan-at", "30", "--steps", "100000", "--sleep", "0.005"),
    )
    assert job.code == 76, job.stderr
    _, out, _ = luff("show", str(job.run), "--json")
    [stop] = [action for action in json.loads(out)["actions"] if action["kind"] == "stop"]
    assert stop["rule"] == "NonFinite"
    assert stop["state"] in ("committed", "carried_out")
    with package.open_trial(job.run) as trial:
        assert stop["train_step"] == trial.steps("TRAIN")[-1] + 1


def _explain(luff: Luff, *arguments: str) -> tuple[int, str, str]:
    return luff("rules", "explain", *arguments, LUFF_PYTHON=sys.executable)


def test_a_rule_of_the_users_is_explained(luff: Luff) -> None:
    file = luff.tmp / "checks.py"
    file.write_text(_RULE)
    code, out, err = _explain(luff, f"{file}:LossAbove")
    assert code == 0, err
    assert "The loss is above a limit." in out
    assert "A second line" in out
    assert "\x1b" not in out
    [limit] = [line for line in out.splitlines() if line.startswith("  limit")]
    assert limit.split() == ["limit", "5.0"]
    assert "^gradient/fc" in out
    assert f"luff run --rules {file}:LossAbove:limit=5.0" in out
    code, out, err = _explain(luff, f"{file}:LossAbove", "--json")
    assert code == 0, err
    told = json.loads(out)
    assert told["name"] == "LossAbove"
    assert told["text"].startswith("The loss is above a limit.\n\nA second line")
    assert [(p["name"], p["luff"]) for p in told["parameters"]] == [("limit", "5.0")]
    assert len(told["needs"]) == 1


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (":Nothing", "Nothing"),
        (":Needy", "name"),
        (":LossAbove:limt=3", "limit"),
        (":LossAbove,all", "one rule"),
    ],
)
def test_what_cannot_be_explained_is_told(luff: Luff, rule: str, message: str) -> None:
    file = luff.tmp / "checks.py"
    file.write_text(_RULE)
    code, out, err = _explain(luff, f"{file}{rule}")
    assert code == 2
    assert message in err
    assert out == ""


def test_what_all_rules_need_leaves_most_steps_alone(luff: Luff, tmp_path: Path) -> None:
    """What rules need in other frameworks must not make a hook look at each call of a module at every step."""
    code, out, err = luff("rules", "--capture")
    assert code == 0, err
    session = _core.Session.open(str(tmp_path / "run"), worker=0, config_json=out)
    seen = dict.fromkeys(
        (Role.INPUT, Role.OUTPUT, Role.LOSS_INPUT, Role.LABEL, Role.OPTIMIZER_STATE, Role.BUFFER), 0
    )
    for step in range(64, 128):
        session.begin_step(int(Mode.TRAIN), step)
        for role in seen:
            seen[role] += session.due_role(int(role)) != 0
        session.abandon_step()
    session.close(1, 5.0)
    assert seen[Role.INPUT] <= 16
    assert seen[Role.OUTPUT] <= 16
    assert seen[Role.LOSS_INPUT] == seen[Role.LABEL] == 0
    assert seen[Role.OPTIMIZER_STATE] == seen[Role.BUFFER] == 0
