"""Where the time went, in a real browser: two ranks of which one waits for its data, live and in a file."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.browser import Browser
from tests.browser import executable as browser_executable
from tests.report import Report, skip_without_page

from .conftest import AXE, LIMIT_S, WATCH, Server, barriers, executable, numbers, texts
from .test_views import go, picture, says

STEPS = 160
#: Rank 1 waits for each batch. `argv[2]`: what to do after the steps; "hold" trains on until a line comes in.
_RANK = """
import os, sys, time
import luff, luff.numpy
import numpy as np

rank = int(os.environ.get("RANK", "0"))
weights = {"w": np.ones((2, 2), np.float32)}

def batches():
    number = 0
    while number < STEPS or sys.argv[2] == "hold":
        time.sleep(0.02 if rank == 1 or sys.argv[2] == "hold" else 0.001)
        yield number
        number += 1

with luff.numpy.attach(weights, run=sys.argv[1]) as hook:
    for number in luff.wait(batches()):
        with hook.step() as step:
            with luff.phase("compute"):
                weights["w"] *= 0.999
                time.sleep(0.002)
            if number == 100:
                with luff.phase("checkpoint"):
                    time.sleep(0.4)
            step.loss(1.0 / (number + 1))
        if number == 60:
            print("there", flush=True)
