"""Reading a bucket: every verb takes a URL, and says what it says of the run itself."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import luff as luff_package
import pytest
from conftest import TRAIN
from luff import errors
from luff.remote._client import whole_url
from luff.remote._prune import prune
from luff.remote._store import open_store

DAY_NS = 86400 * 10**9


def url_of(base, run):
    return f"{base}/{json.loads((run / 'run.json').read_text())['run_id']}"


@pytest.fixture
def in_bucket(luff, with_findings, base):
    """A run with findings, in a bucket and beside it."""
    run = with_findings
    done = luff("sync", run, base)
    assert done.stdout.strip() == url_of(base, run)
    return run, url_of(base, run)


def test_findings_are_those_of_the_run_byte_for_byte(luff, in_bucket):
    run, url = in_bucket
    here, there = luff("check", run, "--json", expect=None), luff("check", url, "--json", expect=None)
    assert here.stdout
    assert (there.stdout, there.returncode) == (here.stdout, here.returncode)


def test_every_reading_verb_takes_a_url(luff, in_bucket, tmp_path):
    run, url = in_bucket
    names = luff_package.open_trial(run).tensors()
    tensor, raw = names[0], next(name for name in names if name.startswith("sample/"))
    copy = luff_package.open_trial(url).path
    for words in (
        ["tensors", "{}"], ["summary", "{}", tensor], ["value", "{}", raw], ["explain", "{}"], ["verify", "{}"],
    ):  # fmt: skip
        here = luff(*[w.format(run) for w in words], expect=None)
        there = luff(*[w.format(url) for w in words], expect=None)
        assert there.returncode == here.returncode, (words, there.stderr)
        assert there.stdout.replace(copy, str(run)).replace(Path(copy).name, run.name) == here.stdout, words
    assert url in luff("show", url).stdout
    shown = [json.loads(luff("show", place, "--json").stdout) for place in (url, run)]
    assert shown[0].pop("bucket") == url
    for one in shown:
        # The live page and checkpoints of rules are not uploaded, and the last puts are in no head.
        for of_this_place in ("run", "bytes", "files", "workers", "rules", "uploads"):
            one.pop(of_this_place)
    assert shown[0] == shown[1]
    assert luff("tail", url).stdout
    assert luff("plot", url).stdout
    luff("report", url, "-o", tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size > 10_000
    luff("export", url, tmp_path / "out", "--to", "csv")
    assert list((tmp_path / "out").rglob("*.csv"))


def test_a_trial_of_a_url_reads_the_same_values(in_bucket):
    run, url = in_bucket
    here, there = luff_package.open_trial(run), luff_package.open_trial(url)
    assert there.steps() == here.steps()
    compared = 0
    for name in here.tensors():
        for step in here.tensor(name).value_steps()[:5]:
            assert (there.tensor(name).value(step) == here.tensor(name).value(step)).all()
            compared += 1
    assert there.outcome == here.outcome
    assert compared


def test_a_fetcher_that_was_killed_is_started_anew(luff, in_bucket, own_cache):
    run, url = in_bucket
    luff("show", url)
    for root in own_cache.glob("spool-*"):
        found = subprocess.run(["pgrep", "-f", f"fetch {root}"], capture_output=True, text=True, check=False)
        for pid in found.stdout.split():
            os.kill(int(pid), signal.SIGKILL)
    assert (
        luff("check", url, "--json", expect=None).stdout == luff("check", run, "--json", expect=None).stdout
    )


def test_a_copy_that_was_deleted_is_made_again(luff, in_bucket, own_cache):
    run, url = in_bucket
    luff("show", url)
    end = time.monotonic() + 30
    while list(own_cache.glob("*/socket")) and time.monotonic() < end:
        time.sleep(0.05)
    shutil.rmtree(own_cache)
    assert (
        luff("check", url, "--json", expect=None).stdout == luff("check", run, "--json", expect=None).stdout
    )


def test_a_live_run_is_seen_and_its_findings_are_the_same(luff, trained, tmp_path):
    """Trains beside a reader that follows the bucket; both see the same, and the losses are those without Luff."""
    base = f"file://{tmp_path}/bucket"
    result = {}

    def train():
        result["run"], result["done"] = trained("--sync", base, steps=80, pause=0.05)

    thread = Thread(target=train)
    thread.start()
    url, end = None, time.monotonic() + 60
    while url is None and time.monotonic() < end:
        heads = list((tmp_path / "bucket").glob("live/*/*/u0000"))
        url = f"{base}/{heads[0].parent.name}" if heads else None
        time.sleep(0.05)
    assert url is not None
    live = luff("check", url, "--follow", "--json", expect=None)
    thread.join()
    run = result["run"]
    local = luff("check", run, "--json", expect=None)
    assert local.stdout
    assert live.stdout == local.stdout
    alone = subprocess.run(
        [sys.executable, tmp_path / "train.py", "80", "0", "10.0"], capture_output=True, text=True, check=True
    )
    assert result["done"].stdout == alone.stdout  # losses, bit for bit
    assert luff("check", url, "--json", expect=None).stdout == local.stdout


def test_the_bucket_has_how_the_command_ended(luff, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(f"{TRAIN}\nsys.exit(3)\n")
    base, run = f"file://{tmp_path}/bucket", tmp_path / "run"
    words = (sys.executable, script, 20, 0, 0.1)
    luff("run", "--rules", "none", "--run", run, "--sync", base, "--", *words, expect=3)
    (head,) = (tmp_path / "bucket").glob("live/*/*/u0000")
    here, there = (
        json.loads(luff("show", place, "--json").stdout) for place in (run, f"{base}/{head.parent.name}")
    )
    assert here["outcome"] == "failed"
    assert "exit code 3" in here["why"]
    assert (there["outcome"], there["why"]) == (here["outcome"], here["why"])


def test_a_stale_copy_loses_no_worker(with_findings, tmp_path, monkeypatch):
    """The uploader is gone, and the worker's last heartbeat is an hour old by our clock: unknown, not lost."""
    from luff.remote import _uploader

    run = with_findings
    store = open_store(f"file://{tmp_path}/bucket")
    uploader = _uploader.Uploader(str(run), store)
    # As if the job were in the middle of it: the last rows, with the end mark, are not there yet.
    segment = next((run / "w0000").glob("m-*.lfm"))
    data = segment.read_bytes()
    whole = _uploader.Uploader._lengths

    def half(self, payload):
        found = {f: n for f, n in whole(self, payload).items() if f.kind != "control"}
        return {f: len(data) // 2 if f.kind == "w" and not payload else n for f, n in found.items()}

    monkeypatch.setattr(_uploader.Uploader, "_lengths", half)
    heard = json.loads((run / "run.json").read_text())["created_unix_ns"]
    monkeypatch.setattr(_uploader.time, "time_ns", lambda: heard + 2_000_000_000)
    uploader.begin()
    uploader.flush()
    trial = luff_package.open_trial(url_of(store.url, run), lost_after_s=10)
    assert trial.outcome == "running"
    assert [worker["alive"] for worker in trial.workers()] == [True]
    monkeypatch.setattr(_uploader.time, "time_ns", lambda: heard + 3600_000_000_000)
    uploader.flush("draining")
    end = time.monotonic() + 20
    while trial.workers()[0]["alive"] and time.monotonic() < end:
        trial.refresh()
        time.sleep(0.1)
    assert [worker["alive"] for worker in trial.workers()] == [False]  # silent by its own host's clock


@pytest.mark.parametrize("words", [["stop"], ["tag"], ["log"], ["sync", "file:///tmp/x"], ["trace"]])
def test_a_run_in_a_bucket_is_not_commanded(luff, words):
    done = luff(words[0], "s3://bucket/" + "0" * 32, *words[1:], expect=2)
    through = f"luff request {words[0]} s3://bucket/" if words[0] in ("stop", "trace") else "only read"
    assert through in done.stderr


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("file:///nowhere/at/all/" + "0" * 32, "Luff has uploaded nothing there"),
        ("file:///nowhere", "it has no runs"),
        ("s3://bucket/../x", "no . and .."),
    ],
)
def test_a_wrong_url_is_explained(luff, url, says):
    done = luff("show", url, expect=2)
    assert says in done.stderr
    with pytest.raises((errors.NotFoundError, errors.InvalidArgumentError), match=says):
        luff_package.open_trial(url)


