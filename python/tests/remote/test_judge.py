"""What `luff watch URL` asks for the bucket: copies that come and go, commits, requests, checkpoints."""

from __future__ import annotations

import json
import os
import threading
import time
import zlib
from pathlib import Path

import pytest
from conftest import Run
from luff.remote import _commits, _judge, _judge_folder, _judged_run, _spool
from luff.remote._checkpoint import get_checkpoint
from luff.remote._commits import Ledger, read_commit
from luff.remote._errors import Refused, Unreachable
from luff.remote._files import head_key
from luff.remote._judge import Judge
from luff.remote._judged_run import JudgedRun
from luff.remote._store import open_store
from luff.remote._uploader import Uploader

LINE = json.dumps({"id": "f1", "event": "new"})


def wait_for(what, seconds=90):
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


class Beside:
    """A judge's door, and what it tells."""

    def __init__(self, base, state, shard=(0, 1), earlier=False, stops=False, rules=""):
        self.told = []
        self.judge = Judge(base, str(state), shard, earlier, self.told.append, stops=stops, rules=rules)
        self.judge.start()
        self.thread = threading.Thread(target=self.judge.follow)
        self.thread.start()

    def copy(self, run):
        return Path(self.judge.base) / run.run_id

    def has_ended(self, run):
        mirror = self.copy(run) / "mirror.json"
        return mirror.exists() and json.loads(mirror.read_text())["ended"]

    def of(self, run, act=None):
        found = [one for one in self.told if one.get("run") == run.run_id and "lines" in one]
        return [one for one in found if act is None or one["act"] == act]

    def ask(self, run, **asked):
        self.judge.hear({"run": run.run_id, **asked})

    def leave(self):
        self.judge.leave(60.0)
        self.thread.join()
        os.close(self.judge._held)  # as the end of the process does

    def opened(self, run):
        return [one["open"] for one in self.told if one.get("run") == run.run_id and "open" in one]

    def is_idle(self):
        return [one["idle"] for one in self.told if "idle" in one][-1:] == [True]


@pytest.fixture
def beside(base, tmp_path):
    started = []

    def start(state="state", **words):
        started.append(Beside(base, tmp_path / state, **words))
        return started[-1]

    yield start
    for one in started:
        if one.thread.is_alive():
            one.leave()


@pytest.fixture
def job(store, tmp_path):
    """A run that is being uploaded."""

    def begin(name="job", rows=b"rows of the run"):
        run = Run(tmp_path / name)
        run.append("w0000/m-000001.lfm", rows)
        uploader = Uploader(str(run.path), store)
        uploader.begin()
        uploader.flush()
        return run, uploader

    return begin


def test_a_live_run_is_copied_followed_committed_and_left(beside, job, store):
    one = beside()
    run, uploader = job()
    rows = one.copy(run) / "w0000/m-000001.lfm"
    wait_for(rows.exists)
    run.append("w0000/m-000001.lfm", b", more")
    uploader.flush()
    wait_for(lambda: rows.read_bytes() == b"rows of the run, more")
    wait_for(lambda: {"news": [run.run_id]} in one.told)
    one.ask(run, do="commit", lines=[LINE])
    wait_for(lambda: one.of(run, act=True))
    assert one.of(run, act=True) == [{"run": run.run_id, "lines": [LINE], "number": 1, "act": True}]
    one.ask(run, do="commit", lines=[LINE])  # asked again: it is answered, and nobody acts
    wait_for(lambda: one.of(run, act=False))
    one.ask(run, do="done", number=1)
    uploader.flush("ended")
    uploader.end()
    wait_for(lambda: one.has_ended(run))
    assert not one.is_idle()
    one.ask(run, do="judged", steps=5)
    wait_for(lambda: not one.copy(run).exists())
    wait_for(one.is_idle)
    last = read_commit(store, run.run_id, 2)
    assert (last.lines, last.steps, list(last.heads)) == ((), 5, [0])
    names = store.children(f"rules/luff/{run.run_id}/")
    assert names == ["000001", "000001.done", "000002"]
    # The next one, on another machine, has nothing to do.
    one.leave()
    other = beside("another")
    wait_for(other.is_idle)
    assert not other.copy(run).exists()


