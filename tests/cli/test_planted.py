"""Files planted in a run are read within bounds or rejected with a message. No verb crashes, hangs, follows a
link out of the run, or allocates memory for what a file only claims.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Command, Done

GOLDEN = Path(__file__).parents[2] / "testdata/format/v1/run"
SECRET = "secret-of-another-directory"
FILES = [
    "w0000/m-000001.lfm",
    "w0000/m-000004.lfm",
    "w0000/d-000001.lfd",
    "w0000/live",
    "control/000001.json",
    "rules/luff/findings.jsonl",
    "rules/luff/actions.jsonl",
    "rules/luff/checkpoint.json",
]
FINDING = {"event": "new", "id": SECRET, "rule": "NonFinite", "severity": "stop", "what": SECRET}
RECORD = {"number": 1, "kind": "outcome", "body": {"state": SECRET, "why": SECRET}}
MEMORY = 2 << 30


def _fifo(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def _link_to_zero(path: Path, outside: Path) -> None:
    path.symlink_to("/dev/zero")


def _link_out(path: Path, outside: Path) -> None:
    """Plants a link to a file that would be valid in its place, and contains more than the run does."""
    target = outside / path.name
    if path.name == "findings.jsonl":
        target.write_text(json.dumps(FINDING) + "\n")
    elif path.parent.name == "control":
        target.write_text(json.dumps(RECORD))
    elif (GOLDEN / "w0000" / path.name).exists():
        shutil.copy(GOLDEN / "w0000" / path.name, target)
    else:
        shutil.copy(GOLDEN / "run.json", target)
    path.symlink_to(target)


def _directory(path: Path, outside: Path) -> None:
    path.mkdir()


def _sparse(path: Path, outside: Path) -> None:
    path.touch()
    os.truncate(path, 40 << 30)


def _deep(path: Path, outside: Path) -> None:
    path.write_text("[" * 100_000 + "\n" + '{"a":' * 100_000 + "\n")


PLANTS: list[Callable[[Path, Path], None]] = [
    _fifo,
    _link_to_zero,
    _link_out,
    _directory,
    _sparse,
    _deep,
]


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def _call(*arguments: object) -> Done:
    executable = os.environ.get("LUFF_EXECUTABLE") or str(Path(sys.executable).parent / "luff")
    done = subprocess.run(
        [executable, *map(str, arguments)],
        capture_output=True, text=True, errors="replace", timeout=60, check=False, preexec_fn=_limited,
        stdin=subprocess.DEVNULL, env={**os.environ, "NO_COLOR": "1", "COLUMNS": "100"},
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr)


def _verbs(run: Path, out: Path) -> list[list[object]]:
    return [
        ["show", run],
        ["show", run, "--json"],
        ["tensors", run],
        ["summary", run, "fc.weight"],
        ["value", run, "fc.weight", 0],
        ["tail", run, "--no-follow"],
        ["check", run, "--rules", "NonFinite,LossNotDecreasing"],
        ["verify", run],
        ["explain", "--run", run],
        ["report", run, "-o", out / "report.html"],
        ["export", run, out / "csv", "--to", "csv"],
        ["export", run, out / "smdebug", "--to", "smdebug"],
    ]


def _plant(run: Path, name: str, plant: Callable[[Path, Path], None], outside: Path) -> None:
    path = run / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    plant(path, outside)


def _every_verb(run: Path, out: Path) -> None:
    out.mkdir()
    for arguments in _verbs(run, out):
        done = _call(*arguments)
        assert done.code in (0, 1, 2), (arguments, done)
        assert "Traceback" not in done.err
        assert SECRET not in done.out + done.err, arguments
        if done.code == 2:
            assert str(run) in done.err, done  # the error names the file
    for file in (path for path in out.rglob("*") if path.is_file()):
        assert SECRET not in file.read_text(errors="replace"), file


@pytest.fixture
def run(tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    return tmp_path / "outside"


@pytest.mark.parametrize("plant", PLANTS)
def test_planted_in_place_of_all_files(
    plant: Callable[[Path, Path], None], run: Path, outside: Path, tmp_path: Path
) -> None:
    for name in FILES:
        _plant(run, name, plant, outside)
    _every_verb(run, tmp_path / "out")


@pytest.mark.thorough
@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("name", FILES)
def test_planted_in_place_of_one_file(
    name: str, plant: Callable[[Path, Path], None], run: Path, outside: Path, tmp_path: Path
) -> None:
    _plant(run, name, plant, outside)
    _every_verb(run, tmp_path / "out")


@pytest.mark.parametrize("plant", PLANTS)
def test_planted_in_place_of_run_json(
    plant: Callable[[Path, Path], None], run: Path, outside: Path, tmp_path: Path
) -> None:
    _plant(run, "run.json", plant, outside)
    for verb in ("show", "verify", "check"):
        done = _call(verb, run)
        assert done.code == 2, done
        assert str(run) in done.err


def test_a_worker_that_is_a_link(run: Path, outside: Path) -> None:
    """The worker's files would be those of another directory."""
    shutil.move(run / "w0000", outside / "w0000")
    (run / "w0000").symlink_to(outside / "w0000")
    shown = _call("show", run, "--json")
    assert shown.code == 0, shown.err
    assert json.loads(shown.out)["steps"] == 0
    assert any("found a link, expected a file" in p for p in json.loads(shown.out)["problems"]), shown.out
    assert _call("verify", run).code != 0


@pytest.mark.parametrize("plant", [_deep, _link_out, _sparse, _fifo])
def test_a_resumed_job_begins(plant: Callable[[Path, Path], None], run: Path, outside: Path) -> None:
    """A deeply nested line among the findings used to end the supervisor before the training began."""
    for name in ("rules/luff/findings.jsonl", "rules/luff/actions.jsonl", "control/000001.json"):
        _plant(run, name, plant, outside)
    begun = time.monotonic()
    done = _call("run", "--run", run, "--resume", "--rules", "NonFinite", "--", "/bin/sh", "-c", "echo begun")
    assert "begun" in done.out, done
    assert done.code == 0, done
    assert time.monotonic() - begun < 30


def test_findings_beside_a_deep_line_are_shown(luff: Command, run: Path) -> None:
    folder = run / "rules" / "luff"
    folder.mkdir(parents=True)
    lines = ["[" * 100_000, json.dumps({**FINDING, "id": "0123"}), '{"a":' * 100_000]
    (folder / "findings.jsonl").write_text("".join(line + "\n" for line in lines))
    shown = json.loads(luff("show", run, "--json").out)
    assert [finding["id"] for finding in shown["finding_list"]] == ["0123"]
    assert any("2 lines are no findings" in problem for problem in shown["problems"])


def test_what_is_not_read_is_said(luff: Command, run: Path, outside: Path) -> None:
    for plant, why in ((_link_out, "found a link, expected a file"), (_sparse, "found 42949672960 bytes")):
        _plant(run, "rules/luff/findings.jsonl", plant, outside)
        shown = luff("show", run, "--json")
        assert shown.code == 0, shown.err
        assert any(why in problem for problem in json.loads(shown.out)["problems"]), shown.out