def test_an_abbreviated_id_is_enough_and_a_bucket_names_its_runs(luff, in_bucket):
    _, url = in_bucket
    base, _, run_id = url.rpartition("/")
    assert luff("show", f"{base}/{run_id[:6]}").stdout == luff("show", url).stdout
    done = luff("show", base, expect=2)
    assert "one of its 1 runs: " + run_id in done.stderr


def test_the_newest_run_and_any_number_of_first_digits_name_one(in_bucket):
    _, url = in_bucket
    base, _, run_id = url.rpartition("/")
    assert whole_url(f"{base}/@1") == whole_url(f"{base}/{run_id[:1]}") == url
    assert luff_package.open_trial(f"{base}/@1").path == luff_package.open_trial(url).path
    other = "f" if run_id[0] != "f" else "0"
    for name, says in (
        ("@2", "there is no run @2, the oldest one is @1"),
        ("@0", "there is no run @0"),
        (other, f"no run begins with {other}; there are {run_id}"),
    ):
        with pytest.raises(errors.InvalidArgumentError, match=says):
            luff_package.open_trial(f"{base}/{name}")


def test_a_run_whose_values_were_pruned_is_not_called_good(luff, in_bucket):
    _, url = in_bucket
    base = url[:-33]
    list(prune(open_store(base), "metadata", -DAY_NS, dry_run=False))
    done = luff("check", url, "--rules", "DeadEmbeddingRows", expect=1)
    assert "the values of this run were pruned from the bucket" in done.stdout
    assert "luff: done: " in done.stdout
    assert "its values were pruned from the bucket" in luff("show", url).stdout
    said = luff("verify", url).stdout
    absent = int(re.search(r"(\d+) are not here", said)[1])
    report = json.loads(luff("verify", url, "--json").stdout)
    assert 0 < absent == report["absent"] <= report["rows"]