def test_a_run_that_goes_on_after_it_was_judged_is_judged_on(beside, job):
    one = beside()
    run, uploader = job()
    uploader.flush("ended")
    wait_for(lambda: one.has_ended(run))
    one.ask(run, do="judged", steps=5)
    wait_for(lambda: not one.copy(run).exists())
    run.append("w0000/m-000002.lfm", b"resumed")
    uploader.flush("live")
    wait_for((one.copy(run) / "w0000/m-000002.lfm").exists)


def test_judges_with_other_rules_are_told(beside, job, store):
    """One takes for judged what the other has judged, so whoever reads would miss findings."""

    def said(one):
        return [told["say"] for told in one.told if "other rules" in told.get("say", "")]

    one = beside(rules="a" * 16)
    for name in ("first", "second"):
        run, uploader = job(name)
        uploader.flush("ended")
        wait_for(lambda run=run: one.has_ended(run))
        one.ask(run, do="judged", steps=5)
        wait_for(lambda run=run: not one.copy(run).exists())
        assert read_commit(store, run.run_id, 1).rules == "a" * 16
    wait_for(one.is_idle)
    one.leave()
    same = beside("same", rules="a" * 16)
    wait_for(same.is_idle)
    same.leave()
    other = beside("other", rules="b" * 16)
    wait_for(other.is_idle)
    other.leave()
    assert (said(one), said(same), len(said(other))) == ([], [], 1)


def test_two_that_judge_one_run_with_other_rules_are_told_at_its_end(beside, job):
    judges = [beside("a", rules="a" * 16), beside("b", rules="b" * 16)]
    run, uploader = job()
    uploader.flush("ended")
    for one in judges:
        wait_for(lambda one=one: one.has_ended(run))
    for one in judges:
        one.ask(run, do="judged", steps=5)
    for one in judges:
        wait_for(lambda one=one: not one.copy(run).exists())
    assert sum("other rules" in told.get("say", "") for one in judges for told in one.told) == 1


def test_what_the_bucket_is_asked_for_is_told(beside, job, store, base):
    """A list a second tells which heads there are, so no run is listed by itself."""
    one = beside()
    run, uploader = job()
    wait_for((one.copy(run) / "w0000/m-000001.lfm").exists)

    def asked(name):
        return sum(told["asked"][name] for told in list(one.told) if "asked" in told)

    listed = []
    for opened in one.judge._copies.stores():
        opened.children = lambda prefix, of=opened.children: (listed.append(prefix), of(prefix))[1]
    for number in range(3):
        run.append("w0000/m-000001.lfm", b", more")
        before = asked("gets")
        uploader.flush()
        wait_for(lambda before=before: asked("gets") > before)
        length = len("rows of the run") + len(", more") * (number + 1)
        rows = one.copy(run) / "w0000/m-000001.lfm"
        wait_for(lambda length=length, rows=rows: rows.stat().st_size == length)
    assert listed == []
    assert asked("puts") > 3  # lists, and what a beginning puts
    assert asked("received") > 0
    assert asked("sent") > 0


def test_looks_at_many_runs_take_a_share_of_a_core_and_few_are_looked_at_at_once(beside):
    one = beside()
    judge, runs = one.judge, [JudgedRun(f"{number:032x}") for number in range(500)]
    for run in runs:
        run.state, run.heads, run.looked_at = "open", (("u0000", "new"),), 100.0

    judge._look_cpu_s = 0.001  # runs of 150 parameters: those that upload every 2 s are looked at as often
    assert judge._pace_of(500) == pytest.approx(1.0)
    judge._look_cpu_s = 0.004
    assert runs[0].is_due(100.2, judge._pace_of(10))
    pace = judge._pace_of(500)
    assert pace == _judge._LONGEST_PACE_S  # what was flushed is judged in time
    assert not runs[0].is_due(102.9, pace)
    assert runs[0].is_due(103.1, pace)
    runs[0].queue.append({"do": "done"})  # what was asked for waits for no look
    assert runs[0].is_due(100.1, pace)
    runs[1].busy = True
    assert not runs[1].is_due(200.0, pace)


