"""Cards: `luff runs URL` lists a bucket by small objects, of which only those are fetched that have changed."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from luff.remote import _card
from luff.remote._card import CardMaker, Cards
from luff.remote._files import MAX_CARD
from luff.remote._store import open_store


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("LUFF_HOME", str(tmp_path / "home"))


def card_of(run_id: str, number: int = 0, **changes: object) -> bytes:
    return json.dumps(
        {
            "card": 1,
            "run_id": run_id,
            "name": f"run{number}",
            "outcome": "completed",
            "verdict": "ok",
            "begun_unix_ns": 1_700_000_000_000_000_000 + number,
            "took_s": 1.5,
            "steps": {"TRAIN": 60},
            "parameters": {"lr": number / 10},
            **changes,
        }
    ).encode()


def cards_of(luff, url, *words):
    return [json.loads(line) for line in luff("runs", url, "--json", *words).stdout.splitlines()]


def test_a_run_that_was_uploaded_is_listed_as_beside_its_training(luff, with_findings, base):
    url = luff("sync", with_findings, base).stdout.strip()
    local = json.loads(luff("card", with_findings).stdout)
    (card,) = cards_of(luff, base)
    assert card.pop("run") == url
    assert abs(card.pop("heard_unix_ns") - time.time_ns()) < 600e9
    assert card == local
    assert card["verdict"] == "findings"
    table = luff("runs", base).stdout
    assert url.rsplit("/", 1)[1][:8] in table
    assert with_findings.name in table


def test_cards_are_asked_like_runs(luff, store, base):
    for number in range(12):
        store.put(f"cards/{number:032x}", card_of(f"{number:032x}", number))
    assert [card["name"] for card in cards_of(luff, base, "--where", "lr > 0.9")] == ["run11", "run10"]
    assert [card["name"] for card in cards_of(luff, base, "--text", "lr=0.3")] == ["run3"]
    assert [card["name"] for card in cards_of(luff, base, "--sort", "lr")][:2] == ["run0", "run1"]
    assert "and 9 more" in luff("runs", base, "-n", 3).stdout
    # Ids that begin alike are shown whole.
    assert f"{11:032x}  run11" in luff("runs", base).stdout
    assert "none of 12 runs matches" in luff("runs", base, "--text", "nothing").stdout


def test_only_what_changed_is_fetched_again(luff, s3, proxy):
    store = open_store(s3)
    for number in range(30):
        store.put(f"cards/{number:032x}", card_of(f"{number:032x}", number))
    assert len(cards_of(luff, s3)) == 30
    proxy.requests.clear()
    assert len(cards_of(luff, s3)) == 30
    assert len(proxy.requests) == 1  # one list
    store.put(f"cards/{7:032x}", card_of(f"{7:032x}", 7, note="anew"))
    store.delete(f"cards/{8:032x}")
    proxy.requests.clear()
    found = {card["name"]: card for card in cards_of(luff, s3)}
    assert len(found) == 29
    assert found["run7"]["note"] == "anew"
    assert len(proxy.requests) == 2


def test_a_list_of_many_pages_is_read_with_one_request_for_each(s3, proxy):
    store = open_store(s3)
    for number in range(2500):
        store.put(f"cards/{number:032x}", b"x")
    proxy.requests.clear()
    assert len({card.name for card in store.objects("cards/", 100_000)}) == 2500
    assert len(proxy.requests) == 3
    assert len(store.objects("cards/", 1200)) == 1200


def test_the_newest_run_of_a_bucket_has_a_name(luff, with_findings, base):
    url = luff("sync", with_findings, base).stdout.strip()
    assert luff("show", f"{base}/@1").stdout == luff("show", url).stdout
    done = luff("show", f"{base}/@2", expect=2)
    assert "there is no run @2, the oldest one is @1" in done.stderr


def test_hostile_cards_are_named_and_change_nothing_else(luff, store, base):
    good, huge, other, broken, odd = (f"{n:032x}" for n in range(1, 6))
    store.put(f"cards/{good}", card_of(good))
    store.put(f"cards/{huge}", b" " * (10 << 20))
    store.put(f"cards/{other}", card_of(good))
    store.put(f"cards/{broken}", b"{")
    store.put(
        f"cards/{odd}", card_of(odd, name="\x1b[2J../../x\nroot", note="\u202egnp.exe", tags=["\x1b]0;t\x07"])
    )
    store.put("cards/..%2f..%2fetc", b"{}")
    store.put("cards/below/another", b"{}")
    done = luff("runs", base)
    assert f"a card has 10485760 bytes, Luff writes at most 8192: {base}/cards/{huge}" in done.stderr
    assert f"the card is of another run: {base}/cards/{other}" in done.stderr
    assert f"the card is no JSON object: {base}/cards/{broken}" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "\\x1b[2J../../x" in done.stdout
    assert len(cards_of(luff, base)) == 2


def test_a_bucket_without_cards_says_why(luff, run, base):
    if base.startswith("file://"):
        Path(base[7:]).mkdir()
    done = luff("runs", base)
    assert done.stdout == f"no runs: {base}\n"
    assert f"no Luff has written there yet; is the URL right? {base}" in done.stderr
    store = open_store(base)
    store.put(f"runs/{run.run_id}/run.json", b"{}")
    done = luff("runs", base)
    assert f"1 run without a card; `luff sync` with this Luff writes it: {base}" in done.stderr


def test_a_folder_that_is_not_there_is_no_empty_bucket(luff, tmp_path):
    there = tmp_path / "misspelt"
    assert f"there is no such folder: {there}" in luff("runs", f"file://{there}", expect=2).stderr
    done = luff("watch", f"file://{there}", "--drain", "--state", tmp_path / "state", expect=2)
    assert f"there is no such folder: {there}" in done.stderr
    assert not there.exists()


def test_what_was_known_is_shown_while_the_bucket_is_away(luff, s3, monkeypatch):
    open_store(s3).put(f"cards/{1:032x}", card_of(f"{1:032x}"))
    assert len(cards_of(luff, s3)) == 1
    bucket = s3.split("/")[2]
    import boto3

    client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"], region_name="us-east-1")
    client.delete_object(Bucket=bucket, Key=f"team/cards/{1:032x}")
    client.delete_bucket(Bucket=bucket)
    done = luff("runs", s3)
    assert "run0" in done.stdout
    assert "shown is what was known before, the bucket was not read: there is no such bucket" in done.stderr
    monkeypatch.setenv("LUFF_HOME", os.environ["LUFF_HOME"] + "-other")
    assert "there is no such bucket" in luff("runs", s3, expect=2).stderr


def test_a_live_run_is_listed_while_it_trains(luff, tmp_path):
    """Its card is put with the first upload; at the end it says how the training ended."""
    from conftest import TRAIN

    base = f"file://{tmp_path}/bucket"
    (tmp_path / "bucket").mkdir()  # one that is not there is an error
    script = tmp_path / "live.py"
    script.write_text(TRAIN)
    job_words = [sys.executable, script, 100_000, 0.02, 0.1]
    words = ["run", "--run", tmp_path / "live", "--sync", base, "--", *job_words]
    with subprocess.Popen(
        [luff.executable, *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as job:
        try:
            assert job.stderr is not None
            end = time.monotonic() + 60
            found: list[dict[str, object]] = []
            while not found and time.monotonic() < end:
                found = cards_of(luff, base)
                time.sleep(0.2)
            assert found[0]["verdict"] == "running"
            assert "running" in luff("runs", base).stdout
            luff("stop", tmp_path / "live")
            job.communicate(timeout=120)
        finally:
            job.kill()
    (card,) = cards_of(luff, base)
    assert card["verdict"] == "stopped"


def test_a_card_is_made_when_there_is_news_and_not_more_often(run, tmp_path, monkeypatch):
    made = tmp_path / "made"
    command = tmp_path / "luff"
    command.write_text(f"#!/bin/sh\necho made >> {made}\necho '{{}}'\n")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("LUFF_EXECUTABLE", str(command))
    monkeypatch.setattr(_card, "_SHARE", 0)
    now = [1000.0]
    monkeypatch.setattr(_card.time, "monotonic", lambda: now[0])
    maker = CardMaker(str(run.path))

    def looked(sequence: int) -> int:
        """Looks until what has begun is ready; returns how many cards were made."""
        maker.take(sequence)
        while maker._child is not None:
            maker._child.wait()
            maker.take(sequence)
        return made.read_text().count("made")

    assert looked(1) == 1  # at once
    now[0] += 59
    assert looked(2) == 1
    now[0] += 2
    assert looked(2) == 2  # steps: a minute
    run.append("rules/luff/findings.jsonl", b"{}\n")
    now[0] += 29
    assert looked(2) == 2
    now[0] += 2
    assert looked(2) == 3  # a verdict: half a minute
    now[0] += 290
    assert looked(2) == 3
    now[0] += 20
    assert looked(2) == 4  # a sign of life
    monkeypatch.setattr(_card, "_SHARE", 300)
    maker._cpu_s = 2.0
    now[0] += 599
    assert looked(9) == 4  # a dear card: at most a 300th of a core
    now[0] += 2
    assert looked(9) == 5


@pytest.mark.parametrize("says", ["", "exit 1", f"head -c {MAX_CARD + 1} /dev/zero", "kill -9 $$"])
def test_a_card_that_cannot_be_made_is_none(run, tmp_path, monkeypatch, says):
    command = tmp_path / "luff"
    command.write_text(f"#!/bin/sh\n{says}\n")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("LUFF_EXECUTABLE", str(command))
    put: list[bytes] = []
    cards = Cards(str(run.path), put.append)
    cards.look(1)
    cards.end(30)
    assert put == []


def test_a_card_that_hangs_is_given_up(run, tmp_path, monkeypatch):
    command = tmp_path / "luff"
    command.write_text("#!/bin/sh\nexec sleep 1000\n")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("LUFF_EXECUTABLE", str(command))
    maker = CardMaker(str(run.path))
    maker.take(1)
    child = maker._child
    assert child is not None
    assert maker.last(0.1) is None
    assert child.returncode is not None


def test_a_bucket_that_refuses_cards_has_the_run(luff, with_findings, tmp_path):
    """As where the policy is of an earlier Luff, which had none."""
    base = f"file://{tmp_path}/bucket"
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "cards").write_text("no folder, so nothing can be put into it")
    url = luff("sync", with_findings, base).stdout.strip()
    there, here = (luff("check", run, "--json", expect=None).stdout for run in (url, with_findings))
    assert there == here


def test_show_says_what_an_upload_has_cost(luff, with_findings, tmp_path):
    """On the host and by the URL; money only at prices that the user gives."""
    base, config = f"file://{tmp_path}/bucket", tmp_path / "luff.toml"
    url = luff("sync", with_findings, base).stdout.strip()
    assert "$" not in luff("show", with_findings).stdout
    config.write_text(
        "[bucket]\nprice_per_1000_puts = 5\nprice_per_1000_gets = 1\nprice_per_gb_month = 1000\n"
    )
    for place in (with_findings, url):
        (cost,) = json.loads(luff("show", place, "--json", "--config", config).stdout)["uploads"]
        assert cost["url"] == url
        gets = cost["requests"] - cost["puts"]
        assert cost["puts"] > 5
        assert cost["requests_cost"] == pytest.approx((5 * cost["puts"] + gets) / 1000)
        assert cost["month_cost_at_most"] == pytest.approx(cost["sent_bytes"] / 1e6)
        shown = luff("show", place, "--config", config).stdout
        assert f"{cost['requests']} requests ({cost['puts']} puts and lists)" in shown
        assert " for requests, at most $" in shown


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[bucket]\nprice_per_1000_put = 1\n", "nearest: price_per_1000_puts"),
        ("[bucket]\nprice_per_gb_month = -1\n", "no price from 0 to 1e+06"),
        ("[bucket]\nprice_per_gb_month = nan\n", "no price from 0"),
        ("bucket = 3\n", "is no table"),
    ],
)
def test_a_wrong_price_is_explained_with_its_line(luff, with_findings, tmp_path, text, says):
    (tmp_path / "luff.toml").write_text(text)
    done = luff("show", with_findings, "--config", tmp_path / "luff.toml", expect=2)
    assert says in done.stderr
    assert "luff.toml, line " in done.stderr


def test_a_machine_without_a_process_to_spare_gets_its_card_later(tmp_path, monkeypatch):
    maker = CardMaker(str(tmp_path))
    maker._luff = "luff"
    begun = []

    def full(*words, **options):
        begun.append(words)
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("luff.remote._card.subprocess.Popen", full)
    monkeypatch.setattr("luff.remote._card._HEARTBEAT_S", 0.0)
    for name in ("_VERDICT_S", "_PROGRESS_S"):
        monkeypatch.setattr(f"luff.remote._card.{name}", 0.0)
    assert [maker.take(1), maker.take(2)] == [None, None]
    assert len(begun) == 2


def test_what_a_judge_found_is_listed_where_the_host_has_found_nothing(luff, store, base):
    one, other = f"{1:032x}", f"{2:032x}"
    store.put(f"cards/{one}", card_of(one))
    store.put(f"cards/{other}", card_of(other, verdict="findings", findings={"count": 1, "rules": ["Own"]}))
    assert {card["run_id"]: card["verdict"] for card in cards_of(luff, base)} == {
        one: "ok",
        other: "findings",
    }
    found = {
        "count": 2,
        "rules": ["NonFinite"],
        "first": {"rule": "NonFinite", "severity": "stop", "what": "w"},
    }
    for run_id in (one, other):
        said = {"format": "luff-judged-card", "version": 1, "run_id": run_id, "findings": found}
        store.put(f"cards/{run_id}.judged", json.dumps(said).encode())
    cards = {card["run_id"]: card for card in cards_of(luff, base)}
    assert cards[one]["verdict"] == "findings"
    assert (cards[one]["findings"]["count"], cards[one]["findings"]["rules"]) == (2, ["NonFinite"])
    assert cards[other]["findings"]["rules"] == ["Own"]
    for hostile in (
        b"",
        b"{",
        b"[" * 4000,
        b'{"findings": 3}',
        json.dumps(said | {"run_id": other}).encode(),
        b"x" * 5000,
    ):
        store.put(f"cards/{one}.judged", hostile)
        assert {card["run_id"]: card["verdict"] for card in cards_of(luff, base)}[one] == "ok"
