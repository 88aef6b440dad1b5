"""Every command over an attacker's run: nothing steers the terminal, and only requested files are written."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.report import Report, skip_without_page

from .conftest import executable
from .hostile import NAMES, assert_steers_nothing, make_run

ENVIRONMENT = {**os.environ, "LUFF_PYTHON": sys.executable, "TERM": "xterm", "COLUMNS": "100"}


def call(*words: object, cwd: Path, terminal: bool = False) -> tuple[int, bytes]:
    """Returns exit code and all output, written into pipes or onto a terminal."""
    command = [executable(), *map(str, words)]
    environment = ENVIRONMENT | {"LUFF_HOME": str(cwd.parent / "home")}
    if not terminal:
        done = subprocess.run(
            command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        told = b""
        while True:
            try:
                got = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not got:
                break
            told += got
        os.close(ours)
        return process.wait(60), told


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The attacker's run, whose own name steers a terminal too. Do not change it."""
    return make_run(tmp_path_factory.mktemp("hostile") / "run\x1b[31m\u202e")


@pytest.fixture(scope="module")
def twin(run: Path) -> Path:
    """A copy of it, which may be changed."""
    return Path(shutil.copytree(run, run.parent / "twin\x1b[31m"))


RUN, TWIN, FOLDER = "the run", "its copy", "the folder of the run"
READING = {
    "show": [[RUN], [RUN, "--json"]],
    "tensors": [[RUN], [RUN, "--json"], [RUN, "bidi"]],
    "summary": [[RUN, NAMES[0]], [RUN, NAMES[5], "--json"], [RUN, "nothing\x1b[31m"]],
    "value": [
        [RUN, NAMES[0], 1],
        [RUN, NAMES[8], 1, "--json"],
        [RUN, NAMES[3] + ".loss", 1],
        [RUN, "nothing\x1b", 1],
    ],
    "runs": [
        [FOLDER],
        [FOLDER, "--json"],
        [FOLDER, "--where", "no = \x1b"],
        [FOLDER, "--sort", "\x9b"],
        ["no\x1b"],
        ["file:///no\x1b"],
    ],
    "stop": [[RUN], ["no\x1b"]],
    "capture": [[RUN, "--include", "\x1b(", "--for-steps", 1], [RUN, "--include", "x", "--for-steps", 1]],
    "trace": [[RUN], ["no\x1b"]],
    "request": [
        ["stop", RUN, "--key", "no\x1b"],
        ["stop", "no\x1b"],
        ["lower_lr", RUN, "--factor", 0.5, "--reason", "\x1b[31m"],
    ],
    "keys": [
        ["check", "--run", RUN],
        ["check", "--run", RUN, "--json"],
        ["check", "no\x1b"],
        ["new", "key", "--may", "\x1b[31m"],
    ],
    "mark": [[RUN], [RUN, "\x1b[31m", "mute"], [RUN, "id1", "\x9b"]],
    "tag": [[RUN], ["no\x1b"], [RUN, "\x1b[31m"]],
    "label": [
        ["no\x1b"],
        [RUN, "--tag", "\x1b[31m"],
        [RUN, "--name", "\x1b[31m"],
        [TWIN, "--note", "\x1b[31m\u202e"],
        [TWIN],
        [TWIN, "--json"],
    ],
    "compare": [[RUN, RUN], [RUN, "no\x1b"], [RUN, TWIN], [RUN, TWIN, "--json"]],
    "metrics": [[RUN], [RUN, "--format", "json"], ["no\x1b"]],
    "log": [[RUN], [RUN, "--json"], [RUN, "--find", "(\x1b"], ["no\x1b"]],
    "tail": [[RUN, "--no-follow"], [RUN, "--no-follow", "--json"]],
    "plot": [[RUN], *([RUN, name] for name in NAMES[:10])],
    "profile": [[RUN], [RUN, "--json"], [RUN, "--steps", "\x1b"], ["no\x1b"]],
    "verify": [[RUN], [RUN, "--json"]],
    "check": [[RUN], [RUN, "--json"]],
    "sync": [[RUN, "no\x1b"], [RUN, "s3://\x1b[31m"], ["no\x1b", "file:///nowhere"]],
    "prune": [
        ["no\x1b", "--older", "9d", "--keep", "nothing"],
        ["file:///nowhere\x1b", "--older", "9d", "--keep", "nothing"],
        ["file:///nowhere", "--older", "\x1b", "--keep", "nothing"],
    ],
    "report": [[RUN, "-o", "-"]],
    "explain": [
        ["--run", RUN],
        ["id1", "--run", RUN],
        ["id1", "--json", "--run", RUN],
        ["nothing\x1b", "--run", RUN],
    ],
    "rules": [
        [],
        ["--json"],
        ["--cost", "--run", RUN],
        ["--cost", "--json", "--run", RUN],
        ["explain", "no\x1b"],
    ],
}


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("verb", READING)
def test_what_is_read_steers_no_terminal(
    run: Path, twin: Path, tmp_path: Path, verb: str, terminal: bool
) -> None:
    for words in READING[verb]:
        code, told = call(
            verb,
            *({RUN: run, TWIN: twin, FOLDER: run.parent}.get(word, word) for word in words),
            cwd=tmp_path,
            terminal=terminal,
        )
        assert code in (0, 1, 2, 3), told
        assert b"internal error" not in told
        assert_steers_nothing(told)
    assert list(tmp_path.iterdir()) == []