def test_another_host_begins_where_the_bucket_says(beside, job, store):
    one = beside()
    run, _ = job()
    wait_for(lambda: (one.copy(run) / "mirror.json").exists())
    rules = one.copy(run) / "rules/luff"
    rules.mkdir(parents=True, exist_ok=True)
    (rules / "findings.jsonl").write_text(LINE + "\n")
    (rules / "checkpoint.json").write_text('{"steps": 7}')
    one.judge._save(one.judge._runs[run.run_id], 0.0)
    assert get_checkpoint(store, run.run_id) == ("", "")  # what it knows is not committed
    one.ask(run, do="commit", lines=[LINE])
    wait_for(lambda: one.of(run, act=True))
    one.ask(run, do="done", number=1)
    one.leave()
    assert get_checkpoint(store, run.run_id) == ('{"steps": 7}', LINE + "\n")
    store.delete(f"rules/luff/{run.run_id}/checkpoint")
    store.put(f"rules/luff/{run.run_id}/checkpoint", b"x\x9c hostile")
    assert get_checkpoint(store, run.run_id) == ("", "")
    other = beside("another")
    wait_for(lambda: (other.copy(run) / "run.json").exists())
    assert (other.copy(run) / "rules/luff/findings.jsonl").read_text() == LINE + "\n"
    assert other.of(run) == [{"run": run.run_id, "lines": [LINE], "number": 0, "act": False}]
    other.leave()
    signs = beside("another", stops=True)  # and puts its name under what it has found itself
    wait_for(lambda: signs.opened(run))
    assert not (signs.copy(run) / "rules").exists()


def test_a_checkpoint_that_takes_for_found_what_nobody_has_committed_is_not_used(beside, job, store):
    run, _ = job()
    forged = {"format": "luff-checkpoint", "version": 1, "run_id": run.run_id}
    forged |= {"checkpoint": "{}", "findings": LINE + "\n"}
    store.put(f"rules/luff/{run.run_id}/checkpoint", zlib.compress(json.dumps(forged).encode()))
    assert get_checkpoint(store, run.run_id) == ("{}", LINE + "\n")
    one = beside()
    wait_for(lambda: one.opened(run))
    assert not (one.copy(run) / "rules").exists()


def test_a_judged_run_whose_upload_goes_on_keeps_its_copy(beside, job, store, monkeypatch):
    monkeypatch.setattr(_judge, "_SETTLED_S", float("inf"))
    one = beside()
    run, uploader = job()
    wait_for(lambda: one.opened(run) == [True])
    one.ask(run, do="judged", steps=1)
    wait_for(lambda: one.judge._runs[run.run_id].judged is not None)
    run.append("w0000/d-000001.lfd", b"a value")
    uploader.flush()
    assert one.opened(run) == [True]
    run.append("w0000/m-000001.lfm", b", more")
    uploader.flush("ended")
    wait_for(lambda: one.opened(run) == [True, True])  # the rest is judged
    wait_for(lambda: one.has_ended(run))
    one.ask(run, do="judged", steps=2)
    wait_for(one.is_idle)
    assert one.opened(run) == [True, True, False]
    assert read_commit(store, run.run_id, 1).steps == 2


def test_uploads_that_were_killed_are_judged_to_their_end(beside, job, store, monkeypatch):
    monkeypatch.setattr(_judge, "_SETTLED_S", 0.3)
    monkeypatch.setattr(_judged_run, "QUIET_LOOK_S", 0.3)
    one = beside()
    run, _ = job()
    wait_for(lambda: one.opened(run))
    one.ask(run, do="judged", steps=1)
    wait_for(one.is_idle)
    assert list(read_commit(store, run.run_id, 1).heads) == [0]
    assert one.opened(run) == [True, False]


def test_workers_of_a_host_that_is_gone_have_ended(beside, job, monkeypatch):
    monkeypatch.setattr(_judged_run, "QUIET_LOOK_S", 0.3)
    one = beside()
    run, _ = job()
    wait_for(lambda: one.opened(run))
    told = one.copy(run) / "mirror.json"
    assert [ended for *_, ended in json.loads(told.read_text())["workers"]] == [False]
    monkeypatch.setattr(_spool, "GONE_S", 0.0)
    wait_for(lambda: [ended for *_, ended in json.loads(told.read_text())["workers"]] == [True])


