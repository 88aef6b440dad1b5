"""The user's own rules: conditions, Python, shared libraries; live and in `luff check`; and rules that misbehave."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import luff as package
import luff.testing
import pytest

from .conftest import Luff, processes_with

ROOT = Path(__file__).parents[2]
PYTHON = {"LUFF_PYTHON": sys.executable}

RULES = '''
import os
import sys
import time

import luff


class LossAbove(luff.Rule):
    """The loss is above a limit."""

    def __init__(self, base_trial=None, limit: float = 5.0):
        super().__init__(base_trial)
        self.limit = limit

    def on_step(self, view):
        if view.loss is not None and view.loss > self.limit:
            return luff.Finding(f"the loss is {view.loss:.3g}", evidence={"loss": view.loss, "limit": self.limit})


class Every(luff.Rule):
    """A finding at every 20th step; counts what it has seen, and can be saved."""

    seen = 0

    def __init__(self, base_trial=None, mark: str = "", die_at: int = -1, deaths: int = 99):
        super().__init__(base_trial)
        self.mark, self.die_at, self.deaths = mark, die_at, deaths

    def on_step(self, view):
        self.seen += 1
        if view.step == self.die_at:
            with open(self.mark, "a+") as file:
                file.write("x")
                file.seek(0)
                died = len(file.read())
            if died <= self.deaths:
                print("my last words", file=sys.stderr, flush=True)
                os.kill(os.getpid(), 9)
        if self.seen % 20 == 0:
            return luff.Finding(f"{self.seen} steps", cause=f"n{self.seen}")

    def state(self):
        return self.seen

    def restore(self, state):
        self.seen = state


class Raises(luff.Rule):
    def on_step(self, view):
        if view.step >= 3:
            raise ValueError("a mistake in it")


class Hangs(luff.Rule):
    def on_step(self, view):
        if view.step == 5:
            time.sleep(600)


class Leaks(luff.Rule):
    kept = []

    def on_step(self, view):
        while view.step == 2:
            self.kept.append(bytearray(8 << 20))


class Prints(luff.Rule):
    def on_step(self, view):
        print("x" * 1000, flush=True)
        os.write(1, b'{"say": "done", "number": 0}\\n')
        if view.step == 9:
            return luff.Finding("it prints")


class OldStyle(luff.Rule):
    severity = "stop"
    message = "as in the original"

    def __init__(self, base_trial, threshold: float = 4.0):
        super().__init__(base_trial, other_trials=None)
        self.threshold = threshold

    def invoke_at_step(self, step):
        for name in self.base_trial.tensors(collection="losses"):
            loss = self.base_trial.scalars(name)
            if loss["step"].size and loss["step"][-1] == step and loss["value"][-1] > self.threshold:
                return True
        return False


class Needy(luff.Rule):
    needs = [{"name": "needy", "include": ["weight$"], "forms": ["raw"], "save_interval": 7}]

    def on_step(self, view):
        if view.mode == "TRAIN" and view.mode_step == 14:
            name = next(n for n in view.tensors("weight$") if not n.startswith("gradient"))
            return luff.Finding(f"raw value of {view.value(name).size}", tensor=name)
'''


@pytest.fixture
def rules(tmp_path: Path) -> str:
    path = tmp_path / "checks.py"
    path.write_text(RULES)
    return str(path)


@pytest.fixture
def run(tmp_path: Path) -> str:
    """100 steps; the loss is 9 at steps 40 to 44."""
    loss = [9.0 if 40 <= step < 45 else 1.0 for step in range(100)]
    luff.testing.trial({"MSELoss_output_0": loss, "gradient/w": [[1.0, 2.0]] * 100}, path=tmp_path / "made")
    return str(tmp_path / "made")


def check(luff: Luff, run: str, *options: str, **environment: str) -> tuple[int, list[dict[str, Any]], str]:
    """Runs `luff check --json`; returns exit code, new findings, stderr."""
    code, out, err = luff("check", run, "--json", *options, **(PYTHON | environment))
    found = [finding for finding in map(json.loads, out.splitlines()) if finding["event"] == "new"]
    return code, found, err


def config(tmp_path: Path, text: str) -> str:
    path = tmp_path / "luff.toml"
    path.write_text(text)
    return str(path)


# ---- Python ---------------------------------------------------------------------------------------------------------


def test_a_python_rule_finds_in_a_run(luff: Luff, rules: str, run: str) -> None:
    code, found, err = check(luff, run, "--rules", f"{rules}:LossAbove:limit=3.5")
    assert code == 1, err
    (finding,) = found
    assert (finding["rule"], finding["step"], finding["what"]) == ("LossAbove", 40, "the loss is 9")
    assert finding["evidence"] == {"loss": 9.0, "limit": 3.5}
    code, found, err = check(luff, run, "--rules", f"{rules}:LossAbove:limit=50")
    assert (code, found, err) == (0, [], "")


def test_invoke_at_step_as_in_the_original(luff: Luff, rules: str, run: str) -> None:
    code, found, err = check(luff, run, "--rules", f"{rules}:OldStyle")
    assert code == 3, err
    assert [(f["what"], f["step"], f["severity"]) for f in found] == [("as in the original", 40, "stop")]


def test_beside_all_built_in_rules_live_and_afterwards(luff: Luff, rules: str) -> None:
    wanted = f"all,{rules}:Every,{rules}:Needy"
    job = luff.run("steps.py", "--rules", wanted, arguments=("--interval", "0"), **PYTHON)
    assert job.code == 0, job.stderr
    assert {"Every", "Needy"} <= job.rules()
    assert [f["step"] for f in job.findings if f["rule"] == "Every"][:2] == [19, 39]
    (needy,) = [f for f in job.findings if f["rule"] == "Needy"]
    assert needy["what"].startswith("raw value of ")
    _, found, err = check(luff, str(job.run), "--rules", wanted)
    written = (job.run / "rules" / "luff" / "findings.jsonl").read_text().splitlines()
    live = [finding for finding in map(json.loads, written) if finding["event"] == "new"]
    assert sorted(found, key=lambda f: f["id"]) == sorted(live, key=lambda f: f["id"]), err
    assert len({finding["id"] for finding in live}) == len(live)
    assert processes_with("luff._verbs.rule") == []


def test_a_finding_of_a_python_rule_stops_the_job(luff: Luff, rules: str) -> None:
    job = luff.run(
        "steps.py", "--rules", f"{rules}:OldStyle:threshold=-1", "--on-finding", "stop",
        arguments=("--steps", "100000", "--sleep", "0.005"), **PYTHON,
    )  # fmt: skip
    assert job.code == 76, job.stderr
    assert "luff: stopped by OldStyle" in job.stderr


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("LossAbove:limmit=3", "rule LossAbove has no parameter 'limmit'; known: limit"),
        ("LossAbove:limit=x", "parameter 'limit' of rule LossAbove is 'x', expected float"),
        ("LossAbove:limit_step_s=0", "parameter 'limit_step_s' is 0, expected more than 0"),
        ("LossAbov", "LossAbov is not there; rules there: LossAbove, Every"),
        ("", "no rule is named; write FILE.py:NAME; rules there: LossAbove, Every"),
    ],
)
def test_mistakes_are_told_before_anything_runs(
    luff: Luff, rules: str, run: str, rule: str, said: str
) -> None:
    code, out, err = luff("check", run, "--rules", f"{rules}:{rule}", **PYTHON)
    assert (code, out) == (2, "")
    assert said in err


def test_names_that_nobody_knows(luff: Luff, run: str, tmp_path: Path) -> None:
    code, _, err = luff("check", run, "--rules", "ExplodingTensr", **PYTHON)
    assert code == 2
    assert "there is no rule 'ExplodingTensr'; nearest: ExplodingTensor" in err
    code, _, err = luff("check", run, "--rules", f"{tmp_path}/nowhere.py:X", **PYTHON)
    assert code == 2
    assert f"there is no file of rule X: {tmp_path}/nowhere.py" in err
    code, _, err = luff("check", run, "--rules", f"{tmp_path}/nowhere.py", **PYTHON)
    assert code == 2
    assert f"there is no such file of rules: {tmp_path}/nowhere.py" in err
    code, _, err = luff("check", run, "--rules", "Foo", **PYTHON)
    assert err == "luff: there is no rule 'Foo'; see `luff rules`\n"
    lone = tmp_path / "lone.py"
    lone.write_text("import luff\nclass One(luff.Rule):\n    pass\n")
    code, _, err = luff("check", run, "--rules", str(lone), **PYTHON)
    assert (code, err) == (2, f"luff: no rule is named; write FILE.py:NAME; rules there: One: {lone}\n")


def test_a_file_beside_the_training_is_not_run_unless_named(luff: Luff, run: str) -> None:
    for name in ("luff.py", "json.py", "checks.py"):
        (luff.cwd / name).write_text("raise SystemExit('run by accident')")
    rules = luff.cwd / "mine.py"
    rules.write_text(RULES)
    code, found, err = check(luff, run, "--rules", "mine.py:LossAbove")
    assert code == 1, err
    assert len(found) == 1


# ---- rules that misbehave -------------------------------------------------------------------------------------------


def test_one_that_raises_is_told_once_with_its_line(luff: Luff, rules: str, run: str) -> None:
    code, found, err = check(luff, run, "--rules", f"{rules}:Raises,{rules}:LossAbove")
    assert code == 1
    assert [f["rule"] for f in found] == ["LossAbove"]
    first = "luff: rule Raises: it raised at TRAIN step 3: ValueError: a mistake in it (checks.py, line "
    assert err.count(first) == 1
    assert 'raise ValueError("a mistake in it")' in err
    assert "it raised at 97 of 100 steps" in err


def test_one_that_judges_nothing_does_not_count(luff: Luff, run: str) -> None:
    rules = luff.tmp / "bad.py"
    rules.write_text("import luff\nclass Bad(luff.Rule):\n    def on_step(self, view):\n        1 / 0\n")
    code, out, _ = luff("check", run, "--rules", f"{rules}:Bad", **PYTHON)
    assert code == 1
    assert "luff: done: 100 steps, 0 of 1 rule judged, no findings (Bad did not judge all of it)" in out
    job = luff.run("steps.py", "--rules", f"NonFinite,{rules}:Bad", **PYTHON)
    assert "luff: done: 100 steps, 1 of 2 rules judged, no findings (Bad did not judge" in job.stderr
    shown = json.loads(luff("show", str(job.run), "--json")[1])["rules"]
    assert (shown["count"], shown["judged"]) == (2, 1)


def test_one_that_hangs_is_killed_and_set_aside(luff: Luff, rules: str, run: str) -> None:
    code, found, err = check(luff, run, "--rules", f"{rules}:Hangs:limit_step_s=2,{rules}:LossAbove")
    assert code == 1
    assert [f["rule"] for f in found] == ["LossAbove"]
    assert (
        "rule Hangs: its process ended (no answer within 2 s at step number 5) and was started again" in err
    )
    assert "rule Hangs: it is set aside, its process ended 3 times" in err
    assert processes_with(rules) == []


def test_one_that_leaks_is_ended_by_its_limit(luff: Luff, rules: str, run: str) -> None:
    code, found, err = check(luff, run, "--rules", f"{rules}:Leaks:limit_memory_mb=600,{rules}:LossAbove")
    assert code == 1
    assert [f["rule"] for f in found] == ["LossAbove"]
    assert "rule Leaks: it is set aside, its process ended 3 times" in err
    assert "out of memory" in err or "used more than 600 MiB" in err


def test_one_that_prints_breaks_nothing(luff: Luff, rules: str, run: str) -> None:
    code, out, err = luff("check", run, "--json", "--rules", f"{rules}:Prints", **PYTHON)
    assert code == 1
    assert [json.loads(line)["what"] for line in out.splitlines()] == ["it prints"]
    assert "x" * 1000 in err  # shown on standard error to the user who tries the rule


def test_one_that_is_killed_goes_on_and_says_nothing_twice(
    luff: Luff, rules: str, run: str, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    code, found, err = check(luff, run, "--rules", f"{rules}:Every:mark={mark}:die_at=55:deaths=2")
    assert code == 1
    assert [f["step"] for f in found] == [19, 39, 59, 79, 99]
    assert mark.read_text() == "xxx"
    assert "its process ended (signal 9 (Killed) at step number 55) and was started again" in err
    assert "my last words" in err
    assert "set aside" not in err


def test_one_that_is_killed_three_times_is_set_aside(luff: Luff, rules: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    job = luff.run(
        "steps.py", "--rules", f"{rules}:Every:mark={mark}:die_at=30,{rules}:LossAbove:limit=-1", **PYTHON
    )
    assert job.code == 0, job.stderr
    assert mark.read_text() == "xxx"
    assert [f["step"] for f in job.findings if f["rule"] == "Every"] == [19]
    assert "LossAbove" in job.rules()  # the other rules see everything
    assert "luff: rule Every: it is set aside, its process ended 3 times" in job.stderr
    assert "(Every did not judge all of it)" in job.stderr.splitlines()[-1]


def test_a_rule_worker_that_dies_takes_its_rules_up_again(luff: Luff, rules: str) -> None:
    run, go = luff.tmp / "run", luff.tmp / "go"
    process = luff.start(
        "run", "--run", str(run), "--rules", f"{rules}:Every", "--", sys.executable,
        str(ROOT / "tests/e2e/scripts/steps.py"), "--steps", "300", "--wait-at", "80", "--go", str(go), **PYTHON,
    )  # fmt: skip
    findings = run / "rules" / "luff" / "findings.jsonl"
    deadline = time.monotonic() + 60
    while (not findings.exists() or findings.read_text().count("\n") < 3) and time.monotonic() < deadline:
        time.sleep(0.02)
    workers = [
        pid for pid in processes_with(str(run)) if b"_evaluate" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    go.touch()
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert len(workers) == 1
    found = [json.loads(line) for line in findings.read_text().splitlines()]
    assert [f["step"] for f in found if f["event"] == "new"] == list(range(19, 300, 20))
    assert processes_with(rules) == []


# ---- conditions -----------------------------------------------------------------------------------------------------


def test_conditions_find_in_a_run(luff: Luff, run: str, tmp_path: Path) -> None:
    path = config(
        tmp_path,
        """
