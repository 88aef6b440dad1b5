"""A notebook in a real kernel: cells that run twice, are interrupted, and a kernel that restarts."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import luff as package
import pytest

from .conftest import Luff, processes_with

nbclient = pytest.importorskip("nbclient", reason="./dev setup installs nbclient and ipykernel")
pytest.importorskip("ipykernel", reason="./dev setup installs nbclient and ipykernel")

_SETUP = """
import pathlib, time
import torch
import luff, luff.torch

x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
y = x.sum(1, keepdim=True)

def train(steps, nan_at=-1):
    for step in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        (loss * float("nan") if step == nan_at else loss).backward()
        optimizer.step()
        if step == 40:
            pathlib.Path({begun!r}).touch()
        time.sleep(0.002)
"""

_TRAIN = """
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
hook = luff.torch.attach(model, optimizer=optimizer, loss_fn=torch.nn.functional.mse_loss, run={run!r}, rules=True)
train({steps})
"""

_READ = """
trial = luff.open_trial({run!r})
deadline = time.monotonic() + 60
while {until} and time.monotonic() < deadline:
    time.sleep(0.1)
    trial.refresh()
display(trial, trial.tensor(trial.tensors("0.weight$")[0]))
"""


class Notebook:
    """A notebook whose cells are executed one by one."""

    def __init__(self, luff: Luff) -> None:
        import nbformat

        self.book = nbformat.v4.new_notebook()
        self.client: Any = nbclient.NotebookClient(self.book, allow_errors=True, timeout=120)
        self.environment = luff.environment | {
            "LUFF_EXECUTABLE": str(luff.executable),
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "IPYTHONDIR": str(luff.home / "ipython"),
        }

    def begin(self, source: str) -> asyncio.Task[Any]:
        """Begins to execute a new cell."""
        import nbformat

        self.book.cells.append(nbformat.v4.new_code_cell(source))
        return asyncio.ensure_future(
            self.client.async_execute_cell(self.book.cells[-1], len(self.book.cells) - 1)
        )

    async def run(self, source: str) -> dict[str, str]:
        """Executes a new cell to its end."""
        return self.shown(await self.begin(source))

    @staticmethod
    def shown(cell: Any) -> dict[str, str]:
        """Returns what stands below a cell: ``error``, ``html`` and ``text``."""
        said: dict[str, str] = {"error": "", "html": "", "text": ""}
        for output in cell.outputs:
            if output.output_type == "error":
                said["error"] += "\n".join([output.ename, *output.traceback])
            elif output.output_type == "stream":
                said["text"] += output.text
            else:
                said["html"] += output.data.get("text/html", "")
        return said


def test_cells_that_run_twice_are_interrupted_and_lose_their_kernel(luff: Luff) -> None:
    asyncio.run(_story(luff))


async def _story(luff: Luff) -> None:
    run, begun = luff.tmp / "run", luff.tmp / "begun"
    notebook = Notebook(luff)
    setup = _SETUP.format(begun=str(begun))
    async with notebook.client.async_setup_kernel(env=notebook.environment, cwd=str(luff.cwd)):
        assert (await notebook.run(setup))["error"] == ""
        cell = _TRAIN.format(run=str(run), steps=30)
        first, second = [await notebook.run(cell) for _ in range(2)]
        assert (first["error"], second["error"]) == ("", "")
        assert f"{run} holds a run already; this one is recorded into {run}-2" in second["text"]
        read = await notebook.run(_READ.format(run=str(run), until="trial.outcome == 'running'"))
        assert read["error"] == ""
        assert "completed" in read["html"]

        training = notebook.begin(_TRAIN.format(run=str(run), steps="10**6, nan_at=35"))
        while not begun.exists():
            await asyncio.sleep(0.05)
        await notebook.client.km.interrupt_kernel()
        interrupted = notebook.shown(await training)
        assert interrupted["error"].startswith("KeyboardInterrupt")
        assert "Error" not in re.sub(r"\x1b\[[\d;]*m", "", interrupted["text"])
        read = await notebook.run(_READ.format(run=f"{run}-3", until="not trial.findings()"))
        assert read["error"] == ""
        assert "NonFinite" in read["html"]
        goes_on = await notebook.run("train(5)")  # the same training, in another cell
        assert goes_on["error"] == ""

        await notebook.client.km.restart_kernel(now=False)  # the run of the interrupted cell is still open
        await notebook.client.kc.wait_for_ready(timeout=60)
        assert (await notebook.run(setup))["error"] == ""
        again = await notebook.run(cell + "hook.close()")
        assert again["error"] == ""
        assert f"recorded into {run}-4" in again["text"]
    for name, steps in (("run", 30), ("run-2", 30), ("run-4", 30), ("run-3", None)):
        with package.open_trial(luff.tmp / name) as trial:
            assert trial.outcome == "completed", name
            assert steps in (None, len(trial.steps("TRAIN"))), name
    text = "".join(notebook.shown(cell)["text"] for cell in notebook.book.cells)
    assert "Traceback" not in text
    for _ in range(300):
        if not processes_with(f"watch {luff.tmp}"):
            break
        await asyncio.sleep(0.1)
    assert not processes_with(f"watch {luff.tmp}")
    assert not list(Path(luff.cwd).iterdir())
