"""What people ask of a running job: `luff stop`, `luff capture`, `luff mark`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import luff as package
import numpy as np
import pytest

from .conftest import Luff

if TYPE_CHECKING:
    from typing_extensions import Self

_SCRIPT = """
import sys, time
import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
inputs = torch.randn(256, 8)
targets = (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0.5).long()
for step in range(int(sys.argv[1])):
    rows = torch.randint(0, 256, (32,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs[rows]), targets[rows])
    loss.backward()
    optimizer.step()
    print(loss.item().hex(), flush=True)
    time.sleep(0.01)
"""

#: What needs no framework to be asked, without the time that importing one takes.
_PLAIN = """
import sys, time
import numpy as np
import luff.numpy

weights = {"w": np.ones(4, np.float32)}
with luff.numpy.attach(weights ATTACH) as hook:
    for number in range(int(sys.argv[1])):
        with hook.step() as step:
            step.gradients({"w": np.full(4, 0.1, np.float32)})
            step.loss(LOSS)
        time.sleep(0.01)
"""


def plain(run: str = "", loss: str = "1.0 / (number + 1)") -> str:
    """A script without a framework that attaches itself; `run`: its directory, if no `luff run` gives one."""
    return _PLAIN.replace(" ATTACH", f", run={run!r}" if run else "").replace("LOSS", loss)


def ask(luff: Luff, *words: object) -> subprocess.CompletedProcess[str]:
    code, out, err = luff(*map(str, words))
    return subprocess.CompletedProcess(words, code, out, err)


class Job:
    """A training under `luff run`, or one that attached itself."""

    def __init__(
        self,
        luff: Luff,
        steps: int,
        *,
        script: str = "",
        supervised: bool = True,
        program: list[str] | None = None,
    ) -> None:
        self.luff = luff
        self.run = luff.tmp / "run"
        file = luff.tmp / "train.py"
        file.write_text(script or plain("" if supervised else str(self.run)))
        command = [sys.executable, *(program or [str(file), str(steps)])]
        if supervised:
            command = [str(luff.executable), "run", "--run", str(self.run), "--", *command]
        self.process = subprocess.Popen(
            command, env=luff.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def wait_for_steps(self, steps: int) -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                with package.open_trial(self.run) as trial:
                    if len(trial.steps("TRAIN")) >= steps:
                        return
            except package.LuffError:
                pass
            time.sleep(0.1)
        raise AssertionError("the training did not begin")

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=120)
        return self.process.returncode, out, err

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.communicate(timeout=60)


@pytest.mark.parametrize("supervised", [True, False])
def test_a_job_is_stopped_when_somebody_asks(luff: Luff, supervised: bool) -> None:
    with Job(luff, 5000, supervised=supervised) as job:
        job.wait_for_steps(5)
        asked = ask(luff, "stop", job.run, "--reason", "enough seen")
        assert asked.returncode == 0, asked.stderr
        assert "done: the job leaves, after " in asked.stderr
        code, _, err = job.end()
        assert code == 76, err
        if supervised:
            assert "luff: stopped, asked by " in err and "enough seen" in err
        shown = json.loads(ask(luff, "show", job.run, "--json").stdout)
        assert shown["outcome"] == "stopped"
        assert shown["actions"][0]["asked"].endswith(": enough seen")
        # Nobody trains any more.
        again = ask(luff, "stop", job.run)
        assert again.returncode == 2
        assert "no process trains into this run now" in again.stderr


def test_a_stop_is_told_with_who_or_what_stopped_it(luff: Luff) -> None:
    nan = plain(loss="float('nan') if number > 3 else 1.0")
    with Job(luff, 5000, script=nan) as job:
        job.wait_for_steps(30)
        assert ask(luff, "stop", job.run, "--reason", "I wanted it").returncode == 0
        code, _, err = job.end()
        assert code == 76, err
        assert "NonFinite" in err
    listed = ask(luff, "runs", luff.tmp).stdout
    assert "stopped: asked by " in listed and ": I wanted it" in listed
    assert "NonFinite" not in listed


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the script prints without Luff."""
    script = tmp_path_factory.mktemp("bare") / "train.py"
    script.write_text(_SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), "400"], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout


@pytest.mark.parametrize("supervised", [True, False])
def test_more_is_recorded_for_some_steps_and_results_stay_the_same(
    luff: Luff, bare: str, supervised: bool
) -> None:
    script = _SCRIPT
    if not supervised:
        script = script.replace("import sys,", "import luff.torch, sys,").replace(
            "inputs = torch", f"luff.torch.attach(model, run={str(luff.tmp / 'run')!r})\ninputs = torch"
        )
    with Job(luff, 400, script=script, supervised=supervised) as job:
        job.wait_for_steps(5)
        asked = ask(luff, "capture", job.run, "--include", "^Sequential_0.weight", "--forms", "raw,histogram",
            "--every", "2", "--for-steps", "20", "--name", "zoom", "--json",
        )  # fmt: skip
        assert asked.returncode == 0, asked.stderr
        answer = json.loads(asked.stdout)
        assert answer["state"] == "done"
        none = ask(luff, "capture", job.run, "--include", "Sequential_0.wieght", "--for-steps", "2")
        assert none.returncode == 0, none.stderr
        first_line = none.stderr.splitlines()[0]
        assert (
            "no tensor of the run is called 'Sequential_0.wieght'; nearest: Sequential_0.weight" in first_line
        )
        outputs = ask(
            luff, "capture", job.run, "--role", "output", "--forms", "raw", "--for-steps", "3", "--json"
        )
        begin = json.loads(outputs.stdout)["train_step"]
        code, out, err = job.end()
        assert code == 0, err
        assert out == bare
        first = answer["train_step"]
        with package.open_trial(job.run) as trial:
            wanted = [step for step in range(first, first + 20) if step % 2 == 0]
            assert trial.tensor("Sequential_0.weight").value_steps("TRAIN") == wanted
            assert trial.tensor("Sequential_0.weight").value(wanted[0], "TRAIN").shape == (16, 8)
            assert trial.tensor("Sequential_2.weight").value_steps("TRAIN") == []
            output = trial.tensor("Sequential_output_0").value_steps("TRAIN")
            assert [step for step in output if step > 0] == list(range(begin, begin + 3))
            assert np.isfinite(trial.tensor("Sequential_output_0").value(begin, "TRAIN")).all()
            assert "zoom" in trial.collections()


