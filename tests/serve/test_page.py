"""The page in a real browser: every view, a live run, hostile names, the keyboard, both themes, accessibility.

LUFF_SCREENSHOTS names a folder for pictures of the views.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import luff as package
import pytest

from tests.browser import Browser
from tests.browser import executable as browser_executable

from .conftest import AXE, LIMIT_S, WATCH, Server, add_token, barriers, executable, record

VIEWS = ("", "curves", "heat", "findings", "step", "log", "actions", "info")


@pytest.fixture(scope="module")
def browser(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser_executable()
    server.require_page()
    with contextlib.closing(Browser(tmp_path_factory.mktemp("profile"))) as opened:
        opened.before_each_page(WATCH)
        opened.open(server.link)
        opened.until("document.querySelectorAll('tbody tr').length === 3")
        yield opened


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Server]:
    """A server that serves `tmp_path`/root, where no run is yet."""
    browser_executable()
    (tmp_path / "root").mkdir()
    server = Server(tmp_path, tmp_path / "root")
    try:
        server.require_page()
        yield server
    finally:
        server.end()


def go(browser: Browser, run: str, values: str) -> None:
    browser.evaluate(f"location.hash = '#/run/{run}?{values}'")


def text(browser: Browser) -> str:
    return str(browser.evaluate("document.body.innerText"))


@pytest.fixture(scope="module")
def run(server: Server) -> str:
    return next(str(run["id"]) for run in server.get("/api/v1/runs")["runs"] if run["place"] == "one")


def test_the_token_leaves_the_address_and_the_session_stays(browser: Browser, server: Server) -> None:
    assert "token" not in browser.evaluate("location.href")
    browser.open(f"{server.base}/")
    browser.until("document.querySelectorAll('tbody tr').length === 3")


def test_every_view_shows_a_run(browser: Browser, run: str) -> None:
    shots = os.environ.get("LUFF_SCREENSHOTS")
    expected = {
        "": "step 59", "curves": "block.0.weight", "heat": "not recorded", "findings": "No findings",
        "step": "TRAIN step 59", "log": "luff run --log", "actions": "Nothing was asked", "info": "numpy",
    }  # fmt: skip
    for view in VIEWS:
        go(browser, run, f"view={view}")
        browser.until(f"(document.body?.innerText ?? '').includes({json.dumps(expected[view])})")
        if view in ("", "curves"):
            browser.until("document.querySelector('.uplot canvas') !== null")
        if view == "heat":
            browser.until("document.querySelector('canvas').height > 20")
        if shots:
            time.sleep(0.5)
            browser.screenshot(Path(shots) / f"{view or 'verdict'}.png")
    assert browser.evaluate("window.problems") == []


def test_nothing_of_a_run_is_interpreted(browser: Browser, run: str) -> None:
    go(browser, run, "view=curves")
    browser.until("(document.body?.innerText ?? '').includes('<img src=x')")
    assert browser.evaluate("document.querySelectorAll('main img').length") == 0
    go(browser, run, "view=heat&name=%3Cimg+src%3Dx+onerror%3Dalert(1)%3E")
    time.sleep(0.5)
    assert browser.evaluate("window.problems") == []


def test_what_is_not_finite_is_said_and_marked(browser: Browser, server: Server, run: str) -> None:
    tensors = server.get(f"/api/v1/runs/{run}/tensors")["tensors"]
    weight = next(t["id"] for t in tensors if t["name"].endswith("block.1.weight") and t["role"] == "weight")
    go(browser, run, f"view=curves&t={weight}")
    browser.until("(document.body?.innerText ?? '').includes('not finite at')")


def test_the_keyboard_moves_the_cursor_and_changes_views(browser: Browser, run: str) -> None:
    go(browser, run, "step=40")
    browser.until("(document.body?.innerText ?? '').includes('step 40')")
    for key in ("ArrowLeft", "ArrowLeft", "ArrowRight"):
        browser.press(key)
    browser.until("location.hash.includes('step=39')")
    browser.press("g")
    browser.press("h")
    browser.until("location.hash.includes('view=heat')")
    browser.press("g")
    browser.press("r")
    browser.until("document.querySelectorAll('tbody tr').length === 3")
    browser.press("/")
    assert browser.evaluate("document.activeElement.id") == "where"


def test_a_link_gives_the_same_picture_in_another_page(browser: Browser, server: Server, run: str) -> None:
    link = f"{server.base}/#/run/{run}?view=step&step=12"
    browser.open("about:blank")
    browser.open(link)
    browser.until("(document.body?.innerText ?? '').includes('TRAIN step 12')")


def test_a_wrong_filter_and_an_unknown_run_are_sentences(browser: Browser, server: Server) -> None:
    browser.open("about:blank")
    browser.open(f"{server.base}/#/?where=losss+%3C+1")
    browser.until("(document.body?.innerText ?? '').includes('nearest')")
    browser.evaluate(f"location.hash = '#/run/{'0' * 32}'")
    browser.until("(document.body?.innerText ?? '').includes('There is no such run any more')")


def test_both_themes_are_accessible(browser: Browser, run: str) -> None:
    if not AXE.exists():
        pytest.skip("no axe-core; npm ci in web/")
    for theme in ("light", "dark"):
        for view in VIEWS:
            go(browser, run, f"view={view}")
            browser.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
            time.sleep(0.4)
            assert barriers(browser) == [], f"{theme} {view}"


def test_narrow_screens_scroll_nothing_sideways(browser: Browser, run: str) -> None:
    browser.resize(320, 800)
    try:
        for view in VIEWS:
            go(browser, run, f"view={view}")
            time.sleep(0.4)
            browser.until("document.documentElement.scrollWidth <= 320")  # charts follow the window
            if view in ("", "heat"):  # room for names, and for cells
                browser.until("document.querySelector('.map canvas')?.clientWidth > 120")
    finally:
        browser.resize(1400, 1000)


def test_a_live_run_grows_on_the_page(empty: Server, tmp_path: Path) -> None:
    with contextlib.closing(Browser(tmp_path / "profile")) as browser:
        browser.before_each_page(WATCH)
        browser.open(empty.link)
        browser.until("(document.body?.innerText ?? '').includes('No runs yet')")
        hook = record(tmp_path / "root/live", 20, close=False)
        browser.until("document.querySelectorAll('tbody tr').length === 1")
        browser.evaluate("document.querySelector('tbody a').click()")
        browser.until("(document.body?.innerText ?? '').includes('of 20 steps')")
        for _ in range(15):
            with hook.step() as step:
                step.loss(0.5)
        browser.until("(document.body?.innerText ?? '').includes('of 35 steps')")
        hook.close()
        browser.until("(document.body?.innerText ?? '').includes('completed')")
        assert browser.evaluate("window.problems") == []
        empty.end()
        browser.until("(document.body?.innerText ?? '').includes('connecting')")


_JOB = """
import time
import numpy as np
import luff.numpy

