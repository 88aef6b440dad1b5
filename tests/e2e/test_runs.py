"""What happened last night? `luff runs` lists runs with their verdicts; every verb takes a name or `@1`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import luff as package
import pytest

from .conftest import Luff

_SCRIPT = str(Path(__file__).parent / "scripts" / "steps.py")


def train(luff: Luff, *arguments: str, options: tuple[str, ...] = ()) -> int:
    """Trains into the default place; returns the exit code."""
    code, _, _ = luff(
        "run", *options, "--", sys.executable, _SCRIPT, "--steps", "30", "--interval", "0", *arguments
    )
    return code


def rows(luff: Luff, *arguments: str) -> list[str]:
    """Returns the lines of `luff runs`, without the head."""
    code, out, err = luff("runs", *arguments)
    assert code == 0, err
    return out.splitlines()[1:]


def test_a_night_of_runs(luff: Luff) -> None:
    assert luff("runs") == (0, f"no runs yet: {luff.home}/.luff/runs\n", "")
    assert train(luff, "--outputs", "1", options=("--tag", "night", "--tag", "small")) == 0
    assert train(luff, "--outputs", "3", options=("--tag", "night")) == 0
    assert train(luff, "--exit", "4") == 4
    slow = ("--steps", "2000", "--sleep", "0.01")
    assert train(luff, "--nan-at", "12", *slow, options=("--on-finding", "stop")) == 76

    listed = rows(luff)
    assert [line.split()[0] for line in listed] == ["@1", "@2", "@3", "@4"]
    assert "stopped: NonFinite (" in listed[0]
    assert "since step 12" in listed[0]
    assert listed[0].split()[7] == "nan"
    assert "failed: " in listed[1]
    assert listed[2].endswith("ok  (night)")

    assert len(rows(luff, "--where", "verdict = ok")) == 2
    assert len(rows(luff, "--where", "verdict = ok and outputs > 2")) == 1
    assert len(rows(luff, "--where", "rule = NonFinite or nan_at = 12")) == 1
    assert len(rows(luff, "--tag", "night", "--tag", "small")) == 1
    assert "small" not in luff("tag", "@2")[1]
    assert luff("tag", "@2", "odd")[0] == 0
    assert luff("tag", "@2") == (0, "odd\n", "")
    assert [line.split() for line in rows(luff, "--tag", "odd")] == [[*listed[1].split(), "(odd)"]]
    by_loss = [line.split() for line in rows(luff, "--sort", "loss", "--where", "verdict = ok")]
    assert float(by_loss[0][7]) <= float(by_loss[1][7]), by_loss

    # Each verb takes what the table shows.
    name = listed[2].split()[1]
    for verb in (["show"], ["tensors"], ["verify"], ["check"], ["summary", "loss"], ["tail", "--no-follow"]):
        by_name, by_age = luff(verb[0], name, *verb[1:]), luff(verb[0], "@3", *verb[1:])
        assert by_name == by_age, verb
        assert by_name[0] == 0, by_name
    assert "NonFinite" in luff("explain")[1]
    code, _, err = luff("show", "@5")
    assert (code, err) == (2, f"luff: there is no run @5, the oldest one is @4: {luff.home}/.luff/runs\n")

    cards = [json.loads(line) for line in luff("runs", "--json")[1].splitlines()]
    assert [card["verdict"] for card in cards] == ["stopped", "failed", "ok", "ok"]
    stopped = cards[0]
    assert stopped["findings"]["first"]["rule"] == "NonFinite"
    assert stopped["parameters"]["nan_at"] == 12
    assert stopped["command"][1] == _SCRIPT
    assert stopped["versions"]["numpy"]
    assert stopped["host"]
    assert cards[3]["tags"] == ["night", "small"]
    assert cards[3]["scalars"][0]["count"] == 30


def test_a_question_with_a_mistake(luff: Luff) -> None:
    assert train(luff) == 0
    assert luff("runs", "--where", "loss <") == (
        2,
        "",
        "luff: found the end at column 7, expected a value: loss <\n",
    )
    code, out, err = luff("runs", "--where", "los < 3")
    assert (code, out) == (2, "")
    assert err.startswith("luff: no run has a field 'los' (column 1); nearest: loss"), err
    code, _, err = luff("runs", "nowhere")
    assert (code, err) == (2, f"luff: there is no such directory: {luff.cwd}/nowhere\n")
    code, _, err = luff("tag", str(luff.cwd))
    assert code == 2, "that is no run"
    assert str(luff.cwd) in err
    code, _, err = luff("run", "--tag", "two words", "--", "true")
    assert code == 2
    assert "--tag: a tag is a word" in err
    assert not list((luff.home / ".luff" / "runs").glob("*true*"))


def test_a_running_and_a_damaged_run(luff: Luff) -> None:
    reached, go = luff.tmp / "reached", luff.tmp / "go"
    job = luff.start(
        "run", "--run", str(luff.tmp / "runs" / "one"), "--", sys.executable, _SCRIPT, "--steps", "30",
        "--wait-at", "10", "--reached", str(reached), "--go", str(go),
    )  # fmt: skip
    while not reached.exists():
        assert job.poll() is None, job.communicate()
    folder = str(luff.tmp / "runs")
    assert " running" in rows(luff, folder)[0]
    go.touch()
    job.communicate(timeout=60)
    assert job.returncode == 0
    assert rows(luff, folder)[0].split()[-1] == "ok"
    damaged = luff.tmp / "runs" / "one" / "run.json"
    damaged.unlink()
    damaged.write_text("{")
    assert "damaged: " in rows(luff, folder)[0]


def test_findings_from_python(luff: Luff) -> None:
    job = luff.run(
        "steps.py", "--on-finding", "stop", arguments=("--steps", "30", "--nan-at", "12", "--interval", "0")
    )
    with package.open_trial(job.run) as trial:
        found = trial.findings()
        assert [f["rule"] for f in found if not f["leader"]] == ["NonFinite"]
        assert found[0]["since_step"] == 12
        assert "event" not in found[0]
        html = trial._repr_html_()
        assert "damage" not in html
        assert "NonFinite" in html
        assert "<script" not in html
        loss = trial.tensor(trial.tensors(collection="losses")[0])
        assert "TRAIN" in loss._repr_html_()
    with (job.run / "rules" / "luff" / "findings.jsonl").open("a") as file:
        file.write("no finding\n")
    with package.open_trial(job.run) as trial:
        assert any("no findings" in problem for problem in trial.problems())
        assert "damage" in trial._repr_html_()


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "\udcff"])
def test_a_notebook_escapes_what_a_run_says(luff: Luff, name: str) -> None:
    from luff._notebook import trial_html

    class Hostile:
        path, outcome, outcome_reason = name, name, name
        problems = tensors = steps = modes = staticmethod(lambda *_, **__: [])
        findings = staticmethod(
            lambda **_: [
                {
                    "severity": "warn",
                    "rule": name,
                    "mode": name,
                    "since_step": 1,
                    "tensor": name,
                    "what": name,
                    "leader": "",
                }
            ]
        )

    html = trial_html(Hostile())  # type: ignore[arg-type]
    html.encode()
    assert "<script" not in html
