"""`luff report` in a real browser, opened as a file: it shows the run, asks for nothing, and says what is not there.

LUFF_SCREENSHOTS names a folder for pictures.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import Browser
from tests.browser import executable as browser_executable
from tests.cli.hostile import make_run
from tests.report import Report, skip_without_page

from .conftest import AXE, WATCH, barriers, executable, record

VIEWS = ("", "curves", "tensors", "heat", "findings", "model", "profile", "step", "data", "info")
WATCH_CONSOLE = (
    WATCH + 'for (const name of ["error", "warn"]) console[name] = (...all) => problems.push(all.join(" "));'
)
#: What the page has loaded from anywhere, its own text aside.
REQUESTS = (
    "performance.getEntriesByType('resource').map(r => r.name).filter(name => !name.startsWith('data:'))"
)


def luff(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [executable(), *map(str, words)], capture_output=True, text=True, timeout=120, check=False
    )


def report(run: Path, out: Path, *more: object) -> Report:
    """Writes a report; returns what is in it."""
    done = luff("report", run, "-o", out, *more)
    skip_without_page(done.stderr)
    assert done.returncode == 0, done.stderr
    return Report(out.read_text())


def judged(run: Path, steps: int = 60) -> Path:
    """Makes a run whose weight becomes NaN, with the findings of the rules in it."""
    record(run, steps)
    found = luff("check", run, "--json").stdout
    (run / "rules" / "luff").mkdir(parents=True)
    (run / "rules" / "luff" / "findings.jsonl").write_text(found)
    marked = luff("mark", run, json.loads(found.splitlines()[0])["id"], "acknowledge")
    assert marked.returncode == 0, marked.stderr
    return run


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of a run that was judged."""
    folder = tmp_path_factory.mktemp("report")
    report(judged(folder / "run"), folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser_executable()
    with contextlib.closing(Browser(tmp_path_factory.mktemp("profile"))) as opened:
        opened.before_each_page(WATCH_CONSOLE)
        yield opened


def shows(browser: Browser, text: str) -> None:
    browser.until(f"(document.body?.innerText ?? '').includes({json.dumps(text)})")


def open_at(browser: Browser, page: Path, values: str = "") -> None:
    browser.open("about:blank")
    browser.open(f"{page.as_uri()}{f'#/?{values}' if values else ''}")
    browser.until("document.querySelector('main h1') !== null")


def test_every_view_is_drawn_from_the_file_alone(browser: Browser, page: Path) -> None:
    shots = os.environ.get("LUFF_SCREENSHOTS")
    open_at(browser, page)
    shows(browser, "NonFinite: weights are NaN")
    shows(browser, "report")
    expected = {
        "": "block.1.weight, since TRAIN step", "curves": "TRAIN, every value", "heat": "not recorded",
        "findings": "Likely causes", "step": "TRAIN step 59", "info": "numpy",
        "tensors": "block.0.weight", "model": "recorded tensors", "profile": "Longest pauses",
        "data": "the finest values that this file holds",
    }  # fmt: skip
    for view in VIEWS:
        browser.evaluate(f"location.hash = '#/?view={view}'")
        shows(browser, expected[view])
        if view in ("", "curves", "findings"):
            browser.until("document.querySelector('.uplot canvas') !== null")
        if view == "heat":
            drawn = (
                "(() => { const c = document.querySelector('canvas'); if (c.height <= 20) return false;"
                " const { data } = c.getContext('2d').getImageData(0, 0, c.width, c.height);"
                " return new Set(new Uint32Array(data.buffer)).size > 3 })()"
            )
            browser.until(drawn)
        if shots:
            time.sleep(0.5)
            browser.screenshot(Path(shots) / f"report-{view or 'verdict'}.png")
    assert browser.evaluate("window.problems") == []
    assert browser.evaluate(REQUESTS) == []
    shown = browser.evaluate("document.body.innerText")
    assert "connecting" not in shown
    assert "Runs" not in shown.splitlines()
    assert "Actions" not in shown.splitlines()  # nothing was asked of the job
    assert "Compare" not in shown.splitlines()  # there is one run
    for where in ("view=compare", "view=actions", "view=log"):
        browser.evaluate(f"location.hash = '#/?{where}'")
        shows(browser, "There is no view “")
    browser.evaluate("location.hash = '#/?view=samples'")
    shows(browser, "This run holds no rows")
    for word in ("compare", "runs", "actions", "log"):  # by its name neither
        browser.evaluate(
            "dispatchEvent(new KeyboardEvent('keydown', { key: 'k', ctrlKey: true, cancelable: true }))"
        )
        browser.until("document.activeElement?.getAttribute('role') === 'combobox'")
        for letter in word:
            browser.press(letter)
        found = browser.evaluate(
            "[...document.querySelectorAll('[role=option] .mono')].map(o => o.textContent)"
        )
        assert word.capitalize() not in found
        browser.press("Escape")
        browser.evaluate("document.querySelector('dialog')?.close()")
        browser.until("document.querySelector('dialog') === null")
    browser.press("?")
    shows(browser, "next and previous finding")
    assert "g r runs" not in browser.evaluate("document.body.innerText")
    browser.press("?")
    browser.evaluate("location.hash = '#/?view=findings'")
    shows(browser, "Likely causes")
    shows(browser, "acknowledged by")
    assert "Reopen" not in browser.evaluate("document.body.innerText")


def test_its_policy_allows_only_what_is_in_it(browser: Browser, page: Path) -> None:
    html = page.read_text()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', html)
    assert policy
    assert "default-src 'none'; script-src 'sha256-" in policy[1]
    assert "unsafe" not in policy[1]
    assert not re.search(r'(?:src|href)="(?!data:)', html.split('<script type="module">')[0])
    open_at(browser, page)
    browser.evaluate(
        "document.body.append(Object.assign(document.createElement('img'), {src: 'https://luff.invalid/x'})); 0"
    )
    browser.until("window.problems.some(p => p.startsWith('img-src https://luff.invalid'))")
    browser.evaluate("fetch('https://luff.invalid/').catch(() => 0)")
    browser.until("window.problems.some(p => p.startsWith('connect-src'))")


def test_names_are_text_and_steer_nothing(browser: Browser, tmp_path: Path) -> None:
    """The attacker's run of tests/cli: its findings, outcome and tensors are all hostile."""
    report(make_run(tmp_path / "run"), tmp_path / "hostile.html")
    for view in VIEWS:
        open_at(browser, tmp_path / "hostile.html", f"view={view}")
        time.sleep(0.4)
        shown = browser.evaluate("document.body.innerText + document.title")
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]", shown), (
            view
        )
        assert browser.evaluate("document.querySelectorAll('main img, main script').length") == 0
        assert browser.evaluate("window.problems") == [], view
    open_at(browser, tmp_path / "hostile.html", "view=findings")
    shows(browser, "<script>alert(1)</script>")
    shows(browser, "bidi\\xe2\\x80\\xaetxt")