def test_mistakes_are_told_before_anything_is_asked(luff: Luff) -> None:
    with Job(luff, 5000) as job:
        job.wait_for_steps(5)
        for words, told in [
            (["--include", "weigh(", "--for-steps", "5"], "does not compile"),
            (["--for-steps", "5"], "what is to be recorded"),
            (["--role", "wieght", "--for-steps", "5"], 'did you mean "weight"'),
            (["--include", "x", "--forms", "rwa", "--for-steps", "5"], 'did you mean "raw"'),
            (["--include", "x"], "--for-steps"),
            (["--tensor", "x", "--for-steps", "5", "--forms", "rwa"], 'did you mean "raw"'),
        ]:
            asked = ask(luff, "capture", job.run, *words)
            assert asked.returncode == 2 and told in asked.stderr, asked.stderr
        assert not list((job.run / "control").glob("*.json"))
        assert ask(luff, "stop", job.run).returncode == 0
        job.end()


def test_a_finding_is_marked(luff: Luff) -> None:
    script = luff.tmp / "nan.py"
    script.write_text(plain(loss="float('nan') if number > 3 else 1.0"))
    ask(luff, "run", "--run", luff.tmp / "run", "--", sys.executable, script, "20")
    findings = json.loads(ask(luff, "show", luff.tmp / "run", "--json").stdout)["finding_list"]
    one = findings[0]["id"]
    run = luff.tmp / "run"
    wrong = ask(luff, "mark", run, one + "0", "mute")
    assert wrong.returncode == 2 and one in wrong.stderr
    for name in (findings[0]["rule"], one[:6]):
        assert ask(luff, "mark", run, name, "acknowledge").returncode == 0
        assert ask(luff, "mark", run).stdout.startswith(f"{one}  acknowledge by ")
    wrong = ask(luff, "mark", run, one, "ignore")
    assert wrong.returncode == 2 and "acknowledge, mute, reopen" in wrong.stderr
    assert ask(luff, "mark", run, one, "mute", "--until-step", "50", "--note", "known").returncode == 0
    assert ask(luff, "mark", run).stdout.startswith(f"{one}  mute until step 50 by ")
    shown = ask(luff, "show", run).stdout
    assert f"    {one} " in shown and "      marked: mute until step 50 by " in shown
    [mark] = [
        f["mark"] for f in json.loads(ask(luff, "show", run, "--json").stdout)["finding_list"] if f["mark"]
    ]
    assert (mark["as"], mark["until_step"], mark["note"]) == ("mute", 50, "known")
    assert "@" in mark["author"]
    assert "known" in ask(luff, "explain", one, "--run", run).stdout
    assert ask(luff, "mark", run, one, "reopen").returncode == 0
    assert ask(luff, "mark", run).stdout == ""
    # The finding itself is as it was.
    assert json.loads(ask(luff, "show", run, "--json").stdout)["finding_list"] == findings


_TWO_RANKS = """
import sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(2000):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.randint(0, 3, (16,))).backward()
    optimizer.step()
    time.sleep(0.01 * (1 + dist.get_rank()))
"""


def test_two_ranks_record_more_from_the_same_step_and_stop_at_the_same(luff: Luff) -> None:
    (luff.tmp / "ranks.py").write_text(_TWO_RANKS)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    with Job(luff, 0, program=[*launcher, str(luff.tmp / "ranks.py")]) as job:
        job.wait_for_steps(5)
        more = ["--include", "^gradient/.*0.weight", "--forms", "raw", "--for-steps", "4", "--json"]
        asked = ask(luff, "capture", job.run, *more)
        assert asked.returncode == 0, asked.stderr
        first = json.loads(asked.stdout)["train_step"]
        job.wait_for_steps(first + 6)
        stopped = ask(luff, "stop", job.run, "--json")
        assert json.loads(stopped.stdout)["state"] == "done"
        job.end()
        last = json.loads(stopped.stdout)["train_step"]
    with package.open_trial(job.run) as trial:
        assert trial.outcome == "stopped"
        gradient = next(t.name for t in trial if t.name.startswith("gradient/") and "0.weight" in t.name)
        for rank in range(2):
            recorded = trial.tensor(gradient)
            shapes = [recorded.value(step, "TRAIN", rank).shape for step in range(first, first + 4)]
            assert shapes == [(16, 8)] * 4
        assert recorded.value_steps("TRAIN", 0) == list(range(first, first + 4))
        assert trial.steps("TRAIN")[-1] == last - 1