weights = {"fc1.weight": np.ones(4, np.float32), "fc2.weight": np.ones(4, np.float32)}
with luff.numpy.attach(weights) as hook:
    for number in range(6000):
        with hook.step() as step:
            step.gradients({name: np.full(4, 0.1, np.float32) for name in weights})
            step.loss(float("nan") if number >= 20 else 1.0 / (number + 1))
        time.sleep(0.01)
"""


def press(browser: Browser, name: str) -> None:
    """Presses the button of that name, once it is there."""
    found = f"[...document.querySelectorAll('button')].find(b => b.textContent.trim() === {json.dumps(name)})"
    browser.until(f"{found} !== undefined")
    browser.evaluate(f"{found}.click()")


def fill(browser: Browser, selector: str, value: str) -> None:
    browser.evaluate(
        f"{{ const field = document.querySelector({json.dumps(selector)}); field.value = {json.dumps(value)};"
        "field.dispatchEvent(new Event('input', { bubbles: true })); }"
    )


def test_a_job_is_watched_more_closely_and_stopped_from_the_page(empty: Server, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(_JOB)
    run = tmp_path / "root/job"
    job = subprocess.Popen(
        [executable(), "run", "--run", str(run), "--", sys.executable, str(tmp_path / "job.py")],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with contextlib.closing(Browser(tmp_path / "profile")) as browser:
            browser.before_each_page(WATCH)
            browser.open(empty.link)
            browser.until("document.querySelectorAll('tbody tr').length === 1")
            browser.evaluate("document.querySelector('tbody a').click()")
            browser.until("(document.body?.innerText ?? '').includes('Findings 1')")
            here = browser.evaluate("location.hash.split('?')[0]")
            browser.evaluate(f"location.hash = '{here}?view=findings'")
            press(browser, "Acknowledge")
            browser.until("(document.body?.innerText ?? '').includes('acknowledged by')")
            press(browser, "Reopen")
            browser.until("!(document.body?.innerText ?? '').includes('acknowledged by')")
            press(browser, "Record more of it…")
            browser.until("document.querySelector('form input')?.value.startsWith('^')")
            fill(browser, "form input", "fc1(")
            press(browser, "Record…")
            press(browser, "Yes, record it")
            browser.until("(document.body?.innerText ?? '').includes('does not compile')")
            fill(browser, "form input", "^fc1")
            fill(browser, "form input[type=number]", "2")
            press(browser, "Record…")
            press(browser, "No")
            press(browser, "Record…")
            press(browser, "Yes, record it")
            what = "record more: ^fc1 as raw, histogram, every 2 steps, for 200 steps"
            browser.until(f"(document.body?.innerText ?? '').includes({json.dumps(what)})")
            browser.until(r"/accepted by all ranks\s+→ ✓ done/.test(document.body?.innerText ?? '')")
            press(browser, "Stop…")
            host = json.dumps(f"on {socket.gethostname()}, 1 rank, after about step")
            browser.until(f"(document.body?.innerText ?? '').includes({host})")
            press(browser, "No")
            press(browser, "Stop…")
            if shots := os.environ.get("LUFF_SCREENSHOTS"):
                browser.screenshot(Path(shots) / "acting.png")
            press(browser, "Yes, stop it")
            browser.until("(document.body?.innerText ?? '').includes('nothing can be asked of it any more')")
            assert browser.evaluate("window.problems") == []
        _, said = job.communicate(timeout=LIMIT_S)
        assert job.returncode == 76, said
        assert "stopped, asked by" in said
        with package.open_trial(run) as trial:
            steps = trial.tensor("fc1.weight").value_steps("TRAIN")
            assert len(steps) > 3
            assert {after - before for before, after in pairwise(steps)} == {2}
            assert trial.tensor("fc2.weight").value_steps("TRAIN") == []
    finally:
        job.kill()
        job.communicate()


def test_who_may_not_act_sees_what_was_asked_and_no_buttons(empty: Server, tmp_path: Path) -> None:
    hook = record(tmp_path / "root/live", 20, close=False)
    try:
        run = empty.get("/api/v1/runs")["runs"][0]["id"]
        json_body = {"Content-Type": "application/json"}
        body = json.dumps({"action": "stop", "reason": "it is late"})
        asked = empty.ask("POST", f"/api/v1/runs/{run}/requests", json_body, body)
        assert asked.status == 202, asked.body
        viewer = add_token(tmp_path, "ann")
        with contextlib.closing(Browser(tmp_path / "profile")) as browser:
            browser.before_each_page(WATCH)
            browser.open(f"{empty.base}/#token={viewer}/run/{run}?view=actions")
            browser.until("(document.body?.innerText ?? '').includes('it is late')")
            for view, sentence in {
                "actions": "Asking the job to stop, or to record more, needs the role operator; yours is viewer.",
                "info": "Writing tags, a name or a note needs the role operator; yours is viewer.",
            }.items():
                go(browser, run, f"view={view}")
                browser.until(f"(document.body?.innerText ?? '').includes({json.dumps(sentence)})")
                assert browser.evaluate("document.querySelectorAll('main button').length") == 0
            browser.press("g")
            browser.press("r")
            browser.until("document.querySelectorAll('tbody tr').length === 1")
            browser.press("j")
            browser.press("e")
            time.sleep(0.3)
            assert browser.evaluate("document.querySelectorAll('form[aria-label], .edit').length") == 0
            assert browser.evaluate("window.problems") == []
            revoked = subprocess.run(
                [executable(), "serve", "token", "revoke", "ann"],
                check=False,
                env=os.environ | {"LUFF_HOME": str(tmp_path)},
            )
            assert revoked.returncode == 0
            browser.until("(document.body?.innerText ?? '').includes('Your session here has ended')")
    finally:
        hook.close()
