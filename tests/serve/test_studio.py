"""One job from its start to the mailed file, as a person goes through it in a browser."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import luff as package
import pytest

from tests.browser import Browser
from tests.browser import executable as browser_executable

from .conftest import LIMIT_S, WATCH, executable
from .test_page import fill, press

_JOB = """
import time

import torch

torch.manual_seed(0)
x = torch.rand(64, 64)
y = (x.mean(1) * 1000).long() % 4
model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100_000):
    if step == 60:
        optimizer.param_groups[0]["lr"] = 50.0
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(f"at step {step}", flush=True)
    time.sleep(0.01)
"""
TEXT = "(document.body?.innerText ?? '')"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    browser_executable()
    with contextlib.closing(Browser(tmp_path / "profile")) as opened:
        opened.before_each_page(WATCH)
        yield opened


def says(browser: Browser, *texts: str) -> None:
    for text in texts:
        browser.until(f"{TEXT}.includes({json.dumps(text)})")


def view(browser: Browser, key: str) -> None:
    """Goes to a view by its keys."""
    browser.press("g")
    browser.press(key)


def test_from_the_link_to_the_mailed_file(browser: Browser, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(_JOB)
    run = tmp_path / "home/runs/night"
    command = [executable(), "run", "--serve", "--log", "--run", str(run), "--", sys.executable, "train.py"]
    job = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"LUFF_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        assert job.stderr is not None
        link = job.stderr.readline().split("browser: ")[1].strip()
        browser.open(link)
        # The link leads to the run by itself: verdict, losses, what is unusual, all tensors as one map.
        says(browser, "LossSpike: ", "CrossEntropyLoss_output_0", "Unusual at step", "All tensors")
        browser.until("document.querySelector('.uplot canvas') !== null")
        browser.until("document.querySelector('.map canvas')?.height > 20")
        # From the finding to what follows from it.
        view(browser, "f")
        says(browser, "When, and what follows from what", "Follows from it", "ExplodingTensor")
        browser.evaluate("document.querySelector('article header button').click()")
        onset = int(browser.until("/step=(\\d+)/.exec(location.hash)?.[1]"))
        assert 55 <= onset <= 70
        # One cursor: every view is at that step.
        step = f"step {onset}"
        view(browser, "s")
        says(browser, f"Step {onset}", f"TRAIN {step}")
        view(browser, "t")
        says(browser, f"norm or value at {step}")
        view(browser, "x")
        says(browser, "Samples of step ")
        view(browser, "l")
        browser.until("document.querySelector('.line.here')?.innerText.includes('at step')")
        view(browser, "p")
        browser.until("document.querySelector('svg line.cursor') !== null")
        view(browser, "v")
        says(browser, f"Unusual at {step}")
        browser.press("ArrowRight")
        says(browser, f"Unusual at step {onset + 1}")
        # More of one layer, for 200 steps.
        view(browser, "a")
        fill(browser, "form input", r"^Sequential_0\.weight$")
        press(browser, "Record…")
        press(browser, "Yes, record it")
        says(browser, r"record more: ^Sequential_0\.weight$ as raw, histogram, for 200 steps")
        browser.until(r"/accepted by all ranks\s+→ ✓ done/.test(document.body.innerText)")
        # The end, of all ranks after the same step.
        press(browser, "Stop…")
        press(browser, "Yes, stop it")
        says(browser, "nothing can be asked of it any more")
        assert browser.evaluate("window.problems") == []
        _, said = job.communicate(timeout=LIMIT_S)
        assert job.returncode == 76, said
    finally:
        job.kill()
        job.communicate()
    with package.open_trial(run) as trial:
        steps = trial.tensor("Sequential_0.weight").value_steps("TRAIN")
        assert steps
        assert steps[-1] - steps[0] < 200
    # The same as one file, without network.
    file = tmp_path / "night.html"
    subprocess.run([executable(), "report", str(run), "-o", str(file)], check=True, capture_output=True)
    browser.open("about:blank")
    browser.open(file.as_uri())
    says(browser, "LossSpike: ", "All tensors", "report")
    browser.until("document.querySelector('.map canvas')?.height > 20")
    view(browser, "f")
    says(browser, "Follows from it")
    view(browser, "x")
    says(browser, "Samples of step ", "in this file", "Confusion matrix")
    browser.evaluate("document.querySelector('td button').click()")
    says(browser, "predicted ")
    view(browser, "a")
    says(browser, "A report shows what was asked of the job.", "record more")
    assert browser.evaluate("document.querySelectorAll('main form').length") == 0
    assert browser.evaluate("window.problems") == []
