"""`attach(upload=URL)`: a training that no `luff run` watches is uploaded by a process that is not its child."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from conftest import TRAIN
from luff._upload_beside import take_upload
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


def test_a_bucket_that_is_away_is_said_in_the_log_of_the_run(attached, tmp_path):
    (tmp_path / "bucket").write_text("a file")
    process, run = attached(f"file://{tmp_path}/bucket")
    _, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (0, "")
    end = time.monotonic() + 60
    while "bucket" not in (run / "sync" / "log").read_text() and time.monotonic() < end:
        time.sleep(0.1)
    assert f"File exists: {tmp_path}/bucket" in (run / "sync" / "log").read_text()
    (tmp_path / "bucket").unlink()
    head_of(
        open_store(f"file://{tmp_path}/bucket"), run_id_of(run)
    )  # it goes on, although the training has ended


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
    assert not bucket.exists()


@pytest.mark.parametrize("url", ["ftp://x", "file://relative", 7, "s3://user:word@bucket"])
def test_a_wrong_url_is_an_error_before_the_training(url):
    with pytest.raises(InvalidArgumentError, match="upload"):
        take_upload({"upload": url})


def test_the_option_of_durability_is_another_one():
    """`sync` of a capture says what is flushed to the disk."""
    config = {"sync": "none", "upload": "file:///bucket"}
    assert take_upload(config) == "file:///bucket"
    assert config == {"sync": "none"}
