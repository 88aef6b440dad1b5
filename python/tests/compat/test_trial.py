"""Trials in smdebug's layout: while they grow, with lagging workers, and with damage."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from luff.compat.smdebug import CollectionManager, create_trial, modes
from luff.compat.smdebug.analysis.utils import no_refresh, refresh
from luff.compat.smdebug.core.access_layer.utils import training_has_ended
from luff.compat.smdebug.core.tensor import StepState
from luff.compat.smdebug.core.writer import FileWriter
from luff.compat.smdebug.exceptions import (
    InvalidWorker,
    MissingCollectionFiles,
    NoMoreData,
    SMDebugNotImplementedError,
    SMDebugRuntimeError,
    StepNotYetAvailable,
    StepUnavailable,
    TensorUnavailable,
    TensorUnavailableForStep,
)


class Job:
    """A job that writes a trial."""

    def __init__(self, path: Path, workers: int = 1) -> None:
        self.path = path
        manager = CollectionManager()
        manager.add("default")
        manager.get("default").include("^w")
        manager.set_num_workers(workers)
        for number in range(workers):
            manager.export(str(path), f"worker_{number}_collections.json")

    def step(self, step: int, worker: int = 0, mode=modes.TRAIN, mode_step=None, **values) -> None:
        with FileWriter(trial_dir=str(self.path), step=step, worker=f"worker_{worker}") as writer:
            for name, value in (values or {"w": np.full(2, step + 100.0 * worker)}).items():
                writer.write_tensor(
                    value, name, mode=mode, mode_step=step if mode_step is None else mode_step
                )

    def end(self) -> None:
        training_has_ended(str(self.path))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path / "trial")


def test_a_growing_trial_is_followed(job: Job):
    job.step(0)
    trial = create_trial(str(job.path))
    assert trial.name == "trial"
    assert trial.steps() == [0]
    assert trial.has_passed_step(4) is StepState.NOT_YET_AVAILABLE
    job.step(4)
    assert trial.steps() == [0, 4]
    assert trial.has_passed_step(4) is StepState.AVAILABLE
    assert trial.has_passed_step(2) is StepState.UNAVAILABLE
    tensor = trial.tensor("w")
    with pytest.raises(StepUnavailable):
        tensor.value(2)
    with pytest.raises(StepNotYetAvailable):
        tensor.value(9)
    job.step(9, v=np.ones(1))
    with pytest.raises(TensorUnavailableForStep):
        tensor.value(9)
    assert trial.tensor_names(step=9) == ["v"]
    assert not trial.loaded_all_steps
    job.end()
    assert trial.steps() == [0, 4, 9]
    assert trial.loaded_all_steps
    assert trial.has_passed_step(20) is StepState.UNAVAILABLE
    with pytest.raises(NoMoreData):
        trial.wait_for_steps([20])
    with pytest.raises(StepUnavailable):
        trial.wait_for_steps([3])


def test_a_step_is_complete_when_all_workers_have_passed_it(tmp_path: Path):
    job = Job(tmp_path / "trial", workers=2)
    job.step(0, worker=0)
    trial = create_trial(str(job.path))
    assert trial.workers() == ["worker_0", "worker_1"]
    assert trial.steps() == []
    assert trial.steps(show_incomplete_steps=True) == [0]
    job.step(1, worker=0)
    job.step(1, worker=1)
    assert trial.steps() == [0, 1]  # the other worker has skipped step 0
    tensor = trial.tensor("w")
    assert tensor.workers(1) == ["worker_0", "worker_1"]
    assert tensor.value(1)[0] == 1
    assert tensor.value(1, worker="worker_1")[0] == 101
    with pytest.raises(InvalidWorker, match="no worker 'worker_1' of this tensor; there are worker_0"):
        tensor.value(0, worker="worker_1")
    job.step(2, worker=0)
    assert trial.steps() == [0, 1]
    job.end()
    assert trial.steps() == [0, 1, 2]


def test_incomplete_steps_are_not_waited_for_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SMDEBUG_INCOMPLETE_STEP_WAIT_WINDOW", "10")
    job = Job(tmp_path / "trial", workers=2)
    for step in range(20):
        job.step(step, worker=0)
    trial = create_trial(str(job.path))
    assert trial.last_complete_step == 4
    trial.workers()
    assert trial.last_complete_step == 9
    assert trial.steps() == list(range(10))


def test_modes_have_steps_of_their_own(job: Job):
    for step in range(6):
        mode = modes.TRAIN if step % 2 == 0 else modes.EVAL
        job.step(step, mode=mode, mode_step=step // 2)
    trial = create_trial(str(job.path))
    assert trial.steps(modes.EVAL) == [0, 1, 2]
    assert set(trial.modes()) == {modes.TRAIN, modes.EVAL}
    assert (trial.mode(3), trial.mode_step(3), trial.global_step(modes.EVAL, 1)) == (modes.EVAL, 1, 3)
    assert trial.tensor("w").value(1, mode=modes.EVAL)[0] == 3
    assert trial.steps(modes.PREDICT) == []
    assert trial.mode_modestep(77) == (None, None)


def test_reductions_and_shapes_stand_beside_values(job: Job):
    with FileWriter(trial_dir=str(job.path), step=0, worker="worker_0") as writer:
        writer.write_tensor(np.float32(3.5), "smdebug/reductions/abs_max/w")
        writer.write_shape("w", (2, 3))
        writer.write_shape("v", (7,))
        writer.write_tensor(np.ones(7), "v")
    trial = create_trial(str(job.path))
    assert trial.tensor_names() == ["v", "w"]
    w = trial.tensor("w")
    assert w.reduction_value(0, "max", abs=True) == np.float32(3.5)
    assert w.reduction_values(0) == {("max", True): np.float32(3.5)}
    assert w.shape(0) == (2, 3)
    with pytest.raises(TensorUnavailableForStep, match="reductions"):
        w.value(0)
    with pytest.raises(TensorUnavailableForStep):
        w.reduction_value(0, "min")
    assert trial.tensor("v").value(0).shape == (7,)  # if a shape was saved as well, the value is still read
    assert trial.tensor("v").reduction_value(0, "l2") == pytest.approx(np.sqrt(7))


def test_steps_out_of_range_are_never_read(job: Job):
    for step in range(10):
        job.step(step)
    assert create_trial(str(job.path), range_steps=(2, 5)).steps() == [2, 3, 4]
    with pytest.raises(ValueError, match="range_steps"):
        create_trial(str(job.path), range_steps=(5, 2))


def test_expressions_of_a_trial_cannot_run_for_ever(job: Job, caplog: pytest.LogCaptureFixture):
    name = "w" * 60 + "!"
    job.step(0, **{name: np.zeros(1), "weight": np.zeros(1)})
    job.end()
    manager = CollectionManager()
    manager.add("slow")
    manager.get("slow").include("^(w+)+$")
    manager.add("broken")
    manager.get("broken").include(["(", "^weight$"])
    manager.add("default")
    manager.get("default").include("^w")
    manager.set_num_workers(1)
    manager.export(str(job.path), "worker_0_collections.json")
    trial = create_trial(str(job.path))
    assert trial.tensor_names(collection="slow") == []
    with caplog.at_level("WARNING"):
        assert trial.tensor_names(collection="broken") == ["weight"]
    assert trial.tensor_names(collection="default") == ["weight", name]


def test_refreshing_can_be_held_and_is_restored(job: Job):
    job.step(0)
    trial = create_trial(str(job.path))
    with no_refresh(trial):
        job.step(1)
        assert trial.steps() == [0]
        with refresh([trial]):
            assert trial.steps() == [0, 1]
        assert not trial.dynamic_refresh
        job.step(2)
        assert trial.steps() == [0, 1]
    assert trial.steps() == [0, 1, 2]
    trial.wait_for_steps([2])
    job.step(3)
    assert trial.steps() == [0, 1, 2, 3]


def test_names_are_chosen_by_expression_or_collection(job: Job):
    job.step(0, w1=np.ones(1), w2=np.ones(1), other=np.ones(1))
    trial = create_trial(str(job.path))
    assert trial.tensor_names(collection="default") == ["w1", "w2"]
    assert trial.tensor_names(regex=["w1$", ["^o"]]) == ["other", "w1"]
    assert trial.tensor_names(regex="nothing") == []
    trial.collection("mine").add_tensor_name("other")
    assert trial.tensor_names(collection=trial.collection("mine")) == ["other"]
    with pytest.raises(ValueError, match="regex and collection"):
        trial.tensor_names(regex="a", collection="default")
    with pytest.raises(TensorUnavailable, match=r"at any step; trial\.tensor_names\(\)"):
        trial.tensor("zzzzzz")
    name = trial.tensor_names()[0]
    with pytest.raises(TensorUnavailable, match=f"nearest: '{re.escape(name)}'"):
        trial.tensor(name + "s")


def test_a_damaged_index_file_is_told_and_left_out(job: Job):
    for step in range(4):
        job.step(step)
    folder = job.path / "index/000000000"
    (folder / "000000000001_worker_0.json").write_text('{"meta": {"mode": "TRAIN"')
    (folder / "000000000002_worker_0.json").write_text('{"version": 9}')
    (folder / "readme.json").write_text("{}")
    payload = json.dumps({"tensorname": "w", "start_idx": 1 << 70, "length": 5})
    (folder / "000000000005_worker_0.json").write_text(
        f'{{"meta": {{"mode": "TRAIN"}}, "tensor_payload": [{payload}]}}'
    )
    (folder / "000000000006_worker_0.json").write_text("[" * 100_000)
    trial = create_trial(str(job.path))
    assert trial.steps() == [0, 3]
    assert sorted(Path(path).name for path in trial.index_reader.problems) == [
        "000000000001_worker_0.json",
        "000000000002_worker_0.json",
        "000000000005_worker_0.json",
        "000000000006_worker_0.json",
        "readme.json",
    ]


def test_an_index_may_not_lead_out_of_the_trial(job: Job):
    job.step(0)
    path = job.path / "index/000000000/000000000000_worker_0.json"
    path.write_text(path.read_text().replace("events/000000000000/", "../../"))
    trial = create_trial(str(job.path))
    assert trial.steps() == []
    assert "inside of the trial" in next(iter(trial.index_reader.problems.values()))


def test_a_damaged_event_file_is_told_with_its_place(job: Job):
    job.step(0)
    job.step(1)
    path = job.path / "events/000000000001/000000000001_worker_0.tfevents"
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data)
    tensor = create_trial(str(job.path)).tensor("w")
    with pytest.raises(
        SMDebugRuntimeError, match=r"damaged header.*000000000001_worker_0\.tfevents, offset 0"
    ):
        tensor.value(1)
    assert tensor.value(0)[0] == 0


def test_a_missing_event_file_is_not_waited_for_when_later_ones_are_there(job: Job):
    job.step(0)
    job.step(1)
    (job.path / "events/000000000000/000000000000_worker_0.tfevents").unlink()
    with pytest.raises(TensorUnavailableForStep):
        create_trial(str(job.path)).tensor("w").value(0)


def test_a_finished_job_without_all_collections_files_is_told(tmp_path: Path):
    job = Job(tmp_path / "trial", workers=2)
    (job.path / "collections/000000000/worker_1_collections.json").unlink()
    job.end()
    with pytest.raises(MissingCollectionFiles, match="1 of 2"):
        create_trial(str(job.path))


def test_folders_with_two_underscores_do_not_change_names_of_workers(tmp_path: Path):
    job = Job(tmp_path / "my__trial")
    job.step(0)
    trial = create_trial(str(job.path))
    assert trial.tensor("w").value(0, worker="worker_0")[0] == 0


def test_devices_of_tensorflow_are_workers(job: Job):
    device = "/job:worker/replica:0/task:1/device:GPU:6"
    with FileWriter(trial_dir=str(job.path), step=0, worker=device) as writer:
        writer.write_tensor(np.ones(1), "w")
    assert create_trial(str(job.path)).tensor("w").workers(0) == [device]


def test_inputs_are_given_in_their_order(job: Job):
    job.step(0, in_10=np.array([10]), in_2=np.array([2]), labels=np.array([1]))
    trial = create_trial(str(job.path))
    trial.collection("inputs").include("^in_")
    assert [value[0] for value in trial.inputs(0, modes.TRAIN)] == [2, 10]
    assert trial.labels(0)[0][0] == 1
    assert trial.predictions(0) == []


def test_buckets_are_refused_with_a_remedy():
    with pytest.raises(SMDebugNotImplementedError, match="copy or mount"):
        create_trial("s3://bucket/prefix")