def test_no_command_is_forgotten(tmp_path: Path) -> None:
    told = call("--help", cwd=tmp_path)[1].decode()
    verbs = set(re.findall(r"^  ([a-z]+) ", told.split("\nSUBCOMMANDS:\n")[-1], re.MULTILINE))
    assert verbs, told
    # serve: tests/serve
    assert verbs == set(READING) | {"run", "watch", "export", "serve"}


def test_exports_write_below_their_target_only(run: Path, tmp_path: Path) -> None:
    cwd = tmp_path / "a" / "b" / "c"
    cwd.mkdir(parents=True)
    for form in ("csv", "tensorboard", "smdebug", "safetensors"):
        code, told = call("export", run, form, "--to", form, cwd=cwd)
        assert code == 0, told
        assert_steers_nothing(told)
    code, told = call("plot", run, *NAMES, "--out", "x.svg", cwd=cwd)
    assert_steers_nothing(told)
    assert code == 0 or b"matplotlib" in told, told
    assert {path.name for path in cwd.iterdir()} - {"x.svg"} == {
        "csv",
        "tensorboard",
        "smdebug",
        "safetensors",
    }
    assert [path.name for path in sorted(tmp_path.rglob("*")) if cwd not in path.parents] == ["a", "b", "c"]
    # A spreadsheet evaluates none of the texts.
    for table in (cwd / "csv").glob("*.csv"):
        assert_steers_nothing(table.read_bytes())
        with table.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert rows
        texts = ("tensor", "id", "rule", "cause", "mode", "what", "why", "remedy")
        assert [t for row in rows for t in map(row.get, texts) if t and t[0] in "=+-@\t\r"] == []
    # The format reserves this name.
    data = (cwd / "safetensors").read_bytes()
    header = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
    assert header.pop("__metadata__")["format"] == "pt"
    assert len(header) == len(
        [name for name in NAMES if max(name) < "\udc80"]
    )  # `include` finds valid UTF-8 only
    assert all(set(one) == {"dtype", "shape", "data_offsets"} for one in header.values())


def test_the_report_holds_the_run_in_its_archive_alone(run: Path, tmp_path: Path) -> None:
    code, told = call("report", run, cwd=tmp_path)
    skip_without_page(told.decode(errors="replace"))
    assert code == 0, told
    page = (tmp_path / "luff-report.html").read_bytes()
    assert_steers_nothing(page)
    assert b"alert(1)" not in page
    names = [tensor["name"] for tensor in Report(page.decode()).json("tensors")["tensors"]]
    assert "<script>alert(1)</script>" in names


