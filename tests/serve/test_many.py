"""Many runs and samples in a real browser: the list, labels, comparison, samples and the confusion matrix."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import Browser
from tests.browser import executable as browser_executable

from .conftest import AXE, LIMIT_S, WATCH, Server, barriers, executable, record
from .test_page import fill, press

torch = pytest.importorskip("torch")

#: Three classes of small images; one class is never told right.
_TRAINING = """
import sys
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[1].split("=")[1]))
loss_fn = torch.nn.CrossEntropyLoss()
generator = torch.Generator().manual_seed(1)
for step in range(24):
    labels = torch.randint(0, 3, (16,), generator=generator)
    images = torch.randn(16, 1, 8, 8, generator=generator) * 0.1
    images[labels == 1, 0, :4] += 1
    optimizer.zero_grad()
    loss_fn(model(images), labels).backward()
    optimizer.step()
"""
#: What the view tells people to write.
_LINE = 'capture.collections = [{name = "samples", roles = ["sample"], save = {save_interval = 10}}]'


def job(folder: Path, name: str, *options: str) -> Path:
    """Trains under `luff run`; returns the run."""
    script = folder / "train.py"
    script.write_text(_TRAINING)
    run = folder / "runs" / name
    train = [sys.executable, str(script), f"--lr={0.1 if name == 'low' else 0.5}"]
    done = subprocess.run(
        [executable(), "run", "--run", str(run), *options, "--", *train],
        cwd=folder, capture_output=True, text=True, timeout=2 * LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return run


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    browser_executable()
    folder = tmp_path_factory.mktemp("many")
    (folder / "luff.toml").write_text(f"rules = []\n{_LINE}\n")
    job(folder, "low", "--config", "luff.toml", "--tag", "sweep")
    job(folder, "high", "--config", "luff.toml", "--tag", "sweep", "--tag", "<i>")
    record(folder / "runs/other")
    started = Server(folder, folder / "runs")
    try:
        started.require_page()
        yield started
    finally:
        started.end()


@pytest.fixture(scope="module")
def ids(server: Server) -> dict[str, str]:
    return {run["name"]: run["id"] for run in server.get("/api/v1/runs?brief=1")["runs"]}


@pytest.fixture(scope="module")
def browser(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with contextlib.closing(Browser(tmp_path_factory.mktemp("profile"))) as opened:
        opened.before_each_page(WATCH)
        opened.open(server.link)
        opened.until("document.querySelectorAll('tbody tr').length === 3")
        yield opened


def go(browser: Browser, hash_: str) -> None:
    browser.evaluate(f"location.hash = {json.dumps(hash_)}")


def says(browser: Browser, text: str) -> None:
    browser.until(f"(document.body?.innerText ?? '').includes({json.dumps(text)})")


def shot(browser: Browser, name: str) -> None:
    if folder := os.environ.get("LUFF_SCREENSHOTS"):
        time.sleep(0.5)
        browser.screenshot(Path(folder) / f"{name}.png")


def test_runs_are_grouped_filtered_and_kept_as_a_view(browser: Browser) -> None:
    go(browser, "#/?group=tag&cols=lr&sort=name")
    browser.until("document.querySelectorAll('tr.group').length === 3")  # <i>, sweep, none; one run is in two
    browser.until("[...document.querySelectorAll('td.field')].some(cell => cell.textContent === '0.1')")
    assert browser.evaluate("document.querySelectorAll('main i').length") == 0
    press(browser, "▾ tag = sweep")
    browser.until("document.querySelectorAll('tbody tr:not(.group)').length === 2")
    fill(browser, "input[aria-label='Name of this view']", "by tag")
    press(browser, "Keep")
    shot(browser, "runs-grouped")
    go(browser, "#/?where=parameter.lr+%3E+0.2")
    says(browser, "1 of 3 runs")
    browser.evaluate(
        "{ const view = [...document.querySelectorAll('select')].at(-1); view.value = 'by tag';"
        "view.dispatchEvent(new Event('change', {bubbles: true})); }"
    )
    browser.until("location.hash.includes('group=tag') && !location.hash.includes('where')")
    go(browser, "#/?where=los+%3C+3")
    says(browser, "nearest")
    assert browser.evaluate("window.problems") == []


def test_the_keyboard_chooses_and_compares(browser: Browser) -> None:
    go(browser, "#/?sort=name")
    browser.until("document.querySelectorAll('tbody tr').length === 3")
    for key in ("j", " ", "j", " "):
        browser.press(key)
        time.sleep(0.15)
    says(browser, "2 runs chosen")
    browser.press("c")
    browser.until("location.hash.includes('view=compare')")
    says(browser, "Where they part")


def test_labels_are_written_from_the_page(browser: Browser, server: Server, ids: dict[str, str]) -> None:
    go(browser, "#/?sort=name")
    browser.until("document.querySelectorAll('tbody tr').length === 3")
    browser.evaluate("[...document.querySelectorAll('button.edit')].at(-1).click()")
    fill(browser, "form[aria-label] input.mono", "good new")
    fill(browser, "form[aria-label] label:nth-of-type(2) input", "<b>mine</b>")
    fill(browser, "textarea", "why not")
    press(browser, "Save")
    says(browser, "<b>mine</b>")
    label = server.get(f"/api/v1/runs/{ids['other']}/labels")
    assert label["tags"] == ["good", "new"]
    assert label["note"] == "why not"
    assert "luff serve" in label["changes"][0]["author"]
    assert browser.evaluate("document.querySelectorAll('main b').length") == 0
    assert browser.evaluate("window.problems") == []


def test_two_runs_are_compared(browser: Browser, ids: dict[str, str]) -> None:
    go(browser, f"#/?view=compare&runs={ids['low']},{ids['high']}")
    says(browser, "high against low")
    says(browser, "SGD.group0.lr")
    browser.until("document.querySelector('.uplot canvas') !== null")
    browser.until("document.querySelector('canvas[role=img]')?.height > 20")
    says(browser, "Gasser")
    shot(browser, "compare")
    go(browser, f"#/?view=compare&runs={ids['low']},{ids['other']}")
    says(browser, "no tensor in common")
    go(browser, f"#/?view=compare&runs={ids['low']}")
    says(browser, "Choose 2 to 8 runs")
    assert browser.evaluate("window.problems") == []


def test_samples_are_shown_by_loss_and_cells_open_theirs(browser: Browser, ids: dict[str, str]) -> None:
    go(browser, f"#/run/{ids['low']}?view=samples")
    says(browser, "Samples of step 20")
    browser.until("document.querySelectorAll('li canvas').length === 16")
    losses = browser.evaluate(
        "[...document.querySelectorAll('li strong')].map(node => parseFloat(node.textContent.slice(5)))"
    )
    assert losses == sorted(losses, reverse=True)
    press(browser, "← earlier")
    says(browser, "Samples of step 10")
    says(browser, "Confusion matrix")
    browser.until("document.querySelector('td.number button') !== null")
    shot(browser, "samples")
    browser.evaluate("document.querySelector('td.number button').click()")
    browser.until("[...document.querySelectorAll('h3')].some(node => node.textContent.startsWith('Is '))")
    browser.until("document.querySelectorAll('section li canvas').length > 0")
    assert browser.evaluate("window.problems") == []


def test_samples_and_comparisons_need_no_mouse(browser: Browser, ids: dict[str, str]) -> None:
    go(browser, f"#/run/{ids['low']}?view=samples&step=20")
    says(browser, "Samples of step 20")
    browser.tab_to("e.textContent === '← earlier'")
    browser.press("Enter")
    says(browser, "Samples of step 10")
    browser.tab_to("e.closest('td') !== null")
    browser.press("Enter")
    browser.until("[...document.querySelectorAll('h3')].some(node => node.textContent.startsWith('Is '))")
    go(browser, f"#/?view=compare&runs={ids['low']},{ids['high']}")
    browser.until("document.querySelector('canvas[role=img]') !== null")
    browser.tab_to("e.textContent.startsWith('Hide ')")
    drawn = browser.evaluate("document.querySelectorAll('figure').length")
    browser.press("Enter")
    browser.until(f"document.querySelectorAll('figure').length < {drawn}")
    browser.tab_to("e.textContent === 'compare with this'")
    browser.press("Enter")
    browser.until(f"location.hash.includes('runs={ids['high']}')")
    assert browser.evaluate("window.problems") == []


def test_what_was_not_sampled_shows_the_line_that_records_it(browser: Browser, ids: dict[str, str]) -> None:
    go(browser, f"#/run/{ids['other']}?view=samples")
    browser.until("document.querySelector('pre') !== null")
    assert browser.evaluate("document.querySelector('pre').textContent") == _LINE  # `server` has used it


def test_they_are_accessible_and_narrow(browser: Browser, ids: dict[str, str]) -> None:
    views = {
        "#/?group=tag&cols=lr": "document.querySelector('tr.group') !== null",
        f"#/?view=compare&runs={ids['low']},{ids['high']}": "document.querySelector('canvas[role=img]') !== null",
        f"#/run/{ids['low']}?view=samples": "document.querySelector('li canvas') !== null",
    }
    for hash_, there in views.items():
        go(browser, hash_)
        browser.until(there)
        browser.resize(320, 800)
        browser.until("document.documentElement.scrollWidth <= 320")
        shot(browser, f"narrow-{list(views).index(hash_)}")
        browser.resize(1400, 1000)
        for theme in ("light", "dark"):
            browser.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
            time.sleep(0.4)
            shot(browser, f"{theme}-{list(views).index(hash_)}")
            if not AXE.exists():
                continue
            assert barriers(browser) == [], f"{theme} {hash_}"
