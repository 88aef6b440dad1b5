"""Live outputs of `luff run`: written during the training, and complete when it has ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import luff as library

from tests.report import Report, skip_without_page

from .conftest import Luff, processes_with

LOSS = "MSELoss_output_0"


def test_outputs_are_complete_when_the_job_has_ended(luff: Luff) -> None:
    tensorboard, smdebug = luff.tmp / "tb", luff.tmp / "sm"
    job = luff.run("train.py", "--tensorboard", str(tensorboard), "--smdebug", str(smdebug))
    assert job.code == 0, job.stderr
    assert len(job.stderr.splitlines()) == 2, job.stderr  # what the rules lacked, and the verdict
    trial, copy = library.open_trial(job.run), library.open_trial(smdebug)
    assert copy.steps() == trial.steps()
    assert copy.outcome == "completed"
    assert copy.scalars(LOSS)["value"].tolist() == trial.scalars(LOSS)["value"].tolist()
    assert copy.problems() == []
    for folder in (tensorboard, smdebug):
        state = json.loads((folder / "luff-export.json").read_text())
        assert state["done"]
        assert state["steps"] == len(trial.steps())
    assert list((tensorboard / "train").glob("events.out.tfevents.*"))
    # The live outputs are the same as exports made afterwards.
    for form, live in (("tensorboard", tensorboard), ("smdebug", smdebug)):
        code, _, err = luff("export", str(job.run), str(luff.tmp / form), "--to", form)
        assert code == 0, err
        after = luff.tmp / form
        names = {p.relative_to(after) for p in after.rglob("*") if p.is_file()}
        assert {p.relative_to(live) for p in live.rglob("*") if p.is_file()} == names
        for name in names:
            if name.suffix == ".tfevents" or name.parts[0] == "train":
                assert (live / name).read_bytes() == (after / name).read_bytes(), name


def test_outputs_stand_in_the_configuration_file(luff: Luff) -> None:
    config = luff.tmp / "luff.toml"
    config.write_text(f'[output]\ntensorboard = "{luff.tmp / "tb"}"\n')
    job = luff.run("steps.py", "--config", str(config))
    assert job.code == 0, job.stderr
    assert (luff.tmp / "tb" / "train").is_dir()
    config.write_text('[output]\ntensorbord = "x"\n')
    code, _, err = luff("run", "--config", str(config), "--", "true")
    assert code == 2
    assert "tensorboard" in err


def test_the_report_is_written_at_the_end(luff: Luff) -> None:
    page = luff.tmp / "report.html"
    job = luff.run("steps.py", "--report", str(page), arguments=("--nan-at", "60"))
    assert job.code == 0, job.stderr
    skip_without_page(job.stderr)
    assert job.stderr.splitlines()[-1] == f"luff: report: {page}"
    text = page.read_text()
    report = Report(text)
    assert "NonFinite" in {finding["rule"] for finding in report.json("findings")["findings"]}
    assert report.json("")["outcome"]["state"] == "completed"
    code, _, err = luff("report", str(job.run), "-o", str(luff.tmp / "again.html"))
    assert code == 0, err
    assert (luff.tmp / "again.html").read_text() == text
    config = luff.tmp / "luff.toml"
    config.write_text(f'[output]\nreport = "{luff.tmp}"\n')  # a directory
    code, out, err = luff("run", "--run", str(luff.tmp / "other"), "--config", str(config), "--", sys.executable,
                          str(Path(__file__).parent / "scripts" / "steps.py"))  # fmt: skip
    assert code == 0
    assert "done" in out
    assert "the report cannot be written: a directory stands there" in err
    config.write_text("[output]\nreport = 5\n")
    code, _, err = luff("run", "--config", str(config), "--", "true")
    assert code == 2
    assert "'report' in [output] is no file" in err


def test_a_directory_with_other_things_is_refused_before_the_job_begins(luff: Luff) -> None:
    taken = luff.tmp / "taken"
    taken.mkdir()
    (taken / "notes").write_text("x")
    job = luff.run("steps.py", "--tensorboard", str(taken))
    assert job.code == 2
    assert "not empty" in job.stderr
    assert job.stdout == ""
    assert not job.run.exists()


def test_an_output_that_cannot_be_written_harms_nothing(luff: Luff) -> None:
    script = Path(__file__).parent / "scripts" / "steps.py"
    command = [sys.executable, str(script), "--run", str(luff.tmp / "alone")]
    alone = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (luff.tmp / "file").write_text("x")
    job = luff.run("steps.py", "--smdebug", str(luff.tmp / "file" / "below"))
    assert job.code == 0, job.stderr
    assert job.stdout == alone
    assert "the smdebug output has ended" in job.stderr
    assert "luff export" in job.stderr
    assert processes_with(str(job.run)) == []


def test_an_output_that_hangs_is_left_after_a_while(luff: Luff) -> None:
    run, reached, go = luff.tmp / "run", luff.tmp / "reached", luff.tmp / "go"
    script = Path(__file__).parent / "scripts" / "steps.py"
    process = luff.start(
        "run", "--run", str(run), "--tensorboard", str(luff.tmp / "tb"), "--", sys.executable, str(script),
        "--wait-at", "20", "--reached", str(reached), "--go", str(go), LUFF_RULE_IDLE_S="2",
    )  # fmt: skip
    while not reached.exists():
        assert process.poll() is None
        time.sleep(0.05)
    outputs = processes_with(f"-- {run} {luff.tmp / 'tb'}")
    assert outputs
    for pid in outputs:
        os.kill(pid, signal.SIGSTOP)  # as if its disk were gone
    go.touch()
    _, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    assert f"luff: the tensorboard output is not complete; `luff export {run} --to tensorboard" in err
    assert processes_with(str(run)) == []


def test_a_job_that_records_nothing_leaves_no_output(luff: Luff) -> None:
    code, _, err = luff(
        "run", "--run", str(luff.tmp / "run"), "--smdebug", str(luff.tmp / "sm"), "--", "true"
    )
    assert code == 0
    assert "nothing was recorded" in err
    assert "smdebug output" not in err
    assert not (luff.tmp / "sm").exists()
