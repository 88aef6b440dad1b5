"""What stays on the host once it is uploaded: only the writer removes values, and only what the bucket has."""

from __future__ import annotations

import json
import os
import secrets
import sys

import numpy as np
import pytest
from bucket_copies import copy_of
from luff.remote._files import File
from luff.remote._store import open_store
from luff.remote._upload_notes import values_elsewhere
from luff.remote._uploader import Uploader


def told(run):
    return json.loads((run.path / "sync" / "uploaded.json").read_text())


def test_the_writer_is_told_only_of_what_parts_have(run, store):
    uploader = Uploader(str(run.path), store, keep_local=1000)
    uploader.begin()
    run.append("w0000/d-000001.lfd", secrets.token_bytes(9 << 20))
    uploader.flush()
    entry = uploader._manifest.files[File("w", 0, "d", 1)]
    assert told(run)["payload"] == ([] if entry.tail else [[0, 1, 9 << 20]])
    run.append("w0000/d-000002.lfd", b"in the head")
    uploader.flush()
    said = told(run)
    assert (said["keep_bytes"], said["url"]) == (1000, f"{store.url}/{run.run_id}")
    assert [0, 2, 11] not in said["payload"]
    run.append("w0000/m-000001.lfm", b"row")
    uploader.flush()  # the file rests
    assert [0, 2, 11] in told(run)["payload"]
    uploader.flush("ended")
    assert told(run)["payload"] == [[0, 1, 9 << 20], [0, 2, 11]]
    (run.path / "w0000" / "d-000001.lfd").unlink()  # as the writer does
    uploader.flush("ended")
    assert told(run)["payload"] == [[0, 2, 11]]


def test_what_the_writer_has_removed_stays_in_the_bucket(run, store, tmp_path):
    payload = secrets.token_bytes(3 << 20)
    run.append("w0000/d-000001.lfd", payload)
    uploader = Uploader(str(run.path), store, keep_local=0)
    uploader.begin()
    uploader.flush("draining")
    while told(run)["payload"] != [[0, 1, len(payload)]]:
        uploader.flush("ended")
    (run.path / "w0000" / "d-000001.lfd").unlink()
    run.append("w0000/m-000001.lfm", b"the row that says so")
    uploader.flush("ended")
    spool, copy = copy_of(store, run, tmp_path / "copy")
    assert copy["w0000/d-000001.lfd"] == payload
    assert spool.over


def test_nothing_is_told_where_all_is_to_stay(run, store):
    run.append("w0000/d-000001.lfd", b"values")
    uploader = Uploader(str(run.path), store)
    uploader.begin()
    uploader.flush("ended")
    assert not (run.path / "sync" / "uploaded.json").exists()


@pytest.mark.parametrize("words", [["--keep-local", "-1"], ["--keep-local", "much"]])
def test_a_wrong_size_is_explained(luff, run, tmp_path, words):
    done = luff("sync", run.path, f"file://{tmp_path}/bucket", *words, expect=2)
    assert "keep-local" in done.stderr
    done = luff("run", "--keep-local", "1GB", "--", "true", expect=2)
    assert "it needs --sync" in done.stderr


KEEPS_VALUES = """
import sys, time
import numpy as np
import luff.numpy

weights = {"w": np.zeros(4, np.float32)}
kept = [{"name": "kept", "include": ["^kept$"], "forms": ["raw"], "save": {"save_interval": 1}}]
with luff.numpy.attach(weights, collections=kept) as hook:
    for number in range(int(sys.argv[1])):
        with hook.step() as step:
            step.loss(1.0 / (number + 1))
            luff.numpy.save_tensor("kept", np.random.default_rng(number).random(200_000, np.float32))
        time.sleep(float(sys.argv[2]))
"""


@pytest.mark.thorough
def test_a_job_keeps_only_what_its_owner_asked_for_and_all_is_read_by_the_url(luff, tmp_path):
    """Values rest for a minute before they go, so it takes two."""
    import luff as package
    from luff import errors

    script, place, base = tmp_path / "train.py", tmp_path / "run", f"file://{tmp_path}/bucket"
    script.write_text(KEEPS_VALUES)
    luff(
        "run", "--run", place, "--sync", base, "--keep-local", "1MB", "--", sys.executable, script, 800, 0.11,
    )  # fmt: skip
    run_id = json.loads((place / "run.json").read_text())["run_id"]
    with package.open_trial(place) as here, package.open_trial(f"{base}/{run_id}") as there:
        assert any(gap["reason"] == "uploaded" for gap in here.gaps())
        assert not any(gap["reason"] == "uploaded" for gap in there.gaps())
        steps = there.tensor("kept").value_steps()
        assert len(steps) == 800
        left = here.tensor("kept").value_steps()
        assert 0 < len(left) < 780
        for step in (*steps[:3], *steps[-3:]):
            wanted = np.random.default_rng(step).random(200_000, np.float32)
            assert (there.tensor("kept").value(step) == wanted).all()
        with pytest.raises(errors.LuffError, match=rf"in the bucket and not here any more.*{run_id}"):
            here.tensor("kept").value(steps[0])
    assert luff("verify", place).returncode == luff("verify", f"{base}/{run_id}").returncode == 0


def test_another_bucket_lacks_what_the_first_one_alone_has_and_it_is_said(luff, run, tmp_path):
    run.append("w0000/m-000001.lfm", b"rows")
    run.append("w0000/d-000001.lfd", b"values")
    first, second = (f"file://{tmp_path}/{name}" for name in ("first", "second"))
    uploader = Uploader(str(run.path), open_store(first), keep_local=0)
    uploader.begin()
    for _ in range(3):
        uploader.flush()
    assert values_elsewhere(str(run.path), f"{first}/{uploader.run_id}") == ""
    os.unlink(run.path / "w0000/d-000001.lfd")  # as the writer does
    uploader.flush()
    uploader.close()
    done = luff("sync", run.path, second, "--drain", 60, expect=6)
    assert f"removed from this host are in {first}/{run.run_id} alone" in done.stderr
    assert luff("sync", run.path, first, "--drain", 60).returncode == 0