rules = []
[[rule_expression]]
name = "Jumps"
when = "loss.mean(3) > 2 * loss.mean(20)"
for = 2
severity = "stop"
message = "the loss has jumped"
[[rule_expression]]
name = "Never"
when = '"no such tensor".l2 > 1'
""",
    )
    code, found, err = check(luff, run, "--config", path)
    assert code == 1, err  # the finding has healed; a condition did not judge
    (finding,) = found
    assert (finding["rule"], finding["step"], finding["since_step"]) == ("Jumps", 41, 40)
    assert finding["what"] == "the loss has jumped"
    assert finding["evidence"]["loss.mean(3)"] == pytest.approx((1 + 9 + 9) / 3)
    assert 'rule Never: it never had what it needs: there is no tensor "no such tensor"' in err
    code, out, err = luff("check", run, "--config", path, **PYTHON)
    assert "luff: 1 rule had nothing to look at: 1 needs what its condition names" in out
    assert "1 of 2 rules judged" in out.splitlines()[-1]
    path = config(tmp_path, 'rules = []\n[[rule_expression]]\nname = "Never"\nwhen = "nothing > 1"\n')
    code, out, err = luff("check", run, "--config", path, **PYTHON)
    assert code == 1, "a rule that did not judge the run"
    assert "luff: done: 100 steps, 0 of 1 rule judged, no findings (Never did not judge all of it)" in out


def test_conditions_beside_the_built_in_rules_live(luff: Luff, tmp_path: Path) -> None:
    path = config(
        tmp_path,
        '[[rule_expression]]\nname = "Big"\nwhen = \'any("^gradient/").l2 >= 0 and not loss < -1\'\nfor = 3\n',
    )
    job = luff.run("steps.py", "--config", path, **PYTHON)
    assert job.code == 0, job.stderr
    assert job.rules() == {"Big"}
    assert job.findings[0]["step"] == 2
    assert job.findings[0]["tensor"].startswith("gradient/")
    _, found, _ = check(luff, str(job.run), "--config", path)
    assert [f["id"] for f in found] == [f["id"] for f in job.findings]


def test_a_mistake_in_a_condition_is_shown_with_its_place(luff: Luff, run: str, tmp_path: Path) -> None:
    path = config(tmp_path, '[[rule_expression]]\nname = "X"\nwhen = "loss.maen > 3"\n')
    code, out, err = luff("check", run, "--config", path)
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        f"luff: rule X: there is no statistic 'maen'; nearest: mean (column 6): {path}, line 3",
        "  loss.maen > 3",
        "       ^",
    ]


def test_actions_name_rules_of_the_user(luff: Luff, run: str, rules: str, tmp_path: Path) -> None:
    text = f"""