def test_nothing_is_written_through_links_or_over_files(run: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    skip_without_page(call("report", run, "-o", "/dev/null", cwd=tmp_path)[1].decode(errors="replace"))
    writers = {
        "link.html": ("report", run, "-o"), "link.safetensors": ("export", run, "--to", "safetensors"),
    }  # fmt: skip
    for name, words in writers.items():
        (tmp_path / name).symlink_to(victim)
        for more in ([], ["--force"]):
            code, told = call(*words, name, *more, cwd=tmp_path)
            assert code == 2, told
            assert b"link" in told
        (tmp_path / "mine").write_text("mine")
        code, told = call(*words, "mine", cwd=tmp_path)
        assert code == 2
        assert b"--force" in told
        assert (tmp_path / "mine").read_text() == "mine"
        assert call(*words, "mine", "--force", cwd=tmp_path)[0] == 0
        assert (tmp_path / "mine").read_text(errors="replace") != "mine"
    # A directory that looks like an export of this run, with a link in place of a file that would be continued.
    assert call("export", run, "csv", "--to", "csv", cwd=tmp_path)[0] == 0
    state = json.loads((tmp_path / "csv" / "luff-export.json").read_text())
    (tmp_path / "csv" / "luff-export.json").write_text(
        json.dumps(state | {"done": False, "steps": 0, "files": {}})
    )
    (tmp_path / "csv" / "summaries.csv").unlink()
    (tmp_path / "csv" / "summaries.csv").symlink_to(victim)
    code, told = call("export", run, "csv", "--to", "csv", cwd=tmp_path)
    assert code == 2, told
    assert b"link" in told
    assert victim.read_text() == "mine"


def test_findings_go_into_no_pipe_and_through_no_link(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "link").symlink_to("victim")
    for name in ("pipe", "link"):
        code, told = call("run", "--run", "run", "--findings", name, "--", "true", cwd=tmp_path)
        assert code == 2, told
        assert b"--findings" in told
        assert not (tmp_path / "run").exists()
    assert (tmp_path / "victim").read_text() == "mine"


TRAINING = """
    import json, math, os, sys
    sys.path.insert(0, sys.argv[1])
    from hostile import NAMES
    import numpy as np
    from luff import _core
    from luff._codes import DType, EndReason, EventKind, Mode, Role

    told = json.loads(os.environ["LUFF_SESSION"])
    session = _core.Session.open(told["run"], join=True, config_json=json.dumps(told["config"]))
    names = [session.define_tensor(f"gradient/{name}.weight", int(Role.GRADIENT)) for name in NAMES]
    layout = session.define_layout(int(DType.FLOAT32), [4])
    for step in range(60):
        session.begin_step(int(Mode.TRAIN), step)
        array = np.full(4, math.nan if step > 10 else 1.0, np.float32)
        for name in names:
            session.capture_one(name, layout, array.ctypes.data)
        session.event(int(EventKind.BACKWARD))
        session.end_step(int(Mode.TRAIN), step, step, step)
    session.close(int(EndReason.COMPLETED), 10.0)
"""


@pytest.mark.parametrize("terminal", [False, True])
def test_findings_of_a_training_steer_no_terminal(tmp_path: Path, terminal: bool) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAINING))
    code, told = call(
        "run", "--run", "run\x1b[31m", "--findings", "found.jsonl", "--report", "report.html", "--", sys.executable,
        "train.py", Path(__file__).parent, cwd=tmp_path, terminal=terminal,
    )  # fmt: skip
    assert code == 0, told
    assert b"NonFinite" in told
    assert_steers_nothing(re.sub(rb"(luff: (?:step|waiting)[^\r\n\x1b]*)(?:\x1b\[0m)?\r", rb"\1", told))
    skip_without_page(told.decode(errors="replace"))
    for name in ("found.jsonl", "report.html"):
        assert_steers_nothing((tmp_path / name).read_bytes())