"""


def train(folder: Path, run: str, rank: int | None, then: str = "end") -> subprocess.Popen[str]:
    (folder / "rank.py").write_text(_RANK.replace("STEPS", f"{STEPS}"))
    ranks = {} if rank is None else {"RANK": str(rank), "WORLD_SIZE": "2"}
    return subprocess.Popen(
        [sys.executable, str(folder / "rank.py"), str(folder / run), then],
        env=os.environ | ranks, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def measured(run: Path) -> bool:
    command = [executable(), "profile", str(run), "--json"]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return any(machine["sampler"]["ended"] for machine in told["machines"])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("time")
    ranks = [train(folder, "ranks", rank) for rank in range(2)]
    for rank in ranks:
        rank.communicate(timeout=LIMIT_S)
        assert rank.returncode == 0
    end = time.monotonic() + LIMIT_S
    while not measured(folder / "ranks"):  # the sampler ends a little after the job
        assert time.monotonic() < end, "the machine was not measured"
        time.sleep(0.2)
    return folder


@pytest.fixture(scope="module")
def server(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("home"), root)
    yield started
    started.end()


@pytest.fixture(scope="module")
def run(server: Server) -> str:
    return str(next(one["id"] for one in server.get("/api/v1/runs")["runs"] if one["place"] == "ranks"))


@pytest.fixture(scope="module")
def browser(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser_executable()
    server.require_page()
    with contextlib.closing(Browser(tmp_path_factory.mktemp("profile"))) as opened:
        opened.before_each_page(WATCH)
        opened.open(server.link)
        opened.until("document.querySelectorAll('tbody tr').length >= 1")
        yield opened


def steps_of(server: Server, run: str, query: str = "") -> tuple[dict[str, np.ndarray], dict[str, str]]:
    body = server.ask("GET", f"/api/v1/runs/{run}/profile/steps{query}").body
    return numbers(body), texts(body)


def test_the_document_is_that_of_the_command(server: Server, root: Path, run: str) -> None:
    told = server.get(f"/api/v1/runs/{run}/profile?worker=1")
    command = [executable(), "profile", str(root / "ranks"), "--rank", "1", "--json"]
    said = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert {key: told[key] for key in ("phases", "ranks", "skew", "verdict", "saving", "steps")} == {
        key: said[key] for key in ("phases", "ranks", "skew", "verdict", "saving", "steps")
    }
    assert "rank 1 takes" in told["skew"] and "data_wait" in told["skew"]
    assert told["cause"] == "own_loop"
    assert told["machines"], "the machine was measured"
    part = server.get(f"/api/v1/runs/{run}/profile?from=90&to=110")
    assert part["steps"] == 21
    assert part["machines"][0]["seconds"] <= told["machines"][0]["seconds"]
    assert server.ask("GET", f"/api/v1/runs/{run}/profile?worker=7").status == 404


def test_buckets_hide_no_step(server: Server, run: str) -> None:
    arrays, told = steps_of(server, run)
    assert told["bucket_steps"] == "1"
    assert list(arrays["train"]) == list(range(STEPS))
    few, told = steps_of(server, run, "?points=8")
    assert told["bucket_steps"] == "32"
    assert sum(few["steps"]) == STEPS
    assert few["step_s.hi"].max() == arrays["step_s.mean"].max() >= 0.4  # the checkpoint
    phases = told["phases"].split(",")
    sums = sum(few[f"phase.{name}.mean"].astype(float) for name in phases)
    assert abs(sums / few["step_s.mean"] - 1).max() < 1e-5
    assert (few["cpu"][few["cpu"] == few["cpu"]] <= 1).all()
    slow, told = steps_of(server, run, "?worker=1")
    host = told["hosts"].split(",")[0]
    busy = slow[f"host.{host}.cores.busy.mean"]
    assert math.isfinite(max(busy[busy == busy]))  # NaN where nothing was measured
    for wrong in ("?points=0", "?points=5000", "?from=5&to=4", "?worker=x", "?from=-1"):
        assert server.ask("GET", f"/api/v1/runs/{run}/profile/steps{wrong}").status == 400
    assert server.ask("GET", f"/api/v1/runs/{run}/profile/steps?worker=9").status == 404


def test_the_view_says_what_is_slow(browser: Browser, run: str) -> None:
    go(browser, run, "view=profile&rank=1")
    says(
        browser,
        "The step waits",
        "a batch that is made in a thread meanwhile would save about",
        "Next: make the next batch in a thread",
    )
    says(
        browser,
        "Where the time went",
        f"{STEPS} TRAIN steps in",
        "Rank 1 takes",
        "2 of 2 ranks recorded phases",
    )
    says(browser, "Machine ", "all that runs on the machine", "What was not seen")
    browser.until(
        "[...document.querySelectorAll('figure li')].some(li => li.innerText.trim() === 'data_wait')"
    )
    colours = (
        "(() => { const c = document.querySelector('.uplot canvas');"
        " const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        " return new Set(new Uint32Array(d.buffer)).size > 8 })()"
    )
    browser.until(colours)
    # Its numbers, and the step under the cursor as text.
    browser.evaluate("document.querySelector('figure details summary').click()")
    browser.until(f"document.querySelectorAll('figure table tbody tr').length === {STEPS}")
    browser.evaluate("location.hash += '&step=100'")
    says(browser, "step 100: ", "checkpoint 4")
    browser.press("ArrowLeft")
    says(browser, "step 99: ")
    browser.evaluate("location.hash += '&of=share'")
    browser.until(r"/step 99: [^\n]*data_wait [5-9]\d %/.test(document.body?.innerText ?? '')")
    picture(browser, "time")
    assert browser.evaluate("window.problems") == []


def test_a_part_of_the_run_has_its_own_table(browser: Browser, run: str) -> None:
    go(browser, run, "view=profile&from=90&to=110")
    says(browser, "21 TRAIN steps in")
    go(browser, run, "view=profile&rank=0")
    says(browser, "160 TRAIN steps in")
    browser.until("document.querySelector('label.row select')?.value === '0'")


def test_it_is_accessible_in_both_themes_and_narrow(browser: Browser, run: str) -> None:
    if not AXE.exists():
        pytest.skip("no axe-core; npm ci in web/")
    go(browser, run, "view=profile&rank=1")
    says(browser, "Where the time went", "Machine ")
    for theme in ("light", "dark"):
        browser.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        time.sleep(0.2)
        assert barriers(browser) == [], theme
    browser.resize(320, 800)
    try:
        browser.until("document.documentElement.scrollWidth <= 320")
        picture(browser, "time-narrow")
    finally:
        browser.resize(1400, 1000)


def test_a_file_has_the_view_without_a_server(browser: Browser, server: Server, root: Path) -> None:
    out = root / "report.html"
    done = subprocess.run(
        [executable(), "report", str(root / "ranks"), "-o", str(out)], capture_output=True, text=True
    )
    skip_without_page(done.stderr)
    assert done.returncode == 0, done.stderr
    held = Report(out.read_text())
    assert held.json("profile")["steps"] == STEPS
    browser.open("about:blank")
    browser.open(f"{out.as_uri()}#/?view=profile")
    says(browser, "Where the time went", f"{STEPS} TRAIN steps in", "Rank 1 takes")
    browser.until("document.querySelector('.uplot canvas') !== null")
    assert browser.evaluate("window.problems") == []
    browser.open("about:blank")
    browser.open(server.base)
    browser.until("document.querySelectorAll('tbody tr').length >= 1")


def test_a_live_run_is_followed(browser: Browser, server: Server, root: Path) -> None:
    process = train(root, "live", None, "hold")
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        end = time.monotonic() + LIMIT_S
        found: list[str] = []
        while not found and time.monotonic() < end:
            found = [one["id"] for one in server.get("/api/v1/runs")["runs"] if one["place"] == "live"]
        go(browser, found[0], "view=profile")
        says(browser, "Where the time went")
        count = "Number(/([\\d,]+) TRAIN steps in/.exec(document.body.innerText)?.[1].replace(',', '') ?? 0)"
        first = browser.until(count)
        browser.until(f"{count} > {first}")
    finally:
        process.kill()
        process.communicate()
