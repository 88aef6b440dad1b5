"""Python threads that share one trial while the job writes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import luff
import numpy as np
import pytest
from luff import errors
from luff._codes import DType

from python.tests.test_trial import Recording

STEPS = 600
TENSORS = 4
ROUNDS = 30


def _record(recording: Recording) -> None:
    content = np.full(8192, recording.global_step, np.float32)
    recording.step(
        scalars={"loss": float(recording.global_step)},
        **{f"t{k}": (DType.FLOAT32, content) for k in range(TENSORS)},
    )


def _readings(trial: luff.Trial) -> list[Callable[[int], None]]:
    """Returns what a thread reads, each with a check that the answer is consistent: all numbers belong to their
    steps.
    """

    def tensor(i: int) -> luff.Tensor:
        return trial.tensor(f"t{i % TENSORS}")

    def stacked(i: int) -> None:
        steps, values = tensor(i).stacked()
        assert (np.diff(steps) > 0).all()
        assert (values == steps[:, None]).all()

    def value(i: int) -> None:
        for step in tensor(i).value_steps()[-20 * i - 20 :: 7]:
            assert (tensor(i).value(step) == step).all()

    def columns(i: int) -> None:
        found = tensor(i).summaries()
        assert (found["mean"] == found["step"]).all()
        scalars = trial.scalars("loss")
        assert (scalars["value"] == scalars["step"]).all()

    def rows(i: int) -> None:
        number = trial._core.step_count - 1 - i % 7
        found, _ = trial._core.step_rows(number)
        assert {s["mean"] for _, s in found} == {trial._core.step_at(number)[0]}

    def one_step(i: int) -> None:
        step = tensor(i).steps()[-1]
        assert tensor(i).summary(step)["max"] == step
        assert trial.step_info(step)["global_step"] == step
        assert tensor(i).histogram(step)[2].sum() == 8192

    def news(i: int) -> None:
        trial.refresh()
        trial.wait_for_news(0.0)
        assert len(trial.tensors()) == TENSORS + 1
        assert trial.problems() == []
        assert trial.workers()[0]["last_step"] >= 0

    return [stacked, stacked, stacked, stacked, value, columns, rows, one_step, news]


@pytest.mark.parametrize("use_live_page", [True, False])
def test_threads_may_share_a_trial(tmp_path: Path, use_live_page: bool) -> None:
    recording = Recording(tmp_path / "run")
    for _ in range(STEPS):
        _record(recording)
    trial = luff.open_trial(tmp_path / "run", wait_s=60.0, use_live_page=use_live_page)
    trial.wait_for_step(STEPS - 1)
    errors: list[BaseException] = []

    def read(reading: Callable[[int], None]) -> None:
        try:
            for i in range(ROUNDS):
                reading(i)
        except BaseException as error:  # the main thread reports it
            errors.append(error)

    threads = [threading.Thread(target=read, args=(reading,)) for reading in _readings(trial)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        _record(recording)
    for thread in threads:
        thread.join()
    recording.close()
    assert errors == []


def test_a_waiting_thread_leaves_the_trial_to_others(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "run")
    _record(recording)
    trial = luff.open_trial(tmp_path / "run", wait_s=60.0)
    came: list[int] = []
    waiting = threading.Thread(target=lambda: came.append(trial.wait_for_step(1, timeout_s=300.0) or 1))
    waiting.start()
    for _ in range(200):
        assert (trial.tensor("t0").value(0) == 0).all()
    assert waiting.is_alive()
    _record(recording)
    waiting.join()
    assert came == [1]
    recording.close()


def test_a_child_forked_while_a_thread_reads_waits_for_nobody(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "run")
    for _ in range(STEPS):
        _record(recording)
    recording.close()
    trial = luff.open_trial(tmp_path / "run")
    expected = trial.tensor("t0").stacked()[0].tolist()
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            trial.tensor("t0").stacked()

    def is_served() -> bool:
        """Whether a child can read with its own trial, and gets right answers or a refusal from its parent's."""
        own = luff.open_trial(tmp_path / "run")
        if own.tensor("t0").stacked()[0].tolist() != expected:
            return False
        try:
            return trial.tensor("t0").stacked()[0].tolist() == expected
        except errors.FailedPreconditionError as refused:
            return "open the run again" in str(refused)

    reading = threading.Thread(target=read)
    reading.start()
    codes = []
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                signal.alarm(60)  # ends a child that would wait forever
                code = 1
                try:
                    code = 0 if is_served() else 1
                finally:
                    os._exit(code)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    finally:
        over.set()
        reading.join()
    assert codes == [0] * 20
