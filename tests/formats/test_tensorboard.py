"""TensorBoard itself shows what Luff writes: its server returns the values of the run, and its page, in a real
browser, draws scalars, histograms and distributions. LUFF_SCREENSHOTS names a folder for screenshots of the page.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import luff as library
import numpy as np
import pytest

from tests.browser import Browser, executable

from .conftest import Command

LIMIT_S = 60
STEPS = 30

# A script that does not mention Luff.
SCRIPT = f"""
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loss_fn = torch.nn.MSELoss()
for _ in range({STEPS}):
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    loss_fn(model(x), x[:, :1]).backward()
    optimizer.step()
"""
CONFIG = """
[[capture.collections]]
name = "weights"
forms = ["summary", "raw", "histogram"]
save = {save_interval = 1}
""" + "".join(  # the page draws the first cards only: the default values of step 0 are left out
    f'[[capture.collections]]\nname = "{name}"\nsave = {{start_step = 1000000}}\n'
    for name in ("inputs", "outputs", "labels")
)

# Collects all text of the page, including shadow trees, and counts the charts of each kind.
DRAWN = """(() => {
  const found = {text: [], histograms: 0, areas: 0, lines: 0};
  const walk = (node) => {
    if (node.nodeType === 3 && node.textContent.trim()) found.text.push(node.textContent.trim());
    if (node.nodeName === 'STYLE' || node.nodeName === 'SCRIPT') return;
    if (node.matches?.('.stage .histogram path, .histogram path')) found.histograms += 1;
    if (node.matches?.('path.area')) found.areas += 1;
    if (node.matches?.('line-chart')) found.lines += 1;
    if (node.shadowRoot) walk(node.shadowRoot);
    node.childNodes.forEach(walk);
  };
  if (document.body) walk(document.body);
  return found;
})()"""


class TensorBoard:
    """A server on this machine, for one directory."""

    def __init__(self, logdir: Path) -> None:
        pytest.importorskip("tensorboard")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir), "--host", "127.0.0.1",
             "--port", "0", "--load_fast=false", "--reload_interval=1"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stderr is not None
        told = []
        for line in self._process.stderr:
            told.append(line)
            found = re.search(r"http://127\.0\.0\.1:\d+/", line)
            if found:
                self.url = found[0]
                return
        raise AssertionError("".join(told))

    def close(self) -> None:
        self._process.terminate()
        self._process.communicate(timeout=LIMIT_S)

    def get(self, path: str, **query: str) -> Any:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        url = f"{self.url}data/{path}?{urllib.parse.urlencode(query)}"
        with opener.open(url, timeout=LIMIT_S) as answer:
            return json.loads(answer.read())

    def until(self, what: Callable[[], Any]) -> Any:
        """Calls a function until its result is true: the server loads in a thread of its own."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            found = what()
            if found:
                return found
            time.sleep(0.1)
        raise AssertionError("TensorBoard never showed it")


@pytest.fixture
def tensorboard() -> Iterator[Callable[[Path], TensorBoard]]:
    started = []

    def start(logdir: Path) -> TensorBoard:
        started.append(TensorBoard(logdir))
        return started[-1]

    yield start
    for board in started:
        board.close()