rules = ["{rules}:LossAbove"]
[[rule_expression]]
name = "Big"
when = "loss > 1000"
[[action]]
kind = "stop"
rules = ["Big", "LossAbove", "{rules}:OldStyle"]
"""
    code, found, err = check(luff, run, "--config", config(tmp_path, text))
    assert (code, len(found), err) == (1, 1, "")
    code, _, err = check(luff, run, "--config", config(tmp_path, text.replace('"Big", ', '"Bigg", ')))
    assert code == 2
    assert "there is no rule 'Bigg'" in err


# ---- shared libraries -----------------------------------------------------------------------------------------------


def _shared_library(compiler: str, source: Path, path: Path, *flags: str) -> None:
    """Compiles a plug-in of rules."""
    include = str(ROOT / "include")
    command = [compiler, *flags, "-shared", "-fPIC", "-I", include, str(source), "-o", str(path)]
    subprocess.run(command, check=True)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    path = tmp_path_factory.mktemp("plugin") / "librule.so"
    source = ROOT / "examples" / "cpp" / "rule_plugin.cc"
    _shared_library(compiler, source, path, "-std=c++17")
    return str(path)


def test_a_rule_of_a_shared_library_finds_in_a_run(luff: Luff, library: str, run: str) -> None:
    code, found, err = check(luff, run, "--rules", f"{library}:LossAbove:limit=3")
    assert code == 0, err  # it has healed
    (finding,) = found
    assert (finding["rule"], finding["step"], finding["since_step"]) == ("LossAbove", 42, 40)
    assert finding["tensor"] == "MSELoss_output_0"
    assert finding["evidence"] == {"loss": 9.0, "limit": 3.0}


def test_a_rule_of_a_shared_library_live(luff: Luff, library: str) -> None:
    job = luff.run("steps.py", "--rules", f"all,{library}:LossAbove:limit=-1", **PYTHON)
    assert job.code == 0, job.stderr
    assert job.rules() == {"LossAbove"}


def test_a_library_that_is_none_says_what_is_missing(
    luff: Luff, library: str, run: str, tmp_path: Path
) -> None:
    code, _, err = luff("check", run, "--rules", f"{library}:Nothing")
    assert code == 2
    assert "the library has no rule 'Nothing'; it has: LossAbove" in err
    code, _, err = luff("check", run, "--rules", f"{library}:LossAbove:limit=x")
    assert code == 2
    assert "LossAbove takes limit=NUMBER" in err
    (tmp_path / "broken.so").write_bytes(b"no library")
    code, _, err = luff("check", run, "--rules", f"{tmp_path}/broken.so:X")
    assert code == 2
    assert "the library cannot be loaded" in err


def test_a_library_that_crashes_ends_only_its_own_process(
    luff: Luff, run: str, rules: str, tmp_path: Path
) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source = tmp_path / "crash.c"
    source.write_text(
        '#include "luff/rules/plugin.h"\n#include <stdlib.h>\n'
        "static int dummy;\n"
        "static void* create(const luff_host_v1* h, const luff_parameter_v1* p, uint64_t n)"
        " { (void)h; (void)p; (void)n; return &dummy; }\n"
        "static void step(void* r, const luff_host_v1* h, const luff_step_v1* s)"
        " { (void)r; (void)h; if (s->step == 7) abort(); }\n"
        "static const luff_rule_v1 rule = "
        '{sizeof(luff_rule_v1), 1, "Crashes", "", create, 0, step, 0, 0, 0, 0};\n'
        "static const luff_rule_v1* const rules[] = {&rule};\n"
        "static const luff_rule_plugin plugin = {sizeof(luff_rule_plugin), 1, 1, rules};\n"
        "const luff_rule_plugin* luff_rule_plugin_v1(void) { return &plugin; }\n"
    )
    path = tmp_path / "libcrash.so"
    _shared_library(compiler, source, path, "-Wall", "-Werror")
    code, found, err = check(luff, run, "--rules", f"{path}:Crashes,{rules}:LossAbove")
    assert code == 1
    assert [f["rule"] for f in found] == ["LossAbove"]
    assert (
        "rule Crashes: it is set aside, its process ended 3 times; the last time: signal 6 (Aborted)" in err
    )


def test_the_package_offers_what_the_page_names() -> None:
    assert {"Rule", "Finding", "StepView"} <= set(package.__all__)
