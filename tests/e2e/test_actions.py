"""Actions of `luff run`: notifications, dry runs, commands, the audit, mistakes in the file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import Job, Luff
from .test_actions_notify import _Server

_KEY = "kEy-that-nobody-may-see"


def _audit(run: Path) -> list[dict[str, Any]]:
    file = run / "rules" / "luff" / "actions.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _run(luff: Luff, config: str, *options: str, **environment: str) -> Job:
    file = luff.tmp / "luff.toml"
    file.write_text(config)
    arguments = ("--nan-at", "30", "--steps", "60")
    return luff.run("steps.py", "--config", str(file), *options, arguments=arguments, **environment)


def _texts(run: Path) -> Iterator[str]:
    for file in run.rglob("*"):
        if file.is_file():
            yield file.read_bytes().decode("latin-1")


def test_a_webhook_tells_the_finding_and_no_secret_is_left(luff: Luff) -> None:
    with _Server([(500, {}), (200, {})]) as server:
        config = f"""[[action]]
kind = "webhook"
rules = ["NonFinite"]
url = "{server.url()}&token=t0ken"
secret_env = "HOOK_KEY"
backoff_s = 0.05
limit = 1
"""
        job = _run(luff, config, HOOK_KEY=_KEY)
    assert job.code == 0, job.stderr
    told = [f for f in job.findings if f["rule"] == "NonFinite"]
    body = json.loads(server.seen[-1][2])
    assert body["finding"]["id"] == told[0]["id"]
    assert body["command"] == "steps"
    audit = _audit(job.run)
    assert [line["event"] for line in audit if line["id"] == audit[0]["id"]][:4] == [
        "begun", "attempt", "attempt", "done",
    ]  # fmt: skip
    assert audit[0]["id"] == body["delivery"] == server.seen[0][1]["x-luff-delivery"]
    for text in [*_texts(job.run), job.stderr, job.stdout]:
        assert _KEY not in text
        assert "t0ken" not in text
    # An action that was begun and not ended is begun again, under its id, when the run is resumed.
    file = job.run / "rules" / "luff" / "actions.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in audit if line["event"] != "done") + '{"torn')
    with _Server([(200, {})]) as server:
        config = config.replace(config.split('url = "')[1].split('"')[0], server.url())
        again = _run(luff, config, "--resume", HOOK_KEY=_KEY)
    assert again.code == 0, again.stderr
    assert body["delivery"] in {headers["x-luff-delivery"] for _, headers, _ in server.seen}


def test_a_server_that_refuses_is_told_on_the_terminal(luff: Luff) -> None:
    with _Server([(404, {})]) as server:
        job = _run(
            luff, f'[[action]]\nkind = "webhook"\nname = "oncall"\nurl = "{server.url()}"\nlimit = 1\n'
        )
    assert job.code == 0
    assert "luff: webhook 'oncall' failed: HTTP 404" in job.stderr
    assert "failed" in [line["event"] for line in _audit(job.run)]


def test_what_touches_is_a_dry_run_until_it_is_switched_on(luff: Luff) -> None:
    touched = luff.tmp / "touched"
    config = f"""[[action]]
kind = "stop"

