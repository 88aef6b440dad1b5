"""Steps of a run that also evaluates have the names that commands take, on the page and in a report."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import luff
import luff.numpy
import numpy as np
import pytest
from luff.config import Collection, SaveConfig

from tests.browser import Browser
from tests.browser import executable as browser_executable

from .conftest import WATCH, Server, executable, numbers

#: Ten TRAIN steps, then four of an evaluation, three times.
ROUNDS, TRAINS, EVALS = 3, 10, 4


def record(path: Path) -> None:
    weight = np.arange(1, 9, dtype=np.float32)
    every = Collection("every", include=r"^gradient/", save_config=SaveConfig(save_interval=1))
    hook = luff.numpy.attach({"net.weight": weight}, run=path, collections=[every])
    for _ in range(ROUNDS):
        for i in range(TRAINS):
            with hook.step() as step:
                step.loss(1 / (i + 1))
                step.gradients({"net.weight": weight * (i + 1)})
        for i in range(EVALS):
            with hook.step("EVAL") as step:
                step.loss(2 / (i + 1))
    hook.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("steps")
    record(folder / "runs/mixed")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    started = Server(folder / "home", folder / "runs")
    yield started
    started.end()


@pytest.fixture
def browser(server: Server, tmp_path: Path) -> Iterator[Browser]:
    browser_executable()
    server.require_page()
    with contextlib.closing(Browser(tmp_path / "profile")) as opened:
        opened.before_each_page(WATCH)
        yield opened
        assert opened.evaluate("window.problems") == []


def says(browser: Browser, *texts: str) -> None:
    for text in texts:
        browser.until(f"(document.body?.innerText ?? '').includes({json.dumps(text)})")


def first_run(server: Server) -> str:
    return str(server.get("/api/v1/runs")["runs"][0]["id"])


def test_spans_are_those_of_the_run(server: Server, folder: Path) -> None:
    spans = numbers(server.ask("GET", f"/api/v1/runs/{first_run(server)}/spans").body)
    assert list(spans["first"]) == [0, 10, 14, 24, 28, 38]
    assert list(spans["mode_step"]) == [0, 0, 10, 4, 20, 8]
    assert list(spans["count"]) == [10, 4] * 3
    with luff.open_trial(folder / "runs/mixed") as trial:
        assert len(trial.steps("TRAIN")) == ROUNDS * TRAINS


def test_norms_of_all_gradients_are_those_of_numpy(server: Server) -> None:
    norms = numbers(server.ask("GET", f"/api/v1/runs/{first_run(server)}/norms").body)
    of_step = {step: norms["gradient.lo"][i] for i, step in enumerate(norms["step"])}
    whole = float(np.linalg.norm(np.arange(1, 9, dtype=np.float32)))
    assert of_step[2] == pytest.approx(3 * whole, rel=1e-6)
    assert of_step[14] == pytest.approx(whole, rel=1e-6)  # TRAIN step 10
    assert np.isnan(of_step[12])  # of the evaluation


def test_the_page_names_steps_as_commands_do(server: Server, browser: Browser) -> None:
    run = first_run(server)
    browser.open(server.link)
    browser.until("document.querySelectorAll('tbody tr').length === 1")
    browser.evaluate(f"location.hash = '#/run/{run}?step=16'")
    says(browser, "Unusual at TRAIN step 12", "to EVAL step 11", "norm of all gradients")
    assert "TRAIN 30 · EVAL 12" in browser.evaluate("document.body.innerText")
    browser.evaluate(f"location.hash = '#/run/{run}?step=25&view=step'")
    says(browser, "EVAL step 5", "step 25 of all modes (global step)")
    # Who types a step means one of TRAIN, as in a command.
    for typed, step in (("12", 16), ("eval 5", 25)):
        browser.evaluate(
            "dispatchEvent(new KeyboardEvent('keydown', { key: 'k', ctrlKey: true, cancelable: true }))"
        )
        browser.until("document.activeElement?.getAttribute('role') === 'combobox'")
        for letter in typed:
            browser.press(letter)
        browser.until(
            "document.querySelector('[role=option][aria-selected=true]')?.innerText.includes('step')"
        )
        browser.press("Enter")
        browser.until("document.querySelector('dialog') === null")
        browser.until(f"location.hash.includes('step={step}&') || location.hash.endsWith('step={step}')")
    # Tables say both.
    browser.evaluate(f"location.hash = '#/run/{run}?view=curves'")
    browser.until("document.querySelector('figure details summary') !== null")
    browser.evaluate("document.querySelector('figure details summary').click()")
    says(browser, "step of the mode", "global step")


def test_a_report_does_too(folder: Path, browser: Browser) -> None:
    file = folder / "mixed.html"
    command = [executable(), "report", str(folder / "runs/mixed"), "-o", str(file)]
    subprocess.run(command, check=True, capture_output=True)
    browser.open(f"{file.as_uri()}#/?step=16")
    says(browser, "TRAIN step 12", "norm of all gradients", "report")
