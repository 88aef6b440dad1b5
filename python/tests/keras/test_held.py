"""Steps that are held back and written in batches, without Keras."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

import luff
from luff._base_hook import choose_run, make_config
from luff._codes import Mode, Role
from luff._hook import Session
from luff._step_hook import StepHook
from luff.keras._held import Held, HeldSteps

TRAIN, EVAL = int(Mode.TRAIN), int(Mode.EVAL)


def scalars(trial: luff.Trial, name: str, mode: str, worker: int | None = None) -> dict[int, float]:
    found = trial.scalars(name, mode, worker)
    return dict(zip(found["mode_step"].tolist(), found["value"].tolist(), strict=True))


class Losses(list[float]):
    """Collects the losses of steps."""

    def waits(self) -> bool:
        return True


class Waits(StepHook):
    """A hook whose steps leave their losses in `Losses`."""

    writer = HeldSteps
    steps: HeldSteps

    def __init__(self, path: Path) -> None:
        super().__init__(choose_run(path, False, make_config(None, {})))
        self.losses = Losses()
        self.reads: list[int] = []

    def opened(self, session: Session) -> None:
        self.steps.recorder = weakref.proxy(self)

    def publish(self) -> None:
        self.steps.release()

    def step(self, loss: float, mode: int = TRAIN, waits: bool = True) -> None:
        self.while_live("step", self._step, loss, mode, self.losses if waits else None)
        self.boundary()

    def _step(self, loss: float, mode: int, holder: Losses | None) -> None:
        if not self.steps.begin_again(mode, self, (int(Role.WEIGHT),)):
            self.steps.begin_waiting(mode, holder, self)
        if self.steps.may_wait:
            self.losses.append(loss)
        if not self.steps.hold({"loss": loss}):
            self.steps.scalar("loss", loss, int(Role.LOSS))
            self.steps.updated()
            self.steps.end()

    def before_held(self, holder: object, until_ns: int) -> None:
        assert holder is self.losses
        self.reads.append(len(self.losses))

    def record_held(self, held: Held, holder: object) -> None:
        loss = held.metrics["loss"]
        if loss < 0:
            raise ValueError("no loss")
        assert self.losses.pop(0) == loss
        self.steps.scalar("loss", loss, int(Role.LOSS))
        self.steps.updated()


def test_steps_wait_until_something_else_is_recorded(tmp_path: Path) -> None:
    hook = Waits(tmp_path / "run")
    for index in range(4):
        hook.step(float(index))
    hook.step(4.0, EVAL, False)
    hook.step(5.0)
    hook.save_scalar("rate", 0.5)
    hook.step(6.0)
    hook.step(7.0)
    assert hook.flush()
    assert hook.reads == [4, 1, 1]
    with luff.open_trial(str(tmp_path / "run")) as trial:
        assert len(trial.steps()) == 8
    hook.step(8.0)
    hook.close()
    with luff.open_trial(str(tmp_path / "run")) as trial:
        losses = trial.scalars("loss")
        assert losses["step"].tolist() == losses["value"].tolist() == list(range(9))
        assert scalars(trial, "scalar/rate", "TRAIN") == {5: 0.5}
        assert [trial.step_info(step)["update"] for step in range(9)] == list(range(9))
        ends = [trial.step_info(step)["wall_unix_ns"] for step in range(9)]
        assert ends == sorted(ends)
        assert trial.gaps() == []


def test_no_more_than_a_few_steps_wait(tmp_path: Path) -> None:
    with Waits(tmp_path / "run") as hook:
        for index in range(1000):
            hook.step(float(index))
        assert max(hook.reads) <= 64
        assert len(hook.losses) < 64
    with luff.open_trial(str(tmp_path / "run")) as trial:
        assert list(scalars(trial, "loss", "TRAIN").values()) == list(range(1000))


def test_what_a_waiting_step_cannot_record_is_counted(tmp_path: Path) -> None:
    with Waits(tmp_path / "run") as hook:
        for loss in (1.0, -1.0, 2.0):
            hook.step(loss)
        hook.losses.remove(-1.0)
    assert hook.health()["hook_errors"] == 1
    with luff.open_trial(str(tmp_path / "run")) as trial:
        assert scalars(trial, "loss", "TRAIN") == {0: 1.0, 2: 2.0}
        assert [gap["reason"] for gap in trial.gaps()] == ["hook error"]


def test_waiting_steps_of_the_parent_are_not_the_child_s(tmp_path: Path) -> None:
    with Waits(tmp_path / "run") as hook:
        hook.step(1.0)
        child = os.fork()
        if child == 0:
            hook.losses.clear()
            hook.step(9.0)
            hook.close()
            os._exit(0)
        os.waitpid(child, 0)
        hook.step(2.0)
    with luff.open_trial(str(tmp_path / "run")) as trial:
        assert scalars(trial, "loss", "TRAIN", worker=1) == {0: 9.0}
        assert scalars(trial, "loss", "TRAIN", worker=0) == {0: 1.0, 1: 2.0}
