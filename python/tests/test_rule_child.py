"""The process of an own rule: its protocol, which nothing that a rule does can break (docs/spec/rule-child.md)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import luff
import luff.testing
import pytest

RULES = '''
"""Rules for tests."""
import os
import luff


class Fine(luff.Rule):
    """A rule that is fine."""

    needs = [{"include": ["^gradient/"], "forms": ["summary"], "save_interval": 10}]
    version = 3

    def __init__(self, base_trial=None, limit: float = 5.0, names: list = (), loud: bool = False, n=3):
        super().__init__(base_trial)
        self.limit, self.names, self.loud, self.n = limit, names, loud, n
        self.seen = 0

    def on_step(self, view):
        self.seen += 1
        print("one of many lines", flush=True)
        os.write(1, b"{\\"say\\": \\"done\\"}\\n")
        if view.loss > self.limit:
            return luff.Finding(f"{view.loss} {self.limit} {self.names} {self.loud} {self.n} {self.seen}")

    def state(self):
        return {"seen": self.seen}

    def restore(self, state):
        self.seen = state["seen"]

    def on_end(self):
        self.report(luff.Finding("over", cause="end", evidence={"nan": float("nan")}))


class Raises(luff.Rule):
    def on_step(self, view):
        return 1 / (view.step - 1)


class Lacks(luff.Rule):
    def on_step(self, view):
        view.trial.tensor("nowhere").value(view.step)


class Leaks(luff.Rule):
    def on_step(self, view):
        self.kept = [bytearray(1 << 20) for _ in range(100000)]


class Needs(luff.Rule):
    @staticmethod
    def needs(name):
        return [{"include": [name]}]

    def __init__(self, base_trial, name: str):
        super().__init__(base_trial)

    def invoke_at_step(self, step):
        return False


class Nothing(luff.Rule):
    pass


class Strange(luff.Rule):
    def __init__(self, base_trial):
        raise RuntimeError("cannot be made")

    def on_step(self, view):
        pass


NOT_A_RULE = 3
'''


class Child:
    """The other side of the socket."""

    def __init__(self, folder: Path, **environment: str) -> None:
        ours, theirs = socket.socketpair()
        fd = theirs.fileno()
        code = f"import os, sys; os.dup2({fd}, 3); os.execv(sys.executable, ['python', '-m', 'luff._verbs.rule'])"
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", code],
            pass_fds=[fd],
            cwd=folder,
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        theirs.close()
        self.socket = ours
        self.lines = ours.makefile("rb")

    def tell(self, **members: Any) -> None:
        self.socket.sendall(json.dumps(members).encode() + b"\n")

    def hear(self) -> dict[str, Any]:
        line = self.lines.readline()
        assert line, self.process.communicate(timeout=60)
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer

    def describe(self, rule: str, **parameters: str) -> dict[str, Any]:
        self.tell(do="describe", protocol=1, rule=rule, parameters=parameters)
        return self.hear()

    def begin(self, rule: str, trial: luff.Trial, **more: Any) -> dict[str, Any]:
        self.tell(
            **{"do": "begin", "protocol": 1, "rule": rule, "run": trial.path, "parameters": {}, "position": 0}
            | more
        )
        return self.hear()

    def close(self) -> None:
        self.lines.close()
        self.socket.close()
        self.process.communicate(timeout=60)


@pytest.fixture
def rules(tmp_path: Path) -> str:
    path = tmp_path / "checks.py"
    path.write_text(RULES)
    return str(path)


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    made = Child(tmp_path)
    yield made
    made.close()


@pytest.fixture
def trial() -> luff.Trial:
    return luff.testing.trial({"loss": [1.0, 9.0, 1.0]})


def test_says_what_it_is(child: Child, rules: str) -> None:
    answer = child.describe(f"{rules}:Fine", limit="3")
    assert answer["say"] == "description", answer
    assert (answer["name"], answer["version"], answer["summary"]) == ("Fine", 3, "A rule that is fine.")
    assert answer["needs"][0]["save_interval"] == 10
    assert [p["name"] for p in answer["parameters"]] == ["limit", "names", "loud", "n"]


@pytest.mark.parametrize(
    ("rule", "parameters", "said"),
    [
        ("Fine", {"limmit": "3"}, "has no parameter 'limmit'; known: limit, names, loud, n"),
        ("Fine", {"limit": "much"}, "parameter 'limit' of rule Fine is 'much', expected float"),
        ("Needs", {}, "needs the parameter 'name'"),
        ("Nothing", {}, "neither on_step nor invoke_at_step"),
        ("NOT_A_RULE", {}, "is no class derived from luff.Rule; rules there: Fine, Raises"),
        ("Absent", {}, "Absent is not there; rules there: Fine"),
    ],
)
def test_says_what_is_wrong(
    child: Child, rules: str, rule: str, parameters: dict[str, str], said: str
) -> None:
    answer = child.describe(f"{rules}:{rule}", **parameters)
    assert answer["say"] == "error"
    assert said in answer["message"]
    assert not answer["unknown"]


def test_a_file_that_does_not_load_is_told_with_its_line(child: Child, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import luff\nx = undefined_name\n")
    answer = child.describe(f"{tmp_path}/bad.py:X")
    assert "NameError" in answer["message"]
    assert "bad.py, line 2: x = undefined_name" in answer["message"]


def test_needs_may_depend_on_parameters(child: Child, rules: str) -> None:
    assert child.describe(f"{rules}:Needs", name="^fc")["needs"] == [{"include": ["^fc"]}]


def test_an_entry_point_names_a_rule(tmp_path: Path, rules: str) -> None:
    info = tmp_path / "site" / "checks-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: checks\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[luff.rules]\nFine = checks:Fine\n")
    Path(rules).rename(tmp_path / "site" / "checks.py")
    path = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    child = Child(tmp_path, PYTHONPATH=path)
    assert child.describe("Fine")["name"] == "Fine"
    child.close()
    child = Child(tmp_path, PYTHONPATH=path)
    answer = child.describe("Nowhere")
    assert answer["unknown"]
    child.close()


def test_judges_steps_in_order_and_prints_beside_the_lines(
    child: Child, rules: str, trial: luff.Trial
) -> None:
    parameters = {"limit": "4", "names": "a;b", "loud": "true", "n": "7"}
    assert child.begin(f"{rules}:Fine", trial, parameters=parameters) == {"say": "ready"}
    for number in range(3):
        child.tell(do="step", number=number)
    answers = [child.hear() for _ in range(4)]
    assert [a["say"] for a in answers] == ["done", "finding", "done", "done"]
    finding = answers[1]
    assert finding["what"] == "9.0 4.0 ['a', 'b'] True 7 2"
    assert (finding["step"], finding["global_step"], finding["rule"]) == (1, 1, "Fine")
    child.tell(do="save")
    assert child.hear() == {"say": "state", "state": {"seen": 3}}
    child.tell(do="end")
    answer = child.hear()
    assert (answer["cause"], answer["evidence"]) == ("end", {"nan": "NaN"})
    assert child.hear() == {"say": "ended"}
    assert child.process.wait(timeout=60) == 0
    assert child.process.stdout is not None
    assert child.process.stdout.read().count(b"one of many lines") == 3


def test_goes_on_from_a_state(child: Child, rules: str, trial: luff.Trial) -> None:
    assert child.begin(f"{rules}:Fine", trial, position=1, state='{"seen": 41}')["say"] == "ready"
    child.tell(do="step", number=1)
    assert child.hear()["what"].endswith(" 42")


def test_what_it_raises_is_told_with_its_line(child: Child, rules: str, trial: luff.Trial) -> None:
    child.begin(f"{rules}:Raises", trial)
    child.tell(do="step", number=1)
    answer = child.hear()
    assert answer["say"] == "done"
    assert answer["raised"].startswith("it raised at TRAIN step 1: ZeroDivisionError")
    assert "checks.py, line" in answer["raised"]
    assert "return 1 / (view.step - 1)" in answer["raised"]


def test_what_it_lacks_is_no_mistake(child: Child, rules: str, trial: luff.Trial) -> None:
    child.begin(f"{rules}:Lacks", trial)
    child.tell(do="step", number=0)
    answer = child.hear()
    assert "nowhere" in answer["lacks"]
    assert "raised" not in answer


def test_one_that_cannot_be_made_says_why(child: Child, rules: str, trial: luff.Trial) -> None:
    answer = child.begin(f"{rules}:Strange", trial)
    assert (answer["say"], answer["again"]) == ("error", False)
    assert "RuntimeError: cannot be made" in answer["message"]


def test_out_of_memory_ends_the_process(rules: str, tmp_path: Path, trial: luff.Trial) -> None:
    child = Child(tmp_path)
    import resource

    child.begin(f"{rules}:Leaks", trial)
    resource.prlimit(child.process.pid, resource.RLIMIT_DATA, (512 << 20, 512 << 20))
    child.tell(do="step", number=0)
    assert child.lines.readline() == b""
    _, err = child.process.communicate(timeout=60)
    assert b"out of memory" in err
    assert child.process.returncode == 77
    child.close()
