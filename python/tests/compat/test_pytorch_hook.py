"""The hook of PyTorch: names, steps, what is saved; the training itself does not change."""

from __future__ import annotations

import copy
import json
import os
import pickle
import threading
from pathlib import Path

import luff.compat.smdebug.pytorch as smd
import numpy as np
import pytest
import torch
from luff.compat.smdebug.exceptions import (
    InvalidCollectionConfiguration,
    SMDebugRuntimeError,
    SMDebugValueError,
)
from torch import nn

MODES = smd.modes


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.relu(self.relu(self.fc(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.block(x))


def train(hook, steps=3, model=None, modes=(), loss=None, before=None):
    """Trains; with `modes`, each step is of the next mode."""
    torch.manual_seed(0)
    model = model or Net()
    loss = loss or nn.CrossEntropyLoss()
    if hook is not None:
        hook.register_module(model)
        hook.register_loss(loss)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        if modes:
            hook.set_mode(modes[step % len(modes)])
        if before:
            before(step)
        optimizer.zero_grad()
        value = loss(model(torch.randn(5, 4)), torch.randint(0, 3, (5,)))
        value.backward()
        optimizer.step()
    return model


def every(out: Path, **options):
    options.setdefault("save_config", smd.SaveConfig(save_interval=1))
    return smd.Hook(out_dir=str(out), **options)


def test_names_are_those_of_smdebug(tmp_path: Path):
    hook = every(tmp_path / "t", save_all=True)
    train(hook, 1)
    hook.close()
    parameters = [f"Net_{name}" for name, _ in Net().named_parameters()]
    modules = ["Net", "block", "block.fc", "head"]
    expected = [*parameters, *(f"gradient/{name}" for name in parameters)]
    expected += [f"{name}_{what}_0" for name in modules for what in ("input", "output")]
    expected += [f"block.relu_{what}_{k}" for what in ("input", "output") for k in (0, 1)]
    expected += [f"CrossEntropyLoss_{what}" for what in ("input_0", "input_1", "output_0")]
    assert smd.create_trial(str(tmp_path / "t")).tensor_names() == sorted(expected)


def test_without_configuration_losses_are_saved_at_step_0_500_1000(tmp_path: Path):
    hook = smd.Hook(out_dir=str(tmp_path / "t"))
    train(hook, 2)
    hook.close()
    trial = smd.create_trial(str(tmp_path / "t"))
    assert trial.tensor_names() == ["CrossEntropyLoss_output_0"]
    assert trial.steps() == [0]
    assert trial.loaded_all_steps


def test_values_are_those_that_the_forward_pass_used(tmp_path: Path):
    hook, seen = every(tmp_path / "t", include_collections=["weights", "gradients"]), []
    model = Net()
    train(hook, 3, model, before=lambda _: seen.append(model.head.weight.detach().clone().numpy()))
    hook.close()
    trial = smd.create_trial(str(tmp_path / "t"))
    for step, weight in enumerate(seen):
        np.testing.assert_array_equal(trial.tensor("Net_head.weight").value(step), weight)
        if step:
            update = seen[step - 1] - np.float32(0.1) * trial.tensor("gradient/Net_head.weight").value(
                step - 1
            )
            np.testing.assert_allclose(update, weight, rtol=1e-5, atol=1e-7)


def test_global_steps_count_all_modes(tmp_path: Path):
    hook = every(tmp_path / "t", include_collections=["gradients", "weights"])
    train(hook, 6, modes=[MODES.TRAIN, MODES.EVAL])
    hook.close()
    trial = smd.create_trial(str(tmp_path / "t"))
    assert trial.steps() == [0, 1, 2, 3, 4, 5]
    assert trial.steps(MODES.TRAIN) == trial.steps(MODES.EVAL) == [0, 1, 2]
    assert [trial.global_step(MODES.EVAL, k) for k in range(3)] == [1, 3, 5]
    assert trial.tensor("gradient/Net_head.weight").steps(MODES.EVAL) == []
    assert trial.tensor("Net_head.weight").steps(MODES.EVAL) == [0, 1, 2]


def test_modes_and_collections_have_configurations_of_their_own(tmp_path: Path):
    hook = every(
        tmp_path / "t",
        include_collections=["weights"],
        save_config=smd.SaveConfig({MODES.TRAIN: smd.SaveConfigMode(save_interval=2)}),
    )
    hook.get_collection("weights").save_config = {MODES.EVAL: smd.SaveConfigMode(save_steps=[1], end_step=0)}
    train(hook, 8, modes=[MODES.TRAIN, MODES.EVAL])
    hook.close()
    trial = smd.create_trial(str(tmp_path / "t"))
    assert trial.tensor("Net_head.weight").steps(MODES.TRAIN) == [0, 2]
    assert trial.tensor("Net_head.weight").steps(MODES.EVAL) == [1]
    assert trial.tensor("CrossEntropyLoss_output_0").steps(MODES.EVAL) == [0]


def test_reductions_have_one_definition(tmp_path: Path):
    config = smd.ReductionConfig(reductions=["std", "variance", "mean"], abs_norms=["l2"], norms=["l1"])
    hook = every(tmp_path / "t", include_collections=["weights"], reduction_config=config)
    model = Net()
    weight = model.head.weight.detach().numpy().copy()
    train(hook, 1, model)
    hook.close()
    tensor = smd.create_trial(str(tmp_path / "t")).tensor("Net_head.weight")
    assert tensor.reduction_value(0, "std") == pytest.approx(weight.std(), rel=1e-6)
    assert tensor.reduction_value(0, "variance") == pytest.approx(weight.var(), rel=1e-6)
    assert tensor.reduction_value(0, "l1") == pytest.approx(np.abs(weight).sum(), rel=1e-6)
    assert tensor.reduction_value(0, "l2", abs=True) == pytest.approx(np.sqrt((weight**2).sum()), rel=1e-6)
    assert set(tensor.reduction_values(0)) == {
        ("std", False), ("variance", False), ("mean", False), ("l1", False), ("l2", True),
    }  # fmt: skip


def test_integers_and_bfloat16_are_saved_too(tmp_path: Path):
    config = smd.ReductionConfig(reductions=["mean", "std"], save_raw_tensor=True)
    hook = every(tmp_path / "t", save_all=True, reduction_config=config)
    model = nn.Linear(4, 3).to(torch.bfloat16)
    hook.register_module(model)
    hook.register_loss(loss := nn.CrossEntropyLoss())
    loss(model(torch.ones(2, 4, dtype=torch.bfloat16)), torch.tensor([1, 2])).backward()
    hook.close()
    trial = smd.create_trial(str(tmp_path / "t"))
    np.testing.assert_array_equal(trial.tensor("CrossEntropyLoss_input_1").value(0), [1, 2])
    assert trial.tensor("CrossEntropyLoss_input_1").reduction_value(0, "mean") == 1.5
    np.testing.assert_array_equal(
        trial.tensor("Linear_weight").value(0), model.weight.detach().float().numpy()
    )


def test_scalars_belong_to_the_step_that_they_were_given_in(tmp_path: Path):
    hook = smd.Hook(out_dir=str(tmp_path / "t"), save_config=smd.SaveConfig(save_interval=4))
    hook.save_scalar("before", 7)
    model, loss = Net(), nn.CrossEntropyLoss()
    hook.register_module(model)
    hook.register_loss(loss)
    for step in range(6):
        loss(model(torch.randn(5, 4)), torch.randint(0, 3, (5,))).backward()
        hook.save_scalar("number", 10 * step)
    hook.close()
    trial = smd.create_trial(str(tmp_path / "t"))
    assert {s: v.tolist() for s, v in trial.tensor("scalar/number").values().items()} == {
        step: [10 * step] for step in range(6)
    }
    assert trial.tensor("scalar/before").steps() == [0]
    assert trial.tensor("CrossEntropyLoss_output_0").steps() == [0, 4]


def test_custom_tensors_go_to_their_collection(tmp_path: Path):
    hook = every(tmp_path / "t")
    train(hook, 2, before=lambda step: hook.save_tensor("mine", np.full(2, step), "default"))
    hook.close()
    trial = smd.create_trial(str(tmp_path / "t"))
    assert trial.tensor_names(collection="default") == ["mine"]
    np.testing.assert_array_equal(trial.tensor("mine").value(1), [1, 1])


def test_module_tensors_can_be_asked_for_before_the_model_is_registered(tmp_path: Path):
    hook = every(tmp_path / "t", include_collections=["mine"])
    model = Net()
    hook.get_collection("mine").add_module_tensors(model.block.fc, inputs=True, outputs=False)
    train(hook, 1, model)
    hook.close()
    trial = smd.create_trial(str(tmp_path / "t"))
    assert trial.tensor_names(collection="mine") == ["block.fc_input_0"]


def test_the_training_is_bit_by_bit_the_same(tmp_path: Path):
    bare = train(None, 5)
    hook = every(tmp_path / "t", save_all=True, reduction_config=smd.ReductionConfig(reductions=["mean"]))
    watched = train(hook, 5)
    hook.close()
    for a, b in zip(bare.parameters(), watched.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_disk_that_refuses_does_not_end_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    hook = every(tmp_path / "t", save_all=True)

    def refuse(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("luff.compat.smdebug.core.writer.TSAccessFile", refuse)
    train(hook, 3)
    assert hook._write_errors > 0


def test_a_model_with_hooks_can_be_pickled_and_copied(tmp_path: Path):
    hook = every(tmp_path / "t", save_all=True)
    model = train(hook, 1)
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert torch.equal(other(torch.ones(1, 4)), model.head(model.block(torch.ones(1, 4))))
    assert hook.step == 0  # the copies count no steps


def test_a_forked_child_writes_nothing(tmp_path: Path):
    hook = every(tmp_path / "t", save_all=True)
    model = train(hook, 1)
    child = os.fork()
    if child == 0:
        try:
            model(torch.ones(1, 4))
            hook.save_scalar("child", 1)
            hook.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert not (tmp_path / "t/training_job_end.ts").exists()
    hook.close()
    trial = smd.create_trial(str(tmp_path / "t"))
    assert trial.steps() == [0]
    assert "scalar/child" not in trial.tensor_names()


def test_threads_share_a_file_without_harm(tmp_path: Path):
    hook = every(tmp_path / "t", save_all=True)
    model = train(hook, 1)
    hook.forward_pre_hook(model, ())
    threads = [
        threading.Thread(target=lambda: [model.block(torch.ones(64, 4)) for _ in range(20)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hook.close()
    trial = smd.create_trial(str(tmp_path / "t"))
    for name in trial.tensor_names(step=1):
        assert trial.tensor(name).value(1) is not None


def test_a_finished_trial_is_not_written_over(tmp_path: Path):
    hook = every(tmp_path / "t")
    train(hook, 1)
    hook.close()
    with pytest.raises(SMDebugRuntimeError, match="choose another or delete it"):
        smd.Hook(out_dir=str(tmp_path / "t"), save_all=True)


def test_only_one_process_writes_a_directory(tmp_path: Path):
    first, second = every(tmp_path / "t"), every(tmp_path / "t")
    train(first, 1)
    train(second, 2)
    second.close()
    assert not (tmp_path / "t/training_job_end.ts").exists()
    first.close()
    assert smd.create_trial(str(tmp_path / "t")).steps() == [0]
    assert not (tmp_path / "t/claim.smd").exists()


def test_a_collection_that_can_match_nothing_is_told(tmp_path: Path):
    hook = every(tmp_path / "t", include_collections=["mine"])
    hook.get_collection("mine")
    with pytest.raises(InvalidCollectionConfiguration, match="'mine'"):
        train(hook, 1)


def test_an_error_with_the_default_configuration_ends_in_the_hook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from luff.compat.smdebug.core.error_handling_agent import error_handling_agent

    hook = smd.Hook(out_dir=str(tmp_path / "t"))
    monkeypatch.setattr(hook, "_increment_step", lambda: 1 / 0)
    train(hook, 2)
    assert error_handling_agent.disable_smdebug


def test_a_wrong_mode_is_told(tmp_path: Path):
    with pytest.raises(SMDebugValueError, match="'train'"):
        every(tmp_path / "t").set_mode("train")


def test_counters_go_on_after_a_restart_from_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    config = tmp_path / "checkpoint.json"
    config.write_text(json.dumps({"LocalPath": str(checkpoints)}))
    monkeypatch.setenv("CHECKPOINT_CONFIG_FILE_PATH", str(config))
    hook = every(tmp_path / "a")

    def save(step):
        if step == 2:
            (checkpoints / "model.pt").write_text("weights")

    train(hook, 4, modes=[MODES.TRAIN], before=save)
    again = every(tmp_path / "b")
    assert (again.step, again.mode_steps[MODES.TRAIN]) == (
        1,
        1,
    )  # of the last step before the checkpoint was detected
    train(again, 1, modes=[MODES.TRAIN])
    again.close()
    hook.close()  # the first job, whose last step was still open
    assert smd.create_trial(str(tmp_path / "b")).steps() == [2]


def test_tensorboard_gets_scalars_and_histograms(tmp_path: Path):
    hook = every(tmp_path / "t", include_collections=["weights"], export_tensorboard=True)
    train(hook, 2, modes=[MODES.TRAIN])
    hook.close()
    files = sorted((tmp_path / "t/tensorboard/TRAIN").glob("*.tfevents"))
    assert len(files) == 2
    assert b"weights/Net_head.weight" in files[0].read_bytes()
    assert b"CrossEntropyLoss_output_0" in files[0].read_bytes()