def test_a_run_that_is_not_there_is_explained(luff, in_bucket):
    _, url = in_bucket
    done = luff("show", url[:-32] + "f" * 32, expect=2)
    assert "there is no such run in the bucket" in done.stderr
    card = json.dumps({"run_id": "f" * 32, "pruned": "all"}).encode()
    open_store(url[:-33]).put(f"cards/{'f' * 32}", card)
    done = luff("show", url[:-32] + "f" * 32, expect=2)
    assert "the run was pruned from the bucket, only its card is left" in done.stderr


def test_damaged_objects_are_named_and_give_no_wrong_value(luff, with_findings, tmp_path):
    run = with_findings
    base = f"file://{tmp_path}/bucket"
    luff("sync", run, base)
    url, objects = (
        url_of(base, run),
        tmp_path / "bucket" / "runs" / json.loads((run / "run.json").read_text())["run_id"],
    )
    (part,) = (objects / "w0000" / "d-000001.lfd").iterdir()
    good = part.read_bytes()
    part.write_bytes(good[: len(good) // 2] + bytes(64) + good[len(good) // 2 + 64 :])
    done = luff("verify", url, expect=None)
    assert done.returncode != 0
    assert "d-000001.lfd" in done.stdout + done.stderr
    (rows,) = (objects / "w0000" / "m-000001.lfm").iterdir()
    rows.write_bytes(rows.read_bytes()[:-20])
    shutil.rmtree(os.environ["LUFF_CACHE"], ignore_errors=True)
    time.sleep(1.5)
    done = luff("show", url, expect=2)
    assert "m-000001.lfm" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_obstore_the_job_does_not_begin(luff, tmp_path):
    """A Python that has Luff and no obstore, as `pip install luff` makes it."""
    blocked = tmp_path / "site" / "sitecustomize.py"
    blocked.parent.mkdir()
    script = tmp_path / "python"
    script.write_text(
        f"#!{sys.executable}\nimport importlib.util, os, runpy, sys\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, package=None: None if name == 'obstore' else find(name, package)\n"
        "words = [w for w in sys.argv[1:] if w not in ('-I', '-u')]\n"
        "sys.argv = words\n"
        "runpy.run_path(words[0], run_name='__main__')\n"
    )
    script.chmod(0o755)
    done = luff(
        "run", "--run", tmp_path / "run", "--sync", "s3://bucket/x", "--", "touch", tmp_path / "begun",
        expect=2, env={**os.environ, "LUFF_PYTHON": str(script)},
    )  # fmt: skip
    assert "pip install 'luff[remote]'" in done.stderr
    assert not (tmp_path / "begun").exists()


@pytest.mark.thorough  # its end waits two minutes for the bucket; `test_stores_that_fail.py` has a shorter wait
def test_a_bucket_that_is_away_does_not_touch_the_training(luff, trained, s3, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("LUFF_RULE_IDLE_S", "5")
    run, done = trained("--sync", s3, steps=10, rate=0.1)
    assert len(done.stdout.splitlines()) == 10
    assert done.stderr.count("the run goes on") == 1
    assert f"luff sync {run} {s3}" in done.stderr