[[action]]
kind = "command"
argv = ["touch", "{touched}"]
"""
    job = _run(luff, config)
    assert job.code == 0, job.stderr
    assert "done" in job.stdout
    assert not touched.exists()
    assert "dry run: action 'stop' would stop the job because of NonFinite" in job.stderr
    assert {line["event"] for line in _audit(job.run)} == {"dry_run"}
    assert not list((job.run / "control").glob("*stop*"))


def test_a_command_gets_the_finding_on_its_input_and_no_shell(luff: Luff) -> None:
    out = luff.tmp / "out.json"
    program = "import sys; open(sys.argv[1], 'w').write(sys.stdin.read() + sys.argv[2])"
    argv = json.dumps([sys.executable, "-c", program, str(out), "$HOME; echo x"])
    job = _run(luff, f'[[action]]\nkind = "command"\nargv = {argv}\ndry_run = false\nlimit = 1\n')
    assert job.code == 0, job.stderr
    text = out.read_text()
    assert text.endswith("$HOME; echo x")
    assert json.loads(text.splitlines()[0])["finding"]["rule"] in job.rules()
    assert _audit(job.run)[1]["event"] == "done"


def test_a_command_that_hangs_is_ended(luff: Luff) -> None:
    config = (
        '[[action]]\nkind = "command"\nargv = ["sleep", "600"]\ntimeout_s = 0.5\ndry_run = false\nlimit = 1\n'
    )
    job = _run(luff, config)
    assert job.code == 0, job.stderr
    assert "it took too long and was ended" in job.stderr


def test_a_stop_runs_the_call_back_of_an_unchanged_job(luff: Luff) -> None:
    file = luff.tmp / "luff.toml"
    file.write_text('[[action]]\nkind = "stop"\ndry_run = false\n')
    log = luff.tmp / "rate"
    job = luff.run(
        "correctable.py",
        "--config",
        str(file),
        arguments=("--rates", str(log), "--until", str(luff.tmp / "until")),
    )
    assert job.code == 76, job.stderr
    assert Path(f"{log}-0.checkpoint").read_text() == "saved"
    events = [line["event"] for line in _audit(job.run)]
    # On a busy machine the training may pass the proposed step before it has heard of it.
    again = (len(events) - 3) // 2
    assert events == ["begun", *["proposed", "aborted"] * again, "proposed", "committed"]


def test_a_stop_whose_step_was_too_late_is_proposed_again_and_the_audit_says_why(luff: Luff) -> None:
    file = luff.tmp / "luff.toml"
    # Proposed 3 steps ahead at first, which the training has passed when it hears of it.
    file.write_text('[stop]\nlead_s = 0.01\n[[action]]\nkind = "stop"\ndry_run = false\n')
    arguments = ("--rates", str(luff.tmp / "rate"), "--until", str(luff.tmp / "until"))
    job = luff.run("correctable.py", "--config", str(file), arguments=arguments)
    assert job.code == 76, job.stderr
    audit = _audit(job.run)
    proposed = [line for line in audit if line["event"] == "proposed"]
    aborted = [line for line in audit if line["event"] == "aborted"]
    assert len(proposed) == len(aborted) + 1
    assert all("too late" in line["detail"] for line in aborted)


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ('kind = "webhok"', "nearest: webhook", 2),
        ('kind = "stop"\nsevrity = "stop"', "nearest: severity", 3),
        ('kind = "webhook"', "without 'url' or 'url_env'", 1),
        ('kind = "webhook"\nurl = "ftp://x"', "https://", 3),
        ('kind = "lower_lr"\nfactor = 2', "'factor'", 3),
        ('kind = "stop"\nrules = ["NonFinit"]', "NonFinite", 3),
        ('kind = "stop"\nafter_s = 3', "without 'escalates'", 1),
        ('kind = "trace"', "an [[action]] of kind trace without 'rules'", 1),
        ('kind = "trace"\nrules = ["InputBound"]\nsteps = 11', "whole number between 1 and 10", 4),
        ('kind = "stop"\nescalates = "x"\nafter_s = 3', "names no [[action]]", 3),
        ('kind = "mail"\nhost = "h"\nfrom = "a@b"\nto = ["a@b\\r\\nBcc: c@d"]', "no address", 5),
        ('kind = "mail"\nhost = "h"\nfrom = "a@b"\nto = ["a@b"]\nuser = "u"', "password_env", 1),
        ('kind = "command"\nargv = "rm -rf"', "'argv'", 3),
        ('kind = "webhook"\nurl = "https://x"\nsecret_file = "/nowhere/key"', "names no file", 4),
        ('dry_run = true', "without 'kind'", 1),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line_before_the_job_begins(
    luff: Luff, text: str, message: str, line: int
) -> None:
    job = _run(luff, "[[action]]\n" + text + "\n")
    assert job.code == 2
    assert message in job.stderr
    assert f"luff.toml, line {line}" in job.stderr.replace("\n", " ")
    assert job.stdout == ""
    assert not job.run.exists()