def test_zooms_are_exact_and_the_keyboard_works(browser: Browser, page: Path) -> None:
    loss = Report(page.read_text()).json("")["losses"][0]["tensor"]
    open_at(browser, page, f"view=curves&t={loss}&from=10&to=12")
    shows(browser, "every value; newest 0.07692")
    open_at(browser, page, "step=40")
    shows(browser, "step 40")
    browser.press("ArrowLeft")
    browser.until("location.hash.includes('step=39')")
    browser.press("g")
    browser.press("h")
    browser.until("location.hash.includes('view=heat')")
    browser.press("g")
    browser.press("r")  # there are no other runs
    time.sleep(0.3)
    assert browser.evaluate("document.querySelector('h1').textContent") == "run"


def test_what_did_not_fit_is_said(browser: Browser, tmp_path: Path) -> None:
    run = judged(tmp_path / "run", 3000)
    all_of_it = report(run, tmp_path / "all.html")
    assert len(all_of_it.html) < 3_000_000
    too_small = luff("report", run, "-o", tmp_path / "none.html", "--max-bytes", "1kb")
    assert too_small.returncode == 2
    assert "--max-bytes" in too_small.stderr
    assert not (tmp_path / "none.html").exists()
    least = int(re.findall(r"the page alone has (\d+) bytes", too_small.stderr)[0])
    small = report(run, tmp_path / "small.html", "--max-bytes", least + 40_000)
    assert least < (tmp_path / "small.html").stat().st_size <= least + 40_000
    assert small.index["left_out"]
    missing = next(step for step in range(3000) if step not in small.index["steps"])
    open_at(browser, tmp_path / "small.html", f"view=step&step={missing}")
    shows(browser, "are not in this file")
    shows(browser, "luff serve")
    browser.until("[...document.querySelectorAll('button')].some(b => /^step \\d/.test(b.textContent))")
    browser.evaluate(
        "[...document.querySelectorAll('button')].find(b => /^step \\d/.test(b.textContent)).click()"
    )
    shows(browser, "TRAIN step")
    browser.evaluate("location.hash = '#/?view='")
    shows(browser, "Not in this file")
    shows(browser, "NonFinite: weights are NaN")  # what matters most is there
    assert browser.evaluate("window.problems") == []


def test_a_run_without_steps_and_a_damaged_file(browser: Browser, tmp_path: Path) -> None:
    record(tmp_path / "run", 0)
    report(tmp_path / "run", tmp_path / "empty.html")
    for view in VIEWS:
        open_at(browser, tmp_path / "empty.html", f"view={view}")
        time.sleep(0.2)
        assert browser.evaluate("window.problems") == [], view
    html = (tmp_path / "empty.html").read_text()
    start = html.index('id="luff-index">') + 16
    (tmp_path / "damaged.html").write_text(html[:start] + "AAAA" + html[start + 4 :])
    browser.open((tmp_path / "damaged.html").as_uri())
    shows(browser, "The block index of the file is damaged")


def test_both_themes_are_accessible_and_narrow_screens_scroll_nothing(browser: Browser, page: Path) -> None:
    if not AXE.exists():
        pytest.skip("no axe-core; npm ci in web/")
    open_at(browser, page)
    for theme in ("light", "dark"):
        for view in VIEWS:
            browser.evaluate(f"location.hash = '#/?view={view}'")
            browser.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
            time.sleep(0.4)
            assert barriers(browser) == [], f"{theme} {view}"
    browser.resize(320, 800)
    try:
        for view in VIEWS:
            open_at(browser, page, f"view={view}")
            time.sleep(0.4)
            browser.until("document.documentElement.scrollWidth <= 320")
    finally:
        browser.resize(1400, 1000)
