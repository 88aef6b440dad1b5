"""`luff prune`: what is old goes, what is not stays, and readers are told what is gone."""

from __future__ import annotations

import json
import os
import secrets
import time
from pathlib import Path

import pytest
from bucket_copies import copy_of
from conftest import Run
from luff.remote._files import File
from luff.remote._prune import old_runs, prune
from luff.remote._spool import Gone
from luff.remote._store import open_store
from luff.remote._uploader import Fenced, Uploader

DAY_NS = 86400 * 10**9


def upload(store, folder, ended=True):
    """A run with rows, values and a card. Returns it and its uploader."""
    run = Run(folder)
    run.append("w0000/m-000001.lfm", secrets.token_bytes(300_000))
    run.append("w0000/d-000001.lfd", secrets.token_bytes(9 << 20))
    run.append("rules/luff/findings.jsonl", b"{}\n")
    uploader = Uploader(run, store)
    uploader.begin()
    uploader.flush("ended" if ended else "live")
    while uploader.behind:
        uploader.flush("ended" if ended else "live")
    if ended:
        uploader.end()
    uploader.put_card(json.dumps({"card": 1, "run_id": run.run_id, "verdict": "ok"}).encode())
    return run, uploader


def everything(store):
    return {o.name: o for prefix in ("live/", "runs/", "cards/") for o in store.objects(prefix, 10_000)}


def soon() -> int:
    """A time before which all is that was put until now."""
    return time.time_ns() + DAY_NS


def test_values_go_and_the_rest_is_read_as_before(store, tmp_path):
    run, _ = upload(store, tmp_path / "run")
    other, _ = upload(store, tmp_path / "other", ended=False)
    before = everything(store)
    told = list(prune(store, "metadata", soon(), dry_run=True))
    assert everything(store) == before
    assert {one.run_id for one in told} == {run.run_id, other.run_id}
    # The last megabyte of the live one is in its head.
    assert {(one.objects, one.bytes) for one in told} == {(2, 9 << 20), (1, 8 << 20)}
    assert list(prune(store, "metadata", soon(), dry_run=False)) == told
    assert not [name for name in everything(store) if ".lfd/" in name]
    for one in (run, other):
        spool, copy = copy_of(store, one, tmp_path / f"copy-{one.run_id}")
        assert copy == {name: data for name, data in one.files().items() if ".lfd" not in name}
        assert spool.over
        with pytest.raises(Gone, match="pruned from the bucket"):
            spool.need(File("w", 0, "d", 1), 0, 100)
        assert json.loads(store.get(f"cards/{one.run_id}", 9999)[0])["pruned"] == "payload"
    assert list(prune(store, "metadata", soon(), dry_run=False)) == []  # nothing is left to remove


def test_a_copy_that_is_open_learns_of_it(store, tmp_path):
    run, _ = upload(store, tmp_path / "run")
    spool, _ = copy_of(store, run, tmp_path / "copy")
    list(prune(store, "metadata", soon(), dry_run=False))
    spool._have[File("w", 0, "d", 1)].clear()  # as if it had been dropped for others
    with pytest.raises(Gone, match="pruned"):
        spool.need(File("w", 0, "d", 1), 8 << 20, 100)


def test_all_but_the_card_goes(store, tmp_path):
    run, _ = upload(store, tmp_path / "run")
    (told,) = prune(store, "nothing", soon(), dry_run=False)
    assert told.objects >= 6
    assert list(everything(store)) == [run.run_id]  # the card
    assert json.loads(store.get(f"cards/{run.run_id}", 9999)[0])["pruned"] == "all"
    assert store.children("runs/") == []
    assert list(prune(store, "nothing", soon(), dry_run=False)) == []


def test_what_has_changed_lately_stays(tmp_path):
    """By the time of the objects: of a run that was uploaded again, the newest counts."""
    store = open_store(f"file://{tmp_path}/bucket")
    old, _ = upload(store, tmp_path / "old")
    again, uploader = upload(store, tmp_path / "again", ended=False)
    then = time.time() - 40 * 86400
    for path in Path(tmp_path / "bucket").rglob("*"):
        os.utime(path, (then, then))
    upload(store, tmp_path / "new")
    again.append("w0000/m-000001.lfm", b"more")
    uploader._etag = store.get(uploader._head_key, 1 << 22)[1]  # its time has changed
    uploader.flush()
    cut = time.time_ns() - 30 * DAY_NS
    assert [run_id for run_id, _ in old_runs(store, cut)] == [old.run_id]
    (told,) = prune(store, "nothing", cut, dry_run=False)
    assert told.run_id == old.run_id
    assert len(store.children("runs/")) == 2


def test_an_uploader_that_comes_back_is_told(store, tmp_path):
    run, uploader = upload(store, tmp_path / "run", ended=False)
    list(prune(store, "metadata", soon(), dry_run=False))
    run.append("w0000/m-000001.lfm", b"more")
    with pytest.raises(Fenced):
        uploader.flush()


def test_a_run_with_a_damaged_head_is_left_alone_and_named(store, tmp_path):
    run, _ = upload(store, tmp_path / "run")
    store.put(f"live/{run.run_id[0]}/{run.run_id}/u0000", b"garbage")
    before = everything(store)
    (told,) = prune(store, "metadata", soon(), dry_run=False)
    assert f"live/{run.run_id[0]}/{run.run_id}/u0000" in told.problem
    assert everything(store).keys() == before.keys()


def test_the_command_prunes_and_says_what(luff, with_findings, tmp_path):
    base = f"file://{tmp_path}/bucket"
    url = luff("sync", with_findings, base).stdout.strip()
    then = time.time() - 40 * 86400
    for path in Path(tmp_path / "bucket").rglob("*"):
        os.utime(path, (then, then))
    assert "0 runs" in luff("prune", base, "--older", "41d", "--keep", "nothing").stdout
    findings = luff("check", url, "--json", expect=None).stdout
    assert (
        "would be removed" in luff("prune", base, "--older", "30d", "--keep", "metadata", "--dry-run").stdout
    )
    (line,) = luff("prune", base, "--older", "30d", "--keep", "metadata", "--json").stdout.splitlines()
    assert json.loads(line)["removed"] is True
    assert "payload pruned" in luff("runs", base).stdout
    assert "payload pruned" in luff("runs", base, "--where", "pruned = payload").stdout
    shown = luff("show", url).stdout
    assert "findings" in shown
    assert findings.count("\n") > 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--older", "30", "--keep", "nothing"], "expected a number and h, d or w"),
        (["--older", "2h", "--keep", "nothing"], "at least 1d"),
        (["--older", "30d", "--keep", "some"], "--keep"),
        (["--older", "30d"], "--keep is required"),
        (["--keep", "nothing"], "--older is required"),
    ],
)
def test_wrong_usage_removes_nothing(luff, tmp_path, words, says):
    store = open_store(f"file://{tmp_path}/bucket")
    upload(store, tmp_path / "run")
    before = everything(store)
    done = luff("prune", store.url, *words, expect=2)
    assert says in done.stderr
    assert everything(store) == before


def test_a_directory_or_a_bucket_of_others_is_not_pruned(luff, tmp_path):
    assert (
        "needs the URL of a bucket"
        in luff("prune", tmp_path, "--older", "9d", "--keep", "nothing", expect=2).stderr
    )
    (tmp_path / "luff.json").write_text("{}")
    done = luff("prune", f"file://{tmp_path}", "--older", "9d", "--keep", "nothing", expect=5)
    assert "no Luff writes here" in done.stderr
