"""Operators of a trace, lines of long waits, and where a training stands: in the answer, in a browser, in a file."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import Browser
from tests.browser import executable as browser_executable
from tests.report import Report, skip_without_page

from .conftest import AXE, LIMIT_S, WATCH, Server, barriers, executable
from .test_views import go, picture, says

pytest.importorskip("torch")

_TRACED = """
import sys, time
import torch, luff, luff.torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
hook = luff.torch.attach(model, run=sys.argv[1], rules=False)

def log_images():
    time.sleep(0.09)

for number in range(60):
    if number == 7:
        assert luff.trace(3) == "" and luff.trace(3) != ""  # the second one is refused
    optimizer.zero_grad()
    model(torch.ones(16, 32)).sum().backward()
    optimizer.step()
    log_images()
hook.close()
"""
_HANGS = """
import sys, threading
import luff.numpy

hook = luff.numpy.attach({}, run=sys.argv[1], stalled_after_s=1, rules=False)
for _ in range(3):
    with hook.step() as one:
        one.loss(1.0)

def hang():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

hang()
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("operators")
    (folder / "traced.py").write_text(_TRACED)
    words = [sys.executable, str(folder / "traced.py"), str(folder / "traced")]
    subprocess.run(words, check=True, capture_output=True, timeout=2 * LIMIT_S)
    return folder


@pytest.fixture(scope="module")
def server(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("home"), root)
    yield started
    started.end()


@pytest.fixture(scope="module")
def traced(server: Server) -> str:
    return place(server, "traced")


@pytest.fixture(scope="module")
def browser(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser_executable()
    server.require_page()
    with contextlib.closing(Browser(tmp_path_factory.mktemp("profile"))) as opened:
        opened.before_each_page(WATCH)
        opened.open(server.link)
        opened.until("document.querySelectorAll('tbody tr').length >= 1")
        yield opened


def place(server: Server, name: str) -> str:
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        for one in server.get("/api/v1/runs")["runs"]:
            if one["place"] == name:
                return str(one["id"])
        time.sleep(0.2)
    raise AssertionError(f"no run {name}")


def said(run: Path) -> Any:
    command = [executable(), "profile", str(run), "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def looks_right(browser: Browser, name: str) -> None:
    """Checks the page as it is: both themes, and a narrow screen."""
    if AXE.exists():
        for theme in ("dark", "light"):
            browser.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
            time.sleep(0.2)
            assert barriers(browser) == [], theme
            picture(browser, f"{name}-{theme}")
    browser.resize(320, 800)
    try:
        browser.until("document.documentElement.scrollWidth <= 320")
        picture(browser, f"{name}-narrow")
    finally:
        browser.resize(1400, 1000)


def test_the_answer_has_them_as_the_command(server: Server, root: Path, traced: str) -> None:
    told, command = server.get(f"/api/v1/runs/{traced}/profile"), said(root / "traced")
    assert told["lines"] == command["lines"]
    assert told["lines"][0]["function"] == "log_images"
    refused, made = told["traces"]  # as they were told: the trace was still being made
    assert (made["first_step"], made["steps"]) == (7, 3)
    assert f"{root}/traced/{made['file']}" == command["traces"][1]["file"]
    assert made["summary"] == command["traces"][1]["summary"]
    assert {one["name"] for one in made["summary"]["operators"]} >= {"aten::addmm", "aten::linear"}
    assert refused["refused"] and refused["file"] is None
    assert told["stalls"] == command["stalls"] == []


def test_the_view_has_operators_and_lines(browser: Browser, traced: str) -> None:
    go(browser, traced, "view=profile")
    says(
        browser, "Lines of long waits", "log_images", "Trace of TRAIN steps 7 to 9", "aten::addmm",
        "The thread that trains was in operators for", "No trace at TRAIN step 7: ", "w0000/traces/",
    )  # fmt: skip
    browser.evaluate("document.getElementById('traces').scrollIntoView()")
    picture(browser, "operators")
    # The keyboard alone reaches the table and opens the rest of it.
    browser.tab_to("e.getAttribute('aria-label') === 'Operators'")
    rows = "document.querySelectorAll('[aria-label=Operators] tbody tr').length"
    assert browser.evaluate(rows) == 8
    browser.tab_to("e.tagName === 'BUTTON' && /^show \\d+$/.test(e.textContent)")
    browser.press("Enter")
    browser.until(f"{rows} > 8")
    looks_right(browser, "operators")
    assert browser.evaluate("window.problems") == []


def test_a_file_has_them_too(browser: Browser, server: Server, root: Path) -> None:
    out = root / "report.html"
    done = subprocess.run(
        [executable(), "report", str(root / "traced"), "-o", str(out)], capture_output=True, text=True
    )
    skip_without_page(done.stderr)
    assert done.returncode == 0, done.stderr
    assert Report(out.read_text()).json("profile")["traces"][1]["summary"]["events"] > 10
    browser.open("about:blank")
    browser.open(f"{out.as_uri()}#/?view=profile")
    says(browser, "Lines of long waits", "Trace of TRAIN steps 7 to 9", "aten::addmm")
    assert browser.evaluate("window.problems") == []
    browser.open("about:blank")
    browser.open(server.base)
    browser.until("document.querySelectorAll('tbody tr').length >= 1")


def test_a_training_that_stands_still_says_where(browser: Browser, server: Server, root: Path) -> None:
    (root / "hangs.py").write_text(_HANGS)
    job = subprocess.Popen([sys.executable, str(root / "hangs.py"), str(root / "hangs")], env=os.environ)
    try:
        run = place(server, "hangs")
        end = time.monotonic() + LIMIT_S
        stalls: list[Any] = []
        while not (stalls and stalls[0]["after_step"] == 2 and "hang" in stalls[0]["stands"]):
            assert time.monotonic() < end and job.poll() is None, stalls
            time.sleep(0.2)
            stalls = server.get(f"/api/v1/runs/{run}/profile")["stalls"]
        assert stalls[0]["text"].startswith("the training stands still for at least")
        go(browser, run, "view=profile")
        says(
            browser, "It stands still", "The training stands still for at least", "waits for a lock",
            "hangs.py:", "hang",
        )  # fmt: skip
        frames = "[...document.querySelectorAll('ol li')].map(li => li.innerText)"
        assert any("hangs.py" in text for text in browser.evaluate(frames))
        assert browser.evaluate("document.querySelectorAll('ol li strong').length") >= 2  # its own code
        looks_right(browser, "stands")
        assert browser.evaluate("window.problems") == []
    finally:
        job.kill()
        job.wait()
    out = root / "hangs.html"
    subprocess.run(
        [executable(), "report", str(root / "hangs"), "-o", str(out)], check=True, capture_output=True
    )
    assert (
        Report(out.read_text()).json("profile")["stalls"][0]["text"].startswith("the training stands still")
    )
