"""`attach(upload=URL)`: a training that no `luff run` watches is uploaded by a process that is not its child."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import TRAIN
from luff._upload_beside import take_upload, upload_beside
from luff.errors import InvalidArgumentError
from luff.remote._head import parse_head_untrusted
from luff.remote._store import open_store

ATTACHED = TRAIN.replace(
    "for _ in range(steps):",
    """import luff.torch, os
luff.torch.attach(model, optimizer=optimizer, run=sys.argv[4], upload=sys.argv[5])
for _ in range(steps):""",
)
NO_CHILD = """
try:
    print(os.wait())
except ChildProcessError:
    print("no child")
"""


@pytest.fixture
def attached(tmp_path):
    """Starts a script that attaches itself. Returns the process and its run."""
    script = tmp_path / "attached.py"
    script.write_text(ATTACHED + NO_CHILD)
    started = []

    def start(url, steps=40, pause=0.0, name="run", **options):
        words = [sys.executable, script, steps, pause, 0.1, tmp_path / name, url]
        process = subprocess.Popen(
            list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
        )
        started.append(process)
        return process, tmp_path / name

    yield start
    for process in started:
        process.kill()
        process.communicate()


def head_of(store, run_id):
    """The manifest of the run's head once it has ended; waits for it."""
    end = time.monotonic() + 200
    while time.monotonic() < end:
        for key in store.objects("live/", 100):
            manifest, _ = parse_head_untrusted(store.get(f"live/{key.name}", 4 << 20)[0])
            if manifest.run_id == run_id and manifest.state == "ended":
                return manifest
        time.sleep(0.1)
    pytest.fail("the upload has not ended")


def run_id_of(run):
    return json.loads((run / "run.json").read_text())["run_id"]


def test_the_run_is_uploaded_and_the_training_is_as_without(luff, attached, base, tmp_path):
    with_it, run = attached(base)
    told, errors = with_it.communicate(timeout=300)
    without, _ = attached("", name="other")
    assert told == without.communicate(timeout=300)[0]
    assert told.endswith("no child\n")
    assert errors == ""
    manifest = head_of(open_store(base), run_id_of(run))
    for file, entry in manifest.files.items():
        assert entry.bytes == (run / file.path).stat().st_size, file
    end = time.monotonic() + 60
    while "upload" not in luff("show", run).stdout and time.monotonic() < end:
        time.sleep(0.1)
    assert f"upload    {base}/{run_id_of(run)}: " in luff("show", run).stdout
    assert (run / "sync" / "log").read_text() == ""


def test_a_training_that_was_killed_is_uploaded_to_its_end(attached, base):
    process, run = attached(base, steps=100_000, pause=0.01)
    end = time.monotonic() + 200
    while not list(open_store(base).objects("live/", 100)) and time.monotonic() < end:
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    head_of(open_store(base), run_id_of(run))


def test_what_can_never_be_a_bucket_is_said_in_the_log_of_the_run(attached, tmp_path):
    (tmp_path / "bucket").write_text("a file")
    process, run = attached(f"file://{tmp_path}/bucket")
    _, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (0, "")
    end = time.monotonic() + 60
    while "bucket" not in (run / "sync" / "log").read_text() and time.monotonic() < end:
        time.sleep(0.1)
    assert f"a file where a folder is expected, {tmp_path}/bucket" in (run / "sync" / "log").read_text()


def test_under_luff_run_the_command_line_decides(luff, tmp_path):
    script = tmp_path / "attached.py"
    script.write_text(ATTACHED)
    bucket = tmp_path / "bucket"
    luff(
        "run",
        "--run",
        tmp_path / "run",
        "--",
        sys.executable,
        script,
        5,
        0,
        0.1,
        tmp_path / "x",
        f"file://{bucket}",
    )
    assert not (tmp_path / "run" / "sync").exists()  # made before an upload beside a training begins
    assert not bucket.exists()


def test_the_upload_sees_files_as_the_training_does(luff, attached, tmp_path):
    """Credentials may be in a file that the environment names relative to the working directory."""
    (tmp_path / "here").mkdir()
    process, run = attached(f"file://{tmp_path}/bucket", steps=100_000, pause=0.01, cwd=tmp_path / "here")
    end = time.monotonic() + 200
    while not list(open_store(f"file://{tmp_path}/bucket").objects("live/", 100)) and time.monotonic() < end:
        time.sleep(0.1)
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
            if b"sync" in words and os.fsencode(run) in words:
                found.append(os.readlink(f"/proc/{pid}/cwd"))
        except OSError:
            continue
    assert found == [str(tmp_path / "here")]
    os.kill(process.pid, signal.SIGKILL)
    head_of(open_store(f"file://{tmp_path}/bucket"), run_id_of(run))


def test_a_frozen_application_does_not_start_itself_again(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(InvalidArgumentError, match="a Python of its own"):
        upload_beside(str(tmp_path), f"file://{tmp_path}/bucket")
    assert list(tmp_path.iterdir()) == [tmp_path / "cache"] or not list(tmp_path.iterdir())


@pytest.mark.parametrize("url", ["ftp://x", "file://relative", 7, "s3://user:word@bucket"])
def test_a_wrong_url_is_an_error_before_the_training(url):
    with pytest.raises(InvalidArgumentError, match="upload"):
        take_upload({"upload": url})


def test_the_option_of_durability_is_another_one():
    """`sync` of a capture says what is flushed to the disk."""
    config = {"sync": "none", "upload": "file:///bucket"}
    assert take_upload(config) == "file:///bucket"
    assert config == {"sync": "none"}


FORKS = """
import os, sys
import numpy as np
import luff._base_hook, luff.numpy
luff._base_hook.upload_beside = lambda run, url: open(f"{sys.argv[2]}/{os.getpid()}", "x").close()
weights = {"w": np.ones(4, np.float32)}
hook = luff.numpy.attach(weights, run=sys.argv[1], upload="file:///bucket")
def train():
    with hook.step() as step:
        step.loss(1.0)
train()
for _ in range(3):
    child = os.fork()
    if child == 0:
        train()
        hook.close()
        os._exit(0)
    os.waitpid(child, 0)
hook.close()
"""


def test_forked_children_that_train_start_no_upload_of_their_own(tmp_path):
    (tmp_path / "started").mkdir()
    words = [sys.executable, "-c", FORKS, tmp_path / "run", tmp_path / "started"]
    subprocess.run(list(map(str, words)), check=True, timeout=120)
    assert len(list((tmp_path / "run").glob("w*"))) == 4  # each child trained as a worker
    assert len(list((tmp_path / "started").iterdir())) == 1
