"""The verbs that read, on small real runs. LUFF_EXECUTABLE names a program other than the installed one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")


class Done(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Done]


def executable() -> str:
    """Returns the luff command; LUFF_EXECUTABLE names one that is not installed."""
    # An environment that adds packages to .venv has no command of its own.
    beside = [Path(sys.executable).parent / "luff", Path(__file__).parents[2] / ".venv" / "bin" / "luff"]
    found = next((path for path in beside if path.exists()), beside[0])
    command = os.environ.get("LUFF_EXECUTABLE", str(found))
    if not Path(command).exists():
        pytest.skip(f"no luff command at {command}")
    return command


@pytest.fixture(scope="session")
def luff() -> Command:
    """Returns a function that runs the luff command and returns exit code, stdout and stderr."""
    command = executable()

    def call(*arguments: object) -> Done:
        done = subprocess.run(
            [command, *map(str, arguments)],
            capture_output=True, text=True, timeout=60, check=False,
            env={**os.environ, "LUFF_PYTHON": sys.executable, "NO_COLOR": "1", "COLUMNS": "100"},
        )  # fmt: skip
        return Done(done.returncode, done.stdout, done.stderr)

    return call


def train(run: Path, *, steps: int = 20, nan_at: int = -1, evaluated: int = 1) -> None:
    """Runs a small training: raw weights and histograms at every step, an evaluation after every ten."""
    import luff.torch
    from luff.config import Collection

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss_fn = torch.nn.MSELoss()
    forms = ["summary", "raw", "histogram"]
    hook = luff.torch.attach(
        model, optimizer=optimizer, loss_fn=loss_fn, run=str(run), save_interval=1,
        collections=[Collection("weights", forms=forms)],
    )  # fmt: skip
    for step in range(steps):
        x = torch.randn(8, 4)
        target = x[:, :1] * (float("nan") if step == nan_at else 1.0)
        loss = loss_fn(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            model.eval()
            with torch.no_grad():
                for _ in range(evaluated):
                    loss_fn(model(x), x[:, :1])
                    x = x + 1
            model.train()
    hook.close()


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run. Do not change it."""
    path = tmp_path_factory.mktemp("cli") / "run"
    train(path)
    return path


@pytest.fixture(scope="session")
def nan_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run whose loss is NaN from step 5 on. Do not change it."""
    path = tmp_path_factory.mktemp("cli") / "nan"
    train(path, steps=8, nan_at=5)
    return path


class Job:
    """A script that hangs, in a process group of its own."""

    def __init__(self, folder: Path, source: str, *words: str, **environment: str) -> None:
        self.script = folder / "train.py"
        self.script.write_text(source)
        self.err = folder / "stderr"
        with self.err.open("ab") as err:
            self.process = subprocess.Popen(
                [sys.executable, str(self.script), "run", *words], cwd=folder, stderr=err,
                env={**os.environ, **environment}, start_new_session=True,
            )  # fmt: skip

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    started: list[Job] = []
    yield started
    for job in started:
        job.end()