def check_values(board: TensorBoard, run: Path, loss: str, weight: str) -> None:
    """Checks that the server returns the loss and weight that the run contains."""
    trial = library.open_trial(run)
    expected = trial.scalars(loss, "TRAIN")
    last = int(expected["step"][-1])

    def loaded() -> bool:
        tags = board.get("plugin/scalars/tags")
        if f"l2/{weight}" not in tags.get("train", {}):
            return False
        rows = board.get("plugin/scalars/scalars", run="train", tag=f"l2/{weight}")
        return bool(rows and rows[-1][1] == last)

    board.until(loaded)
    rows = board.get("plugin/scalars/scalars", run="train", tag=loss)
    assert [row[1] for row in rows] == expected["step"].tolist()
    assert [row[2] for row in rows] == np.float32(expected["value"]).tolist()
    columns = trial.tensor(weight).summaries("TRAIN")
    for statistic in ("mean", "std", "l2"):
        rows = board.get("plugin/scalars/scalars", run="train", tag=f"{statistic}/{weight}")
        assert [row[2] for row in rows] == np.float32(columns[statistic]).tolist()

    assert weight in board.get("plugin/histograms/tags")["train"]
    histograms = board.get("plugin/histograms/histograms", run="train", tag=weight)
    assert [row[1] for row in histograms] == columns["step"].tolist()
    assert weight in board.get("plugin/distributions/tags")["train"]
    distributions = board.get("plugin/distributions/distributions", run="train", tag=weight)
    assert [row[1] for row in distributions] == columns["step"].tolist()
    for (_, step, buckets), (_, _, points) in zip(histograms, distributions, strict=True):
        value = np.asarray(trial.tensor(weight).value(step))
        assert sum(count for _, _, count in buckets) == pytest.approx(value.size)
        assert buckets[0][0] == pytest.approx(value.min(), rel=1e-6)
        assert buckets[-1][1] == pytest.approx(value.max(), rel=1e-6)
        # The points are the shares of a normal distribution, from the smallest value to the largest.
        shares = [share for share, _ in points]
        assert shares == [0, 668, 1587, 3085, 5000, 6915, 8413, 9332, 10000]
        places = [place for _, place in points]
        assert places == sorted(places)
        assert places[0] >= value.min() - 1e-6
        assert places[-1] <= value.max() + 1e-6
        # A bucket spans at most an eighth of a power of two, and TensorBoard interpolates between values.
        inside = np.sort(value.ravel())
        middle = next(place for share, place in points if share == 5000)
        assert inside[value.size // 2 - 1] - 0.1 <= middle <= inside[value.size // 2] + 0.1


def check_page(board: TensorBoard, run: Path, loss: str, weight: str, tmp_path: Path) -> None:
    """Checks the page in a browser: the loss's last values as a table, and both kinds of charts of the weight."""
    trial = library.open_trial(run)
    shots = Path(os.environ.get("LUFF_SCREENSHOTS", tmp_path))
    shots.mkdir(parents=True, exist_ok=True)
    modes = [mode for mode in ("TRAIN", "EVAL") if trial.steps(mode)]
    with contextlib.closing(Browser(tmp_path / "profile")) as browser:
        browser.open(f"{board.url}#timeseries")
        wanted = [f"{trial.scalars(loss, mode)['value'][-1]:.4f}" for mode in modes]
        shown = browser.until(
            f"(() => {{ const found = {DRAWN}; const text = found.text.join(' ');"
            f"return {json.dumps([loss, weight, *wanted])}.every((t) => text.includes(t)) && found }})()"
        )
        assert shown["lines"] >= 1
        assert {"train", "eval"} & set(shown["text"]) == {mode.lower() for mode in modes}
        browser.screenshot(shots / "timeseries.png")
        steps = len(trial.tensor(weight).steps("TRAIN"))
        for page, kind, least in (("histograms", "histograms", steps), ("distributions", "areas", 3)):
            browser.open("about:blank")
            browser.open(f"{board.url}#{page}")
            shown = browser.until(
                f"(() => {{ const found = {DRAWN}; return found.{kind} >= {least} && found }})()"
            )
            assert weight in shown["text"]
            assert "train" in shown["text"]
            browser.screenshot(shots / f"{page}.png")


def test_tensorboard_shows_an_export(
    luff: Command, run: Path, tmp_path: Path, tensorboard: Callable[[Path], TensorBoard]
) -> None:
    loss, weight = "MSELoss_output_0", "Sequential_0.weight"
    assert luff("export", run, tmp_path / "tb", "--to", "tensorboard").code == 0
    board = tensorboard(tmp_path / "tb")
    check_values(board, run, loss, weight)
    assert sorted(board.get("runs")) == ["eval", "train"]
    executable()
    check_page(board, run, loss, weight, tmp_path)


def test_tensorboard_shows_a_training_that_runs(
    luff: Command, tmp_path: Path, tensorboard: Callable[[Path], TensorBoard]
) -> None:
    """TensorBoard starts before the training and follows what `luff run --tensorboard` writes."""
    script, config = tmp_path / "train.py", tmp_path / "luff.toml"
    script.write_text(SCRIPT)
    config.write_text(CONFIG)
    live, run = tmp_path / "live", tmp_path / "run"
    live.mkdir()
    board = tensorboard(live)
    assert board.get("runs") == []
    done = luff(
        "run", "--run", run, "--config", config, "--tensorboard", live, "--", sys.executable, script
    )  # fmt: skip
    assert done.code == 0, done.err
    trial = library.open_trial(run)
    loss = next(name for name in trial.tensors(collection="losses") if "output" in name)
    weight = next(name for name in trial.tensors(collection="weights"))
    assert len(trial.scalars(loss, "TRAIN")["value"]) == STEPS
    check_values(board, run, loss, weight)
    executable()
    check_page(board, run, loss, weight, tmp_path)