def test_runs_that_cannot_be_judged_or_were_removed_hold_up_nobody(beside, job, store):
    one = beside()
    damaged, _ = job("damaged")
    removed, _ = job("removed")
    wait_for(lambda: one.opened(damaged) and one.opened(removed))
    one.ask(damaged, do="failed")
    store.delete(head_key(removed.run_id, 0))
    wait_for(one.is_idle)
    assert not one.copy(damaged).exists()
    assert not one.copy(removed).exists()


def test_a_job_that_died_before_its_first_row_keeps_nobody_waiting(beside, store, tmp_path, monkeypatch):
    nobody = Run(tmp_path / "nobody")
    uploader = Uploader(str(nobody.path), store)
    uploader.begin()
    uploader.flush()
    one = beside()
    wait_for(lambda: nobody.run_id in one.judge._runs and one.judge._runs[nobody.run_id].sequences)
    monkeypatch.setattr(_judged_run, "GONE_S", 0.0)
    wait_for(one.is_idle)


def test_a_request_that_came_too_late_is_asked_for_again_before_its_commit_is_done(
    beside, job, store, monkeypatch
):
    one = beside()
    run, _ = job()
    one.ask(run, do="commit", lines=[LINE])
    wait_for(lambda: one.of(run, act=True))
    asked = [{"do": "request", "object": '{"version": 1}'}, {"do": "done", "number": 1}]
    for passed in (2 * _judge._REQUEST_S, 0.0):
        at = time.monotonic() - passed
        with one.judge._lock:
            one.judge._runs[run.run_id].queue.extend({"run": run.run_id, "at": at, **what} for what in asked)
        if passed:
            wait_for(lambda: any(told.get("again") for told in one.told))
            assert store.children(f"rules/luff/{run.run_id}/") == ["000001"]
    wait_for(lambda: store.children(f"rules/luff/{run.run_id}/") == ["000001", "000001.done"])
    assert store.children(f"requests/{run.run_id}/") == ["000001.json"]


def test_a_bucket_that_is_away_at_the_first_look_is_not_at_rest(beside, job, monkeypatch):
    run, _ = job()
    store = open_store(beside("first").judge.url)
    real, asked = type(store).get, []

    def get(self, key, *words):
        if key.startswith("live/"):
            asked.append(key)
            raise Unreachable("503 SlowDown")
        return real(self, key, *words)

    monkeypatch.setattr(type(store), "get", get)
    one = beside("another")
    wait_for(lambda: len(asked) > 3)
    assert {"idle": True} not in one.told


def test_killed_between_commit_and_act_the_same_state_acts_at_once_another_one_later(
    beside, job, store, monkeypatch
):
    one = beside()
    run, _ = job()
    one.ask(run, do="commit", lines=[LINE])
    wait_for(lambda: one.of(run, act=True))
    one.leave()  # nothing was done
    again = beside()
    wait_for(lambda: again.of(run, act=True))
    again.leave()
    monkeypatch.setattr(_commits, "TAKE_OVER_S", 0.1)
    monkeypatch.setattr(_judged_run, "QUIET_LOOK_S", 0.2)
    other = beside("another")
    assert wait_for(lambda: other.of(run, act=True))[0]["number"] == 1
    other.ask(run, do="done", number=1)
    wait_for(lambda: "000001.done" in store.children(f"rules/luff/{run.run_id}/"))


def test_a_run_that_ended_with_a_finding_nobody_acted_on_is_taken_up_again(beside, job, store, monkeypatch):
    one = beside()
    run, uploader = job()
    uploader.flush("ended")
    wait_for(lambda: one.has_ended(run))
    heads = one.judge._runs[run.run_id].sequences
    one.leave()
    dead = Ledger(store, run.run_id, "d" * 32)
    dead.load()
    dead.commit([LINE], 5, heads, lambda *_: None)
    monkeypatch.setattr(_commits, "TAKE_OVER_S", 0.5)
    monkeypatch.setattr(_judged_run, "_LATE_LOOK_S", 0.1)
    other = beside("another")
    wait_for(lambda: other.of(run, act=True))
    assert other.copy(run).exists()
    other.ask(run, do="done", number=1)
    other.ask(run, do="judged", steps=5)
    wait_for(other.is_idle)


