"""What is wrong with what is served: each has a sentence with a remedy, and everything else goes on."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.browser import Browser
from tests.browser import executable as browser_executable

from .conftest import LIMIT_S, WATCH, Server, executable, record


@pytest.fixture
def root(tmp_path: Path) -> Path:
    record(tmp_path / "root/good", 8)
    return tmp_path / "root"


@pytest.fixture
def serving(root: Path, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def serve(*more: Path) -> Server:
        started.append(Server(tmp_path / "home", root, *more))
        return started[-1]

    yield serve
    for server in started:
        server.end()


def places(server: Server) -> list[str]:
    return sorted(run["place"] for run in server.get("/api/v1/runs")["runs"])


def test_directories_that_are_missing_or_of_other_things(
    root: Path, tmp_path: Path, serving: Callable[..., Server]
) -> None:
    done = subprocess.run(
        [executable(), "serve", str(tmp_path / "missing")], capture_output=True, text=True, timeout=LIMIT_S,
        check=False, env=os.environ | {"LUFF_HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 2
    assert "no such directory" in done.stderr
    (tmp_path / "empty").mkdir()
    other = tmp_path / "other"
    (other / "photos/2026").mkdir(parents=True)
    (other / "run.json").mkdir()
    (other / "fake").mkdir()
    (other / "fake/run.json").write_text("{" * 10_000)
    (other / "events").write_bytes(bytes(range(256)))
    os.mkfifo(other / "pipe")
    server = serving(tmp_path / "empty", other)
    assert places(server) == ["fake", "good"]
    fake = next(run for run in server.get("/api/v1/runs")["runs"] if run["place"] == "fake")
    assert fake["verdict"] == "damaged"
    assert fake["problems"]
    answer = server.ask("GET", f"/api/v1/runs/{fake['id']}")
    assert answer.status == 422
    assert "luff verify" in answer.json()["remedy"]


def test_a_directory_that_goes_and_comes_back(
    root: Path, tmp_path: Path, serving: Callable[..., Server]
) -> None:
    record(tmp_path / "second/other", 5)
    server = serving(tmp_path / "second")
    assert places(server) == ["good", "other"]
    (tmp_path / "second").rename(tmp_path / "away")
    listed = server.get("/api/v1/runs")
    assert [run["place"] for run in listed["runs"]] == ["good"]
    assert "is gone" in listed["notes"][0]
    assert "start luff serve" in listed["notes"][0]
    assert server.ask("GET", "/metrics").status == 200
    (tmp_path / "away").rename(tmp_path / "second")
    assert places(server) == ["good", "other"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_directory_that_may_not_be_read(tmp_path: Path, serving: Callable[..., Server]) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    server = serving(tmp_path / "closed")
    assert places(server) == ["good"]
    assert "Let the user" in server.get("/api/v1/runs")["notes"][0]


def test_a_run_of_a_newer_version(root: Path, serving: Callable[..., Server]) -> None:
    record(root / "newer", 5)
    info = json.loads((root / "newer/run.json").read_text())
    info["format_major"] = 99
    (root / "newer/run.json").write_text(json.dumps(info))
    server = serving()
    run = next(run for run in server.get("/api/v1/runs")["runs"] if run["place"] == "newer")
    answer = server.ask("GET", f"/api/v1/runs/{run['id']}")
    assert answer.status == 422, answer.body
    assert "pip install -U luff" in answer.json()["remedy"]
    assert places(server) == ["good", "newer"]


def test_runs_that_are_damaged_or_half_written(root: Path, serving: Callable[..., Server]) -> None:
    for name in ("cut", "noise"):
        record(root / name, 40)
        for file in sorted((root / name / "w0000").glob("*")):
            if file.is_file() and file.name != "live":
                whole = file.read_bytes()
                file.write_bytes(
                    whole[: len(whole) // 2] if name == "cut" else whole[:200] + bytes(len(whole) - 200)
                )
    server = serving()
    assert places(server) == ["cut", "good", "noise"]
    for run in server.get("/api/v1/runs")["runs"]:
        if run["place"] == "good":
            continue
        for what in ("", "/tensors", "/heat?stat=l2", "/overview?tensor=0&stat=std", "/findings"):
            assert server.ask("GET", f"/api/v1/runs/{run['id']}{what}").status in (200, 404, 422)
    assert server.ask("GET", "/healthz").status == 200


def test_a_run_that_is_removed_or_replaced_while_it_is_open(
    root: Path, serving: Callable[..., Server]
) -> None:
    record(root / "second", 20)
    server = serving()
    runs = {run["place"]: run["id"] for run in server.get("/api/v1/runs")["runs"]}
    for what in ("", "/heat?stat=l2"):
        assert server.ask("GET", f"/api/v1/runs/{runs['second']}{what}").status == 200
    shutil.rmtree(root / "second")
    for what in ("", "/heat?stat=l2", "/at/3"):  # what is open may still answer; nothing breaks
        assert server.ask("GET", f"/api/v1/runs/{runs['second']}{what}").status in (200, 404, 422)
    assert places(server) == ["good"]
    gone = server.ask("GET", f"/api/v1/runs/{runs['second']}")
    assert gone.status == 404
    assert "lists them" in gone.json()["remedy"]
    record(root / "second", 7)
    again = next(run for run in server.get("/api/v1/runs")["runs"] if run["place"] == "second")
    assert again["id"] != runs["second"]
    heat = server.get(f"/api/v1/runs/{again['id']}/heat?stat=l2")
    assert heat["complete"]
    assert heat["levels"][0]["columns"] == 7


def test_two_runs_with_one_id(root: Path, serving: Callable[..., Server]) -> None:
    shutil.copytree(root / "good", root / "copy")
    server = serving()
    runs = server.get("/api/v1/runs")["runs"]
    assert len({run["id"] for run in runs}) == 2
    for run in runs:
        assert server.get(f"/api/v1/runs/{run['id']}")["card"]["place"] == run["place"]


def test_a_full_or_foreign_cache_disk(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serving: Callable[..., Server]
) -> None:
    cache = tmp_path / "cache"
    cache.write_text("a file where a directory should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    server = serving()
    run = server.get("/api/v1/runs")["runs"][0]["id"]
    assert server.get(f"/api/v1/runs/{run}/heat?stat=l2")["complete"]
    assert server.ask("GET", f"/api/v1/runs/{run}/heat/l2/0/0/0").status == 200


def test_directories_of_smdebug_are_runs(root: Path, tmp_path: Path, serving: Callable[..., Server]) -> None:
    made = subprocess.run(
        [executable(), "export", str(root / "good"), str(root / "foreign"), "--to", "smdebug"],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    server = serving()
    assert places(server) == ["foreign", "good"]
    run = next(run for run in server.get("/api/v1/runs")["runs"] if run["place"] == "foreign")
    document = server.get(f"/api/v1/runs/{run['id']}")
    assert document["steps"]["count"] == 8
    assert server.get(f"/api/v1/runs/{run['id']}/heat?stat=l2")["levels"]
    assert server.get(f"/api/v1/runs/{run['id']}/tensors")["tensors"]


def test_the_page_says_it_too(root: Path, tmp_path: Path, serving: Callable[..., Server]) -> None:
    browser_executable()
    record(tmp_path / "second/other", 5)
    (root / "fake").mkdir()
    (root / "fake/run.json").write_text("[")
    server = serving(tmp_path / "second")
    server.require_page()
    fake = next(run["id"] for run in server.get("/api/v1/runs")["runs"] if run["place"] == "fake")
    (tmp_path / "second").rename(tmp_path / "away")
    with contextlib.closing(Browser(tmp_path / "profile")) as browser:
        browser.open(server.link)
        browser.until("document.body?.innerText.includes('is gone')")
        browser.evaluate(f"location.hash = '#/run/{fake}'")
        browser.until("document.body?.innerText.includes('luff verify')")
    with contextlib.closing(Browser(tmp_path / "another")) as browser:  # without a session
        browser.open(server.base + "/#token=" + "0" * 64)
        browser.until("document.body?.innerText.includes('does not open anything')")


def test_events_that_are_held_back_are_told(tmp_path: Path, serving: Callable[..., Server]) -> None:
    browser_executable()
    server = serving()
    server.require_page()
    soon = (
        "const later = setTimeout, sooner = [8000];"
        "window.setTimeout = (f, ms, ...a) => later(f, sooner.includes(ms) ? 300 : ms, ...a);"
    )
    silent = "window.EventSource = class extends EventTarget { readyState = 0; close() {} };"
    opens = (
        "window.EventSource = class extends EventTarget {"
        "  readyState = 1; close() {} constructor() { super(); later(() => this.onopen(), 0); }"
        "};"
    )
    says = "document.body?.innerText.includes('proxy_buffering off')"
    state = "document.querySelector('header [role=status]')?.innerText"
    with contextlib.closing(Browser(tmp_path / "opened")) as browser:  # the headers came, and no event
        browser.before_each_page(soon + opens)
        browser.open(server.link)
        browser.until(says)
    with contextlib.closing(
        Browser(tmp_path / "busy")
    ) as browser:  # the server has other answers to make first
        browser.before_each_page(soon + silent)
        browser.open(server.link)
        browser.until("document.querySelector('tbody tr') !== null")
        browser.evaluate("new Promise((end) => later(end, 600))")
        assert not browser.evaluate(says)
    with contextlib.closing(Browser(tmp_path / "profile")) as browser:
        browser.before_each_page(soon + "sooner.push(25000);" + silent)
        browser.open(server.link)
        browser.until(says)
        assert browser.evaluate(state) == "not live"
        assert browser.evaluate("document.querySelector('tbody tr') !== null"), "all else works"
    with contextlib.closing(Browser(tmp_path / "other")) as browser:
        browser.before_each_page(soon)
        browser.open(server.link)
        browser.until(f"{state} === 'live'")
        browser.evaluate("new Promise((end) => later(end, 600))")
        browser.until(f"{state} === 'live' && !{says}")


def test_a_browser_without_trusted_types_shows_the_page(
    tmp_path: Path, serving: Callable[..., Server]
) -> None:
    browser_executable()
    server = serving()
    server.require_page()
    with contextlib.closing(Browser(tmp_path / "profile")) as browser:
        browser.forget_policies()
        browser.before_each_page("delete window.trustedTypes;" + WATCH)
        browser.open(server.link)
        browser.until("document.querySelector('tbody tr') !== null")
        assert browser.evaluate("typeof trustedTypes") == "undefined"
        browser.evaluate("document.querySelector('tbody a').click()")
        browser.until("document.querySelector('canvas') !== null")
        assert browser.evaluate("problems") == []
