"""The list of attacks: it names tests that exist, the page shows it, and a failed test counts as a success of its
attack.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from devlib import attack  # noqa: E402

ROW = {"section": "S", "promise": "p", "attack": "a"}


def test_every_attack_names_tests_that_exist() -> None:
    attacks = attack.load()
    assert len(attacks) > 20
    assert all(a.tests for a in attacks)
    assert attack.missing_tests(attacks) == []


def test_the_page_shows_every_attack() -> None:
    page = attack.PAGE.read_text()
    missing = [a.attack for a in attack.load() if f"| {a.promise} | {a.attack} |" not in page]
    assert missing == [], "./dev attack --write"


def test_names_of_tests_that_are_not_there_are_found() -> None:
    rows = sorted(
        [
            "tests/house/test_attacks.py::test_of_nobody",
            "cpp:base_test:Nobody.Knows",
            "fuzz:nobody_fuzz",
            "bench:nobody",
        ]
    )
    assert attack.missing_tests([attack.Attack(**ROW, tests=rows)]) == rows


@pytest.mark.parametrize(
    ("verdicts", "outcome"),
    [
        ({"t": ("passed", ""), "u": ("passed", "")}, attack.HELD),
        ({"t": ("passed", ""), "u": ("failed", "why")}, attack.SUCCEEDED),
        ({"t": ("passed", ""), "u": ("skipped", "no device")}, attack.SKIPPED),
        ({"t": ("passed", "")}, attack.SKIPPED),
    ],
)
def test_an_attack_holds_only_when_all_of_its_tests_ran_and_passed(verdicts: dict, outcome: str) -> None:
    row = attack.Attack(**ROW, tests=["t", "u"])
    attack.judge(row, verdicts)
    assert row.outcome == outcome


def test_writing_outcomes_of_some_attacks_leaves_those_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text(attack.PAGE.read_text())
    monkeypatch.setattr(attack, "PAGE", page)
    before = page.read_text().splitlines()
    every = attack.load()
    attack.write_page(every)
    assert page.read_text().splitlines() == before
    every[3].outcome = attack.HELD
    attack.write_page(every)
    changed = [line for line, old in zip(page.read_text().splitlines(), before, strict=True) if line != old]
    assert all(every[3].attack in line for line in changed)
    assert f"| {every[3].attack} |" in page.read_text()


def test_a_test_is_matched_with_all_its_parameters_and_nothing_else() -> None:
    cases = [("t.py::a[1]", "passed", ""), ("t.py::a[2]", "failed", "no"), ("t.py::ab", "passed", "")]
    assert [c[0] for c in attack._matching(cases, "t.py::a")] == ["t.py::a[1]", "t.py::a[2]"]
    assert attack._verdict(attack._matching(cases, "t.py::a"), "log")[0] == "failed"
    assert attack._verdict([], "log")[0] == "failed"


def test_each_test_runs_where_its_framework_is() -> None:
    assert attack.runner_of("python/tests/keras/test_fit.py::t") == "pytest tensorflow"
    assert attack.runner_of("python/tests/xgboost/test_values.py::t") == "pytest xgboost3"
    assert attack.runner_of("python/tests/torch/test_replay.py::t") == "pytest"
    assert attack.runner_of("tests/formats/test_readers.py::t") == "pytest formats"
    assert attack.runner_of("cpp:store_writer_test:A.B") == "cpp"


def test_a_test_that_a_class_inherits_is_one_of_the_class_s_file(tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    junit.write_text(
        '<testsuites><testsuite><testcase file="python/tests/base.py" name="test_x"'
        ' classname="python.tests.lightgbm.test_lifetimes.TestLightGBM"/></testsuite></testsuites>'
    )
    cases = attack._cases(junit)
    assert [c[0] for c in cases] == ["python/tests/lightgbm/test_lifetimes.py::TestLightGBM::test_x"]
    assert attack._matching(cases, "python/tests/lightgbm/test_lifetimes.py") == cases
