"""Mistakes of users: the message says what is wrong, where, and what to do; nothing is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Luff


def _refused(luff: Luff, *arguments: str, **environment: str) -> str:
    code, out, err = luff(*arguments, **environment)
    assert code == 2, err
    assert out == ""
    assert err.startswith("luff: ")
    assert len(err.splitlines()) == 1
    assert not (luff.home / ".luff").exists()
    return err


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("run",), ["COMMAND", "luff run --help"]),
        ((), ["luff --help"]),
        (("chek", "x"), ["unknown command 'chek'", "check"]),
        (("run", "--resum", "--", "true"), ["--resum'", "--resume"]),
        (("check", "x", "--jsn"), ["--jsn", "--json", "luff check --help"]),
        (("check", "x", "y"), ["unknown argument 'y'"]),
        (("run", "--parameters", "orig", "--", "true"), ["orig", "luff and original"]),
        (("run", "--on-finding", "halt", "--", "true"), ["halt", "warn and stop"]),
        (("run", "--rules", "DeadRelo", "--", "true"), ["DeadRelo", "nearest: DeadRelu"]),
        (("run", "--rules", "DeadRelu:windw=3", "--", "true"), ["windw", "nearest: window"]),
        (("run", "--rules", "DeadRelu:window=soon", "--", "true"), ["'window'", "DeadRelu", "'soon'"]),
        (("run", "--rules", "ExplodingTensor:tensor_regex=(a", "--", "true"), ['"(a"', "byte 2"]),
        (("run", "--rules", "DeadRelu,DeadRelu", "--", "true"), ["named twice"]),
        (("rnus",), ["unknown command 'rnus'; nearest: runs;"]),
        (("run", "--log-bytes", "2MB", "--", "true"), ["--log-bytes", "give --log, too"]),
        (("run", "--log", "--log-bytes", "1KB", "--", "true"), ["1000 bytes", "at least 1MB"]),
        (("run", "--log", "--log-bytes", "5XB", "--", "true"), ["'5XB' is no size; expected e.g. 5MB"]),
        (("run", "--metrics", "127.0.0.1", "--", "true"), ["--metrics is '127.0.0.1'", "ADDRESS:PORT"]),
        (("run", "--metrics", "0.0.0.0:9464", "--", "true"), ["--metrics", "other machines", "127.0.0.1"]),
        (("run", "--metrics", "nowhere:1", "--", "true"), ["--metrics", "'nowhere' is no address"]),
        (("run", "--metrics-token", "t", "--", "true"), ["give --metrics ADDRESS:PORT, too"]),
        (("run", "--report", "rr/x/y.html", "--", "true"), ["no directory", "rr/x", "make it"]),
        (("show", "nosuch"), ["no directory 'nosuch', and no run of this name; `luff runs` lists"]),
        (("show", "@0"), ["'@0' is no age of a run: @1 is the newest"]),
        (("runs", "--tag", "a b"), ["--tag: a tag is a word"]),
    ],
)
def test_command_line_with_a_mistake(luff: Luff, arguments: tuple[str, ...], parts: list[str]) -> None:
    err = _refused(luff, *arguments)
    for part in parts:
        assert part in err


@pytest.mark.parametrize(
    ("text", "line", "parts"),
    [
        ("rules = [\n", 1, []),
        ("\non_findings = 'stop'\n", 2, ["on_findings", "nearest: on_finding"]),
        ("on_finding = 'stopp'\n", 1, ["stopp", "warn or stop"]),
        ("[stop]\n\nkill = 3\n", 3, ["kill", "nearest: kill_s"]),
        ("[stop]\nkill_s = 'soon'\n", 2, ["kill_s", "seconds"]),
        ("stop = 3\n", 1, ["[stop]"]),
        ("rules = 3\n", 1, ["list of names"]),
        ("rules = ['DeadRelu',\n 'ExplodingTensr']\n", 2, ["ExplodingTensr", "nearest: ExplodingTensor"]),
        ("[rule.DeadRelo]\nwindow = 3\n", 1, ["DeadRelo", "nearest: DeadRelu"]),
        ("[rule.DeadRelu]\ninterval = 4\nwindo = 3\n", 3, ["windo", "nearest: window"]),
        ("[rule.DeadRelu]\nwindow = 'soon'\n", 2, ["'window'", "'soon'"]),
        ("parameters = 'orignal'\n", 1, ["orignal", "original"]),
        ("[capture]\nsave_intervall = 3\n", 2, ["save_intervall", '"save_interval"']),
        ("[capture]\n\nprofile = 'of'\n", 3, ['unknown profile "of"', 'did you mean "off"']),
        ("rule = ['all']\n", 1, ["'rule' is no table", 'rules = ["NAME"]']),
        ("[capture.save.TRIAN]\nsave_interval = 3\n", 1, ["TRIAN", "mode", '"TRAIN"']),
        ("[[capture.collections]]\nname = 'a'\ninclude = ['(b']\n", 3, ["'(b'", "collection", "compile"]),
        (
            "[[capture.collections]]\nname = 'a'\nroles = ['bias']\n[[capture.collections]]\nname = 'b'\n"
            "roles = ['bias']\nfroms = ['raw']\n",
            7,
            ['unknown key "froms" in collection "b"', 'did you mean "forms"'],
        ),
        ("[[capture.collections]]\nroles = ['bias']\n", 1, ["collections[0]: no name found"]),
        (
            "[capture]\n\ncollections=[{name='w', inclde=['fc']}]\n",
            3,
            ['unknown key "inclde"', 'did you mean "include"'],
        ),
        (
            "[[rule_expression]]\nname = 'A'\nwhen = 'loss > 1'\n\nsevrity = 'warn'\n",
            5,
            ["'sevrity'", "nearest: severity"],
        ),
        ("[[rule_expression]]\nname = 'A'\nwhen = 'loss > 1'\nseverity = 'high'\n", 4, ["severity", "high"]),
    ],
)
def test_configuration_file_with_a_mistake(luff: Luff, text: str, line: int, parts: list[str]) -> None:
    config = luff.tmp / "luff.toml"
    config.write_text(text)
    err = _refused(luff, "run", "--config", str(config), "--", "true").replace('"(b"', "'(b'")
    assert f"{config}, line {line}" in err
    for part in parts:
        assert part in err


def test_configuration_file_that_cannot_be_read(luff: Luff) -> None:
    path = str(luff.tmp / "none.toml")
    assert path in _refused(luff, "run", "--config", path, "--", "true")
    assert str(luff.tmp) in _refused(luff, "run", "--config", str(luff.tmp), "--", "true")


def test_unknown_rule_of_check_and_explain(luff: Luff) -> None:
    assert "DeadRelu" in _refused(luff, "rules", "explain", "DeadRelo")
    assert "DeadRelu" in _refused(luff, "check", str(luff.tmp), "--rules", "DeadRelo")


def test_run_that_is_none_is_damaged_or_newer(luff: Luff) -> None:
    assert str(luff.tmp) in _refused(luff, "check", str(luff.tmp))
    assert "no such directory" in _refused(luff, "check", str(luff.tmp / "none"))
    run = luff.tmp / "run"
    run.mkdir()
    newer = {"format": "luff-run", "format_major": 99, "format_minor": 0, "run_id": "0" * 32}
    for text, part in ((json.dumps(newer), "version 99"), ('{"format": "luff-r', "no description")):
        (run / "run.json").write_text(text)
        for arguments in (("check", str(run)), ("run", "--resume", "--run", str(run), "--", "true")):
            err = _refused(luff, *arguments)
            assert part in err
            assert str(run) in err
        assert (run / "run.json").read_text() == text


def test_run_directory_that_holds_other_things(luff: Luff) -> None:
    (luff.tmp / "notes").mkdir()
    (luff.tmp / "notes" / "a.txt").write_text("mine")
    err = _refused(luff, "run", "--run", str(luff.tmp / "notes"), "--", sys.executable, "-c", "1")
    assert "not empty" in err
    assert (luff.tmp / "notes" / "a.txt").read_text() == "mine"


def test_run_that_cannot_be_made(luff: Luff) -> None:
    (luff.tmp / "file").write_text("mine")
    err = _refused(luff, "run", "--run", str(luff.tmp / "file" / "run"), "--", "true")
    assert "--run" in err
    assert str(luff.tmp / "file") in err
    assert "no directory" in _refused(luff, "run", "--run", str(luff.tmp / "file"), "--", "true")
    assert "LUFF_HOME" in _refused(luff, "run", "--", "true", LUFF_HOME=str(luff.tmp / "file"))
    assert (luff.tmp / "file").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_run_in_a_directory_without_permission(luff: Luff) -> None:
    luff.cwd.chmod(0o500)
    assert "--run" in _refused(luff, "run", "--run", "run", "--", "true")


def test_findings_file_that_cannot_be_written(luff: Luff) -> None:
    path = str(luff.tmp / "none" / "findings.jsonl")
    err = _refused(luff, "run", "--findings", path, "--", "true")
    assert "--findings" in err
    assert path in err


def test_findings_go_to_a_device_without_replacing_it(luff: Luff) -> None:
    link = luff.tmp / "link"
    link.symlink_to("/dev/null")
    code, _, err = luff("run", "--run", str(luff.tmp / "run"), "--findings", str(link), "--", "true")
    assert code == 0, err
    assert link.is_symlink()


def test_resume_without_a_run(luff: Luff) -> None:
    assert "no such run" in _refused(luff, "run", "--resume", "--run", str(luff.tmp / "none"), "--", "true")
    assert "--run" in _refused(luff, "run", "--resume", "--", "true")


def test_program_that_is_missing_or_no_program(luff: Luff) -> None:
    plain = luff.tmp / "plain.txt"
    plain.write_text("text")
    for command, expected in ((str(plain), 126), ("no-such-command-here", 127), ("./none/x", 127)):
        code, _, err = luff("run", "--run", str(luff.tmp / "run"), "--", command)
        assert code == expected
        assert command in err
        assert not (luff.tmp / "run").exists()


def _python_without_luff(places: Path) -> str:
    """Returns an interpreter that finds a module called torch, but not luff."""
    places.mkdir()
    (places / "torch.py").write_text("")
    for python in (getattr(sys, "_base_executable", ""), str(Path(sys.base_prefix) / "bin" / "python3")):
        if not python or not Path(python).exists():
            continue
        probe = [python, "-c", "import luff"]
        done = subprocess.run(probe, capture_output=True, env={"PYTHONPATH": str(places)}, check=False)
        if done.returncode != 0:
            return python
    pytest.skip("every Python here has luff")


def test_python_without_luff_is_told_and_the_job_runs(luff: Luff) -> None:
    places = luff.tmp / "places"
    python = _python_without_luff(places)
    code, out, err = luff(
        "run", "--run", str(luff.tmp / "run"), "--", python, "-c", "import torch; print('trained')",
        PYTHONPATH=str(places),
    )  # fmt: skip
    assert code == 0, err
    assert out == "trained\n"
    told = err.splitlines()[0]
    assert "cannot import luff" in told
    assert "not watched" in told
    assert "install luff into" in told
    assert "nothing was recorded" in err
    assert not (luff.tmp / "run").exists()


def test_a_variable_that_an_action_needs_is_missed_at_once(luff: Luff) -> None:
    config = luff.tmp / "luff.toml"
    config.write_text('[[action]]\nkind = "webhook"\nname = "chat"\nurl_env = "NO_SUCH_URL"\n')
    code, _, err = luff("run", "--run", str(luff.tmp / "run"), "--config", str(config), "--", "true")
    assert code == 0
    assert "luff: action 'chat' cannot deliver anything: the variable NO_SUCH_URL (url_env) is not set" in err
    code, _, err = luff(
        "run",
        "--run",
        str(luff.tmp / "two"),
        "--config",
        str(config),
        "--",
        "true",
        NO_SUCH_URL="http://127.0.0.1:9",
    )
    assert code == 0
    assert "NO_SUCH_URL" not in err
