"""Mistakes of users: what is wrong, where, what to do; and nothing is left behind."""

from __future__ import annotations

import sys

import pytest

from .conftest import Luff


def _refused(luff: Luff, *arguments: str) -> str:
    code, out, err = luff(*arguments)
    assert code == 2, err
    assert out == ""
    assert not (luff.home / ".luff").exists()
    return err


def test_run_without_a_command(luff: Luff) -> None:
    assert "COMMAND" in _refused(luff, "run")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("rules = [\n", ["line 1", "luff.toml"]),
        ("on_findings = 'stop'\n", ["on_findings", "on_finding,"]),
        ("[stop]\nkill = 3\n", ["kill", "kill_s"]),
        ("[stop]\nkill_s = 'soon'\n", ["kill_s", "seconds"]),
        ("rules = ['DeadRelo']\n", ["DeadRelo", "DeadRelu"]),
        ("[rule.DeadRelu]\nwindo = 3\n", ["windo", "window"]),
        ("on_finding = 'stopp'\n", ["stopp", "warn and stop"]),
    ],
)
def test_configuration_file_with_a_mistake(luff: Luff, text: str, parts: list[str]) -> None:
    config = luff.tmp / "luff.toml"
    config.write_text(text)
    err = _refused(luff, "run", "--config", str(config), "--", "true")
    for part in parts:
        assert part in err


def test_configuration_file_that_is_missing(luff: Luff) -> None:
    path = str(luff.tmp / "none.toml")
    assert path in _refused(luff, "run", "--config", path, "--", "true")


def test_unknown_rule_of_check_and_explain(luff: Luff) -> None:
    assert "DeadRelu" in _refused(luff, "rules", "explain", "DeadRelo")
    assert "DeadRelu" in _refused(luff, "check", str(luff.tmp), "--rules", "DeadRelo")


def test_check_of_a_directory_that_is_no_run(luff: Luff) -> None:
    assert str(luff.tmp) in _refused(luff, "check", str(luff.tmp))


def test_run_directory_that_holds_other_things(luff: Luff) -> None:
    (luff.tmp / "notes").mkdir()
    (luff.tmp / "notes" / "a.txt").write_text("mine")
    err = _refused(luff, "run", "--run", str(luff.tmp / "notes"), "--", sys.executable, "-c", "1")
    assert "not empty" in err
    assert (luff.tmp / "notes" / "a.txt").read_text() == "mine"


def test_resume_without_a_run(luff: Luff) -> None:
    assert "no such run" in _refused(luff, "run", "--resume", "--run", str(luff.tmp / "none"), "--", "true")
    assert "--run" in _refused(luff, "run", "--resume", "--", "true")


def test_program_that_is_no_program(luff: Luff) -> None:
    plain = luff.tmp / "plain.txt"
    plain.write_text("text")
    code, _, err = luff("run", "--run", str(luff.tmp / "run"), "--", str(plain))
    assert code == 126
    assert str(plain) in err
    assert not (luff.tmp / "run").exists()