def test_runs_of_before_and_of_others_are_left_alone(beside, job, store):
    old, uploader = job("old")
    uploader.flush("ended")
    time.sleep(1.1)  # a store tells times in whole seconds
    one = beside()
    wait_for(one.is_idle)
    judged, uploader = job("judged")
    judged.append("rules/luff/findings.jsonl", b"")
    uploader.flush()
    nobody = Run(judged.path.parent / "nobody")  # has begun, and published nothing
    Uploader(str(nobody.path), store).begin()
    new, _ = job("new")
    wait_for(one.copy(new).exists)
    assert not one.copy(old).exists()
    one.leave()
    assert not one.copy(nobody).exists()
    assert one.of(old) == []
    assert {"run": old.run_id, "open": True} not in one.told
    everything = beside("another", earlier=True)
    wait_for(everything.copy(old).exists)


def test_a_shard_has_its_runs_and_two_with_one_state_are_refused(beside, job, base, tmp_path, monkeypatch):
    parts = [beside(f"part{i}", shard=(i, 2)) for i in range(2)]
    runs = [job(f"job{i}")[0] for i in range(4)]
    for run in runs:
        digit = int(run.run_id[0], 16) % 2
        wait_for(parts[digit].copy(run).exists)
        assert not parts[1 - digit].copy(run).exists()
    monkeypatch.setattr(_judge_folder, "_LOCK_S", 0.1)
    with pytest.raises(Refused, match="another luff watch"):
        Judge(base, str(tmp_path / "part0"), (0, 2), False, print).start()


def test_a_bucket_that_is_away_is_asked_again(beside, job, monkeypatch):
    one = beside()
    run, _ = job()
    wait_for(one.copy(run).exists)
    store = one.judge._store
    real, away = type(store).put_new, [True]

    def put_new(self, key, data):
        if away[0] and "rules/" in key:
            raise Unreachable("503 SlowDown")
        return real(self, key, data)

    monkeypatch.setattr(type(store), "put_new", put_new)
    one.ask(run, do="commit", lines=[LINE])
    one.ask(run, do="request", object='{"version": 1}')
    wait_for(lambda: any("503" in one_.get("say", "") for one_ in one.told))
    assert not one.of(run, act=True)
    away[0] = False
    wait_for(lambda: one.of(run, act=True))
    wait_for(lambda: open_store(one.judge.url).children(f"requests/{run.run_id}/") == ["000001.json"])


@pytest.mark.parametrize("fails", ["answers", "puts"])
def test_of_puts_whose_answers_are_lost_or_that_wrote_nothing_each_counts_once(proxy, s3, tmp_path, fails):
    """The client repeats the ones, and reports that the object is there, as of the others, which a store refuses so."""
    lost = set()

    def lose(method, path):
        mine = method == "PUT" and any(
            name in path for name in ("/rules/", "/judged", "/judges/", "/requests/")
        )
        return mine and path not in lost and not lost.add(path)

    if fails == "answers":
        proxy.lose = lose
    else:
        proxy.instead = lambda *of: (409, "ConditionalRequestConflict") if lose(*of) else None
    run = Run(tmp_path / "job")
    run.append("w0000/m-000001.lfm", b"rows")
    uploader = Uploader(str(run.path), open_store(s3))
    uploader.begin()
    uploader.flush()
    one = Beside(s3, tmp_path / "state")
    try:
        one.ask(run, do="commit", lines=[LINE])
        wait_for(lambda: one.of(run, act=True))
        one.ask(run, do="request", object='{"version": 1}')
        one.ask(run, do="done", number=1)
        store = open_store(s3)
        wait_for(lambda: "000001.done" in store.children(f"rules/luff/{run.run_id}/"))
        assert len(one.of(run, act=True)) == 1
        assert store.children(f"rules/luff/{run.run_id}/") == ["000001", "000001.done"]
        assert store.children(f"requests/{run.run_id}/") == ["000001.json"]
        assert len(lost) == 5
    finally:
        one.leave()
