"""`luff prune`: what is old goes, what is not stays, and readers are told what is gone."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time

import pytest
from bucket_copies import copy_of
from conftest import Run
from luff.remote import _prune
from luff.remote._cache import Gone, Later
from luff.remote._errors import Unreachable
from luff.remote._files import File, judged_key
from luff.remote._prune import old_runs, prune
from luff.remote._store import FolderStore, open_store
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
    return {
        o.name: o
        for prefix in ("live/", "runs/", "cards/", "requests/", "pruning/")
        for o in store.objects(prefix, 10_000)
    }


ALL = -DAY_NS  # older than that is all that was put until now


def age(bucket, days=40):
    """Makes all objects of a folder old."""
    then = time.time() - days * 86400
    for path in bucket.rglob("*"):
        os.utime(path, (then, then), follow_symlinks=False)


def test_values_go_and_the_rest_is_read_as_before(store, tmp_path):
    run, _ = upload(store, tmp_path / "run")
    other, _ = upload(store, tmp_path / "other", ended=False)
    before = everything(store)
    told = list(prune(store, "metadata", ALL, dry_run=True))
    assert everything(store) == before
    assert {one.run_id for one in told} == {run.run_id, other.run_id}
    # The last megabyte of the live one is in its head.
    assert {(one.objects, one.bytes) for one in told} == {(2, 9 << 20), (1, 8 << 20)}
    assert list(prune(store, "metadata", ALL, dry_run=False)) == told
    assert not [name for name in everything(store) if ".lfd/" in name]
    for one in (run, other):
        spool, copy = copy_of(store, one, tmp_path / f"copy-{one.run_id}")
        assert copy == {name: data for name, data in one.files().items() if ".lfd" not in name}
        assert spool.over
        with pytest.raises(Gone, match="pruned from the bucket"):
            spool.need(File("w", 0, "d", 1), 0, 100)
        assert json.loads(store.get(f"cards/{one.run_id}", 9999)[0])["pruned"] == "payload"
    assert list(prune(store, "metadata", ALL, dry_run=False)) == []  # nothing is left to remove


def test_a_copy_that_is_open_learns_of_it(store, tmp_path):
    run, _ = upload(store, tmp_path / "run")
    spool, _ = copy_of(store, run, tmp_path / "copy")
    list(prune(store, "metadata", ALL, dry_run=False))
    spool._have[File("w", 0, "d", 1)].clear()  # as if it had been dropped for others
    with pytest.raises(Gone, match="pruned"):
        spool.need(File("w", 0, "d", 1), 8 << 20, 100)


def test_all_but_the_card_goes(store, tmp_path):
    run, _ = upload(store, tmp_path / "run")
    (told,) = prune(store, "nothing", ALL, dry_run=False)
    assert told.objects >= 6
    assert list(everything(store)) == [run.run_id]  # the card
    assert json.loads(store.get(f"cards/{run.run_id}", 9999)[0])["pruned"] == "all"
    assert store.children("runs/") == []
    assert list(prune(store, "nothing", ALL, dry_run=False)) == []


def test_what_has_changed_lately_stays(tmp_path):
    """By the time of the objects: of a run that was uploaded again, the newest counts."""
    store = open_store(f"file://{tmp_path}/bucket")
    old, _ = upload(store, tmp_path / "old")
    again, uploader = upload(store, tmp_path / "again", ended=False)
    age(tmp_path / "bucket")
    upload(store, tmp_path / "new")
    again.append("w0000/m-000001.lfm", b"more")
    uploader._etag = store.get(uploader._head_key, 1 << 22)[1]  # its time has changed
    uploader.flush()
    cut = 30 * DAY_NS
    assert [run_id for run_id, _ in old_runs(store, time.time_ns() - cut)] == [old.run_id]
    (told,) = prune(store, "nothing", cut, dry_run=False)
    assert told.run_id == old.run_id
    assert len(store.children("runs/")) == 2


def test_what_killed_uploads_left_goes_with_their_run(tmp_path):
    """Names that no list shows, and that would keep the folders."""
    bucket = tmp_path / "bucket"
    store = open_store(f"file://{bucket}")
    run, _ = upload(store, tmp_path / "run")
    for place in (f"runs/{run.run_id}/w0000/d-000001.lfd", f"live/{run.run_id[0]}/{run.run_id}", "cards"):
        (bucket / place / f"half.{'0' * 16}~").write_text("of a put")
    age(bucket)
    list(prune(store, "nothing", 30 * DAY_NS, dry_run=True))
    assert len(list(bucket.rglob("*~"))) == 3
    list(prune(store, "nothing", 30 * DAY_NS, dry_run=False))
    assert not list(bucket.rglob("*~"))
    assert not (bucket / "runs" / run.run_id).exists()


class Dying(FolderStore):
    """A folder of which the pruner is cut off before its Nth request."""

    left = 10**9

    def _count(self, *counted, **more):
        self.left -= 1
        if self.left < 0:
            raise Unreachable("no network")
        super()._count(*counted, **more)


@pytest.mark.parametrize("card", [True, False])
@pytest.mark.parametrize("keep", ["metadata", "nothing"])
def test_who_is_cut_off_anywhere_goes_on_with_the_same_command(tmp_path, keep, card):
    template, cut = tmp_path / "template", 30 * DAY_NS
    base = open_store(f"file://{template}")
    run, _ = upload(base, tmp_path / "run")
    base.put(f"requests/{run.run_id}/000001.json", b"{}")
    if not card:
        base.delete(f"cards/{run.run_id}")
    shutil.copytree(template, tmp_path / "whole", copy_function=os.link)
    age(tmp_path / "whole")
    whole = Dying("file:///whole", str(tmp_path / "whole"))
    whole.left = 10**9
    assert len(list(prune(whole, keep, cut, dry_run=False))) == 1
    requests = 10**9 - whole.left
    assert requests > 10
    wanted = set(everything(whole))
    assert not any(
        ".lfd/" in name or ".json" in name for name in wanted if keep == "nothing" or "lfd" in name
    )
    for at in range(requests):
        bucket = tmp_path / f"cut-{at}"
        shutil.copytree(template, bucket, copy_function=os.link)
        age(bucket)
        store = Dying(f"file://{bucket}", str(bucket))
        store.left = at
        with pytest.raises(Unreachable):
            list(prune(store, keep, cut, dry_run=False))
        store.left = 10**9
        assert not any(one.problem for one in prune(store, keep, cut, dry_run=False))
        left = {name for name in everything(store) if not name.startswith("clock-")}
        assert left == wanted, f"cut off before request {at}"
        shutil.rmtree(bucket)


def again(run, store):
    """The run is uploaded again."""
    uploader = Uploader(run, store)
    uploader.begin()
    uploader.flush()
    while uploader.behind:
        uploader.flush()
    return uploader


@pytest.mark.parametrize("keep", ["metadata", "nothing"])
def test_a_run_that_goes_live_again_meanwhile_stays(tmp_path, keep):
    """While an earlier run of the list is pruned."""
    store = open_store(f"file://{tmp_path}/bucket")
    runs = sorted((upload(store, tmp_path / f"run-{i}")[0] for i in range(2)), key=lambda run: run.run_id)
    age(tmp_path / "bucket")
    told = prune(store, keep, 30 * DAY_NS, dry_run=False)
    assert next(told).run_id == runs[0].run_id
    uploader = again(runs[1], store)
    assert list(told) == []
    runs[1].append("w0000/m-000001.lfm", b"more")
    uploader.flush()
    _, copy = copy_of(store, runs[1], tmp_path / "copy")
    assert copy == runs[1].files()


@pytest.mark.parametrize("keep", ["metadata", "nothing"])
@pytest.mark.parametrize("moment", ["_fence", "_delete"])
def test_a_run_that_goes_live_again_just_then_stays(tmp_path, monkeypatch, keep, moment):
    """After its heads were looked at, or fenced."""
    store = open_store(f"file://{tmp_path}/bucket")
    run, _ = upload(store, tmp_path / "run")
    age(tmp_path / "bucket")
    uploaders, real = [], getattr(_prune._Run, moment)

    def meanwhile(self, *given):
        if not uploaders:
            uploaders.append(again(run, store))
        return real(self, *given)

    monkeypatch.setattr(_prune._Run, moment, meanwhile)
    (told,) = prune(store, keep, 30 * DAY_NS, dry_run=False)
    assert "changed" in told.problem or "uploads it again" in told.problem
    assert list(prune(store, keep, 30 * DAY_NS, dry_run=False)) == []
    assert store.objects("pruning/", 9) == []
    run.append("w0000/m-000001.lfm", b"more")
    uploaders[0].flush()
    _, copy = copy_of(store, run, tmp_path / "copy")
    assert copy == run.files()


def test_that_a_run_is_judged_makes_it_no_younger(store, tmp_path):
    run = Run(tmp_path / "run")
    uploader = Uploader(str(run.path), store)
    uploader.begin()
    uploader.flush("ended")
    before = old_runs(store, 1 << 62)
    time.sleep(1.1)  # a store tells times in whole seconds
    store.put_new(judged_key(run.run_id), b"{}")
    assert old_runs(store, 1 << 62) == before


def test_the_age_is_by_the_clock_of_the_bucket(tmp_path, monkeypatch):
    store = open_store(f"file://{tmp_path}/bucket")
    upload(store, tmp_path / "run", ended=False)
    ahead = time.time_ns() + 400 * DAY_NS
    monkeypatch.setattr(time, "time_ns", lambda: ahead)
    before = everything(store)
    assert list(prune(store, "nothing", DAY_NS, dry_run=False)) == []
    assert everything(store) == before


@pytest.mark.parametrize("keep", ["metadata", "nothing"])
def test_a_link_in_a_folder_is_not_followed(tmp_path, keep):
    store = open_store(f"file://{tmp_path}/bucket")
    upload(store, tmp_path / "run")
    home = tmp_path / "home"
    (home / "w0000/d-000001.lfd").mkdir(parents=True)
    (home / "w0000/d-000001.lfd/0-1").write_text("years")
    run_id = secrets.token_hex(16)
    store.put(f"cards/{run_id}", b"{}")
    os.symlink(home, tmp_path / "bucket/runs" / run_id)
    age(tmp_path / "bucket")
    told = {one.run_id: one for one in prune(store, keep, 30 * DAY_NS, dry_run=False)}
    assert len(told) == 2
    assert "a link" in told[run_id].problem
    assert (home / "w0000/d-000001.lfd/0-1").read_text() == "years"


def test_a_run_that_is_uploaded_again_after_its_values_went_has_them_again(tmp_path):
    store = open_store(f"file://{tmp_path}/bucket")
    run, _ = upload(store, tmp_path / "run")
    list(prune(store, "metadata", ALL, dry_run=False))
    uploader = again(run, store)
    assert not uploader._manifest.pruned
    spool, copy = copy_of(store, run, tmp_path / "copy")
    assert copy == run.files()
    with pytest.raises(Later):  # not "pruned": it may come
        spool.need(File("w", 0, "d", 2), 0, 10)


def test_an_uploader_that_comes_back_is_told(store, tmp_path):
    run, uploader = upload(store, tmp_path / "run", ended=False)
    list(prune(store, "metadata", ALL, dry_run=False))
    run.append("w0000/m-000001.lfm", b"more")
    with pytest.raises(Fenced):
        uploader.flush()


def test_a_run_with_a_damaged_head_is_left_alone_and_named(store, tmp_path):
    run, _ = upload(store, tmp_path / "run")
    store.put(f"live/{run.run_id[0]}/{run.run_id}/u0000", b"garbage")
    before = everything(store)
    (told,) = prune(store, "metadata", ALL, dry_run=False)
    assert f"live/{run.run_id[0]}/{run.run_id}/u0000" in told.problem
    assert everything(store).keys() == before.keys()


def test_the_command_prunes_and_says_what(luff, with_findings, tmp_path):
    base = f"file://{tmp_path}/bucket"
    url = luff("sync", with_findings, base).stdout.strip()
    age(tmp_path / "bucket")
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
