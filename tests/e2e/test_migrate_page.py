"""What docs/migrate/smdebug.md prints can be typed as it stands, but for paths."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Luff

_PAGE = (Path(__file__).parents[2] / "docs" / "migrate" / "smdebug.md").read_text()
_BLOCKS = re.findall(r"^```(python|sh)\n(.*?)^```", _PAGE, re.MULTILINE | re.DOTALL)

_TRAIN = """
import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
arguments = parser.parse_args()
torch.manual_seed(0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        return self.fc(x)

model, loss = Net(), nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"HOOK"
for step in range(5 * arguments.epochs):
    optimizer.zero_grad()
    loss(model(torch.randn(8, 4)), torch.randint(0, 3, (8,))).backward()
    optimizer.step()
"""
_HOOK = """
import smdebug.pytorch as smd

hook = smd.get_hook(create_if_not_exists=True) or smd.Hook(out_dir="job", save_config=smd.SaveConfig(save_interval=1))
hook.register_module(model)
hook.register_loss(loss)
"""
_RULE = """
from smdebug.rules import Rule

class MyRule(Rule):
    def __init__(self, base_trial, threshold=0.0):
        super().__init__(base_trial, other_trials=None)
        self.threshold = float(threshold)

    def invoke_at_step(self, step):
        return False
"""
_CONFIG = """
[capture]
collections = [{name = "kept", include = ["^gradient/"], forms = ["raw"], save = {save_interval = 1}}]
"""


class Page:
    """A folder in which the page's programs are, and what the page calls by other paths."""

    def __init__(self, luff: Luff) -> None:
        self.luff = luff
        self.here = luff.cwd
        self.environment = {
            **luff.environment,
            "LUFF_EXECUTABLE": str(luff.executable),
            "LUFF_PYTHON": sys.executable,
        }
        watched = _TRAIN.replace('"HOOK"', _HOOK)
        for name, text in {
            "plain.py": _TRAIN, "train.py": watched, "checks.py": _RULE, "src/train.py": _TRAIN,
            "mypackage/__init__.py": "", "mypackage/train.py": watched.replace('"job"', '"job-of-package"'),
            "luff.toml": _CONFIG, "data/x": "", "launch.py": self.launcher(),
        }.items():  # fmt: skip
            path = self.here / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    @staticmethod
    def launcher() -> str:
        """The launcher that the page prints, without the line for notebooks; it waits for its job."""
        text = next(text for kind, text in _BLOCKS if "sagemaker.install()" in text)
        return text.split("sagemaker.install()", 1)[1].split("\n", 1)[1].replace("wait=False", "wait=True")

    def python(self, text: str) -> str:
        """Runs Python; returns what it printed."""
        return self.program([sys.executable, "-c", text])

    def program(self, words: list[str], codes: tuple[int, ...] = (0,)) -> str:
        """Runs a program in the folder; returns what it printed."""
        done = subprocess.run(
            words,
            cwd=self.here,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode in codes, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def shell(self, line: str) -> str:
        """Runs a line of a block, as it is printed, of this build."""
        names = {"python": sys.executable, "luff": str(self.luff.executable)}
        return self.program([names.get(word, word) for word in shlex.split(line, comments=True)])


@pytest.fixture(name="page")
def _page(luff: Luff) -> Page:
    return Page(luff)


def test_every_block_of_the_page_is_executed_here() -> None:
    assert [kind for kind, _ in _BLOCKS] == [
        "sh",
        "python",
        "python",
        "python",
        "python",
        "sh",
        "python",
        "sh",
        "sh",
        "python",
        "sh",
        "python",
    ]


def test_scripts_trials_and_rules(page: Page) -> None:
    lines, install, read, notebook, invoke, rules = [text for _, text in _BLOCKS[:6]]
    for number, line in enumerate(lines.splitlines()):
        page.shell(line)
        folder = page.here / ("job-of-package" if "-m mypackage" in line else "job")
        assert (folder / "collections").is_dir(), line
        if "job-of" not in folder.name:
            folder.rename(page.here / f"job-{number}")
    page.python(install)
    page.program(
        [
            str(page.luff.executable),
            "run",
            "--run",
            "kept",
            "--config",
            "luff.toml",
            "--",
            sys.executable,
            "plain.py",
        ]
    )
    page.program([str(page.luff.executable), "run", "--run", "plain", "--", sys.executable, "plain.py"])
    page.python(
        read.replace("/data/old-job/debug-output", "job-0").replace("runs/x", "kept").replace("500", "4")
    )
    shown = page.python(
        notebook.replace("runs/x", "plain")
        + "\nprint(np.stack(list(loss.values(mode=modes.TRAIN).values())).shape)"
    )
    assert "(5,)" in shown
    begin = "from luff.compat import smdebug; smdebug.install()\nfrom checks import MyRule\n"
    begin += "from smdebug.rules.rule_invoker import invoke_rule\nfrom smdebug.trials import create_trial\n"
    begin += "from smdebug.exceptions import NoMoreData\ntry:\n    "  # as smdebug ends, after the last step
    page.python(begin + invoke.replace("/data/job", "job-0") + "except NoMoreData:\n    print('all steps')\n")
    for line in rules.splitlines():
        if line.startswith("luff check"):
            page.shell(line.replace("RUN", "plain"))
        else:
            page.shell(line.replace("train.py", "plain.py"))


def test_jobs(page: Page) -> None:
    job, run, launch, cell = [text for _, text in _BLOCKS[6:10]]
    page.python(job)
    assert json.loads((page.here / "job.json").read_text())
    page.shell(run.replace("train.py", "plain.py"))
    page.shell(launch)
    shown = page.python(
        cell.replace(
            "rule_job_summary()", "wait()\nprint(estimator.latest_training_job.rule_job_summary())", 1
        )
        + "\nfrom luff.compat.smdebug import create_trial"
        + "\nprint(len(create_trial(estimator.latest_job_debugger_artifacts_path()).steps()), 'steps')"
    )
    assert "NoIssuesFound" in shown
    assert "15 steps" in shown


def test_the_profiler(page: Page) -> None:
    lines, read = [text for _, text in _BLOCKS[10:]]
    page.program([str(page.luff.executable), "run", "--run", "plain", "--", sys.executable, "plain.py"])
    exports = [line for line in lines.splitlines() if "export" in line]
    assert len(exports) == 1
    page.shell(exports[0].replace("RUN", "plain"))
    for line in lines.splitlines():
        if line not in exports:
            page.shell(line.replace("RUN", "plain"))
    # The tables need pandas: tests/formats.
    page.python(
        "\n".join(line for line in read.splitlines() if "analysis" not in line and "Frame" not in line)
    )
    assert (page.here / "report" / "profiler-report.html").exists()
    assert (page.here / "report" / "profiler-reports" / "StepOutlier.json").exists()
