"""Which trainings of a process have runs of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import luff
from luff._next_training import SHORT, NextTraining


class Thing:
    """A model, or a part of one."""


def begins(
    trainings: NextTraining, steps: int, *things: Thing, anew: bool = False, short: int = SHORT
) -> bool:
    own = trainings.begins(steps, things, anew, short)
    if own:
        trainings.next_run()
    return own


def test_another_model_has_a_run_unless_the_training_before_was_short() -> None:
    trainings, models = NextTraining(), [Thing() for _ in range(5)]
    assert not begins(trainings, 0, models[0])  # the first
    assert begins(trainings, 100, models[1])
    assert not begins(trainings, 99, models[2])
    assert not begins(trainings, 120, models[3])  # the one before had 21 steps
    assert begins(trainings, 220, models[4])


def test_each_training_says_what_is_short() -> None:
    trainings, kept = NextTraining(), [Thing() for _ in range(3)]
    begins(trainings, 0, kept[0], short=20)
    assert begins(trainings, 20, kept[1])
    assert not begins(trainings, 20, kept[2])


def test_a_model_with_known_parts_goes_on() -> None:
    trainings, part, one, two = NextTraining(), Thing(), Thing(), Thing()
    begins(trainings, 0, one, part)
    assert not begins(trainings, 500, two, part)
    assert trainings.knows(two)
    assert begins(trainings, 500, two, part, anew=True)
    assert trainings.knows(two) and not trainings.knows(one)


def test_an_earlier_model_trained_again_ends_the_counting_of_runs() -> None:
    trainings, models = NextTraining(), [Thing() for _ in range(3)]
    begins(trainings, 0, models[0])
    assert begins(trainings, 200, models[1])
    assert not begins(trainings, 200, models[0])
    assert trainings.knows(models[0])
    assert not begins(trainings, 900, models[2])


def test_what_is_gone_is_forgotten() -> None:
    trainings, model = NextTraining(), Thing()
    begins(trainings, 0, model)
    del model
    assert len(trainings._runs_of) == 0


PROGRAM = """
import os
import luff._base_hook as base
from luff._codes import Mode, Role
from luff._registry import Registry
from luff._step_hook import StepHook
base.MAX_RUNS = {most}
class Model:
    pass
hooks = Registry(StepHook)
hook = hooks.attach_to_all()
def step(model, loss):
    hook.trains(model)
    if hook.steps.begin(int(Mode.TRAIN)) is not None:
        hook.steps.scalar("loss", loss, int(Role.LOSS))
        hook.steps.updated()
        hook.steps.end()
def train(steps):
    model = Model()
    for index in range(steps):
        hook.while_live("step", step, model, 1 / (1 + index))
        hook.boundary()
{trainings}
assert not hook.guard.first, hook.guard.first
"""


def test_too_many_runs_are_told(start_luff: Any, tmp_path: Path) -> None:
    done = start_luff(PROGRAM.format(most=3, trainings="for fold in range(5): train(100 + fold)"))
    for name, count in (("run", 100), ("run-2", 101), ("run-3", 102)):
        with luff.open_trial(tmp_path / name) as trial:
            assert trial.outcome == "completed"
            assert trial.steps("TRAIN") == list(range(count))
    assert len(list(tmp_path.glob("run*"))) == 3
    assert "3 trainings of the process have runs, those after them are not recorded" in " ".join(
        done.stderr.split()
    )
    assert done.stderr.splitlines()[-1] == "luff: 3 trainings: 3 ok"


def test_a_forked_child_counts_its_own(start_luff: Any, tmp_path: Path) -> None:
    fork = "train(100)\nif os.fork() == 0:\n    train(30); train(110); hook.close(); os._exit(0)\nos.wait()\ntrain(120)"
    start_luff(PROGRAM.format(most=9, trainings=fork))
    found = []
    for path in tmp_path.glob("run*"):
        with luff.open_trial(path) as trial:
            found.append(len(trial.steps("TRAIN")))
    assert sorted(found) == [100, 120, 140]


def test_a_hook_that_was_attached_keeps_its_run(tmp_path: Path) -> None:
    script = PROGRAM.format(most=9, trainings="train(100); train(100)")
    mine = f"StepHook(base.choose_run({str(tmp_path / 'run')!r}, False, {{}}))"
    script = script.replace("hooks.attach_to_all()", mine)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LUFF_")}
    subprocess.run([sys.executable, "-c", script + "hook.close()\n"], env=environment, check=True, timeout=60)
    with luff.open_trial(tmp_path / "run") as trial:
        assert len(trial.steps("TRAIN")) == 200
