"""Users of smdebug and SageMaker Debugger under `luff run`, with their scripts, rules and jobs unchanged."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from luff.compat.sagemaker import CollectionConfig, DebuggerHookConfig, Estimator, Job, Rule, rule_configs
from luff.compat.sagemaker.exceptions import UnexpectedStatusException
from luff.compat.smdebug import create_trial, modes
from luff.errors import InvalidArgumentError

from .conftest import Luff

PYTHON = {"LUFF_PYTHON": sys.executable}

SCRIPT = """
import sys

import torch
from torch import nn

import smdebug.pytorch as smd
from smdebug.trials import create_trial

torch.manual_seed(0)
model, loss = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if len(sys.argv) > 1:
    hook = smd.Hook(
        out_dir=sys.argv[1], include_collections=["weights"], save_config=smd.SaveConfig(save_interval=20)
    )
else:
    hook = smd.get_hook(create_if_not_exists=True)
hook.register_module(model)
hook.register_loss(loss)
for step in range(60):
    optimizer.zero_grad()
    loss(model(torch.randn(8, 4)), torch.randint(0, 3, (8,))).backward()
    optimizer.step()
hook.close()
print(create_trial(hook.out_dir).steps())
"""

BARE = SCRIPT.split("if len(sys.argv)")[0].replace("import smdebug.pytorch as smd\n", "").replace(
    "from smdebug.trials import create_trial\n", ""
) + """
for step in range(60):
    optimizer.zero_grad()
    loss(model(torch.randn(8, 4)), torch.randint(0, 3, (8,))).backward()
    optimizer.step()
"""  # fmt: skip

RULES = """
from smdebug.rules.rule import Rule


class Small(Rule):
    def __init__(self, base_trial, threshold=0.5):
        super().__init__(base_trial, other_trials=None)
        self.threshold = float(threshold)

    def invoke_at_step(self, step):
        return any(
            self.base_trial.tensor(name).reduction_value(step, "mean", abs=True) < self.threshold
            for name in self.base_trial.tensor_names(regex="^gradient", step=step)
        )
"""


def test_an_unchanged_script_writes_smdebugs_files_and_luff_looks_on(luff: Luff):
    script = luff.cwd / "train.py"
    script.write_text(SCRIPT)
    run, out = luff.tmp / "run", luff.tmp / "out"
    code, stdout, stderr = luff(
        "run", "--compat", "smdebug", "--run", str(run), "--", sys.executable, str(script), str(out)
    )
    assert (code, stdout) == (0, "[0, 20, 40]\n"), stderr
    assert "ok: 60 steps" in stderr
    written = create_trial(str(out))
    assert written.loaded_all_steps
    assert written.tensor("Sequential_0.weight").steps() == [0, 20, 40]
    recorded = create_trial(str(run))
    assert len(recorded.steps(modes.TRAIN)) == 60
    mean = recorded.tensor("Sequential_0.weight").reduction_value(20, "mean", mode=modes.TRAIN)
    assert abs(mean - written.tensor("Sequential_0.weight").value(20).mean()) < 1e-6


NOTEBOOK = """
import sys

import numpy as np
from smdebug.core.modes import ModeKeys
from smdebug.trials import create_trial

trial = create_trial(sys.argv[1])
losses = trial.tensor(trial.tensor_names(collection="losses")[0])
for mode in (ModeKeys.TRAIN, ModeKeys.EVAL):
    values = np.stack(list(losses.values(mode=mode).values()))
    print(mode.name, losses.steps(mode=mode)[-1], values.shape, values.dtype)
print(f"{losses.value(0, mode=ModeKeys.TRAIN):.3f}")
for name in ("inputs", "outputs", "labels"):
    for tensor_name in trial.tensor_names(collection=name):
        tensor = trial.tensor(tensor_name)
        print(tensor_name, tensor.steps(mode=ModeKeys.TRAIN), tensor.value(0, mode=ModeKeys.TRAIN).shape)
print(trial.tensor_names(regex="^gradient"))
try:
    trial.tensor("Sequential_0.weigth")
except Exception as error:
    print(type(error).__name__, error)
"""

EVALUATES = (
    BARE
    + """
    if step % 20 == 19:
        with torch.no_grad():
            loss(model(torch.randn(8, 4)), torch.randint(0, 3, (8,)))
"""
)


@pytest.mark.parametrize("rules", ["all", "none"])
def test_a_notebook_reads_what_a_plain_run_recorded(luff: Luff, rules: str):
    """Values of one shape; and inputs, outputs and labels of the first step, which opened the run."""
    (luff.cwd / "train.py").write_text(EVALUATES)
    (luff.cwd / "notebook.py").write_text(NOTEBOOK)
    run = str(luff.tmp / "run")
    code, _, stderr = luff("run", "--rules", rules, "--run", run, "--", sys.executable, "train.py")
    assert code == 0, stderr
    read = subprocess.run(
        [sys.executable, "-m", "luff.compat.smdebug", "notebook.py", run],
        cwd=luff.cwd, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert read.returncode == 0, read.stderr
    shown = read.stdout.splitlines()
    assert shown[:2] == ["TRAIN 59 (60,) float64", "EVAL 2 (3,) float64"]
    assert 0 < float(shown[2]) < 5
    assert {
        "Sequential_input_0 [0] (8, 4)",
        "Sequential_output_0 [0] (8, 3)",
        "1_output_0 [0] (8, 8)",
        "CrossEntropyLoss_input_1 [0] (8,)",
    } <= set(shown)
    assert "'gradient/Sequential_2.weight'" in shown[-2]
    assert shown[-1].startswith("TensorUnavailable tensor 'Sequential_0.weigth' was not saved")
    assert "nearest: 'Sequential_0.weight', 'Sequential_2.weight'" in shown[-1]


def test_what_the_first_step_opens_with_is_what_it_computed(luff: Luff):
    """The values of step 0 are those of the program, also where it changes them in place."""
    script = BARE.replace("nn.ReLU()", "nn.ReLU(inplace=True)").replace(
        "loss(model(torch.randn(8, 4)),",
        "x = torch.randn(8, 4); step or torch.save((x, model(x)), 'first.pt'); loss(model(x),",
    )
    (luff.cwd / "train.py").write_text(script)
    run = str(luff.tmp / "run")
    code, _, stderr = luff("run", "--rules", "none", "--run", run, "--", sys.executable, "train.py")
    assert code == 0, stderr
    import torch

    x, y = torch.load(luff.cwd / "first.pt")
    trial = create_trial(run)
    # The model was called twice before the first backward pass: the calls are numbered.
    for call in (0, 1):
        np.testing.assert_array_equal(trial.tensor(f"Sequential_input_{call}").value(0), x)
        np.testing.assert_array_equal(trial.tensor(f"Sequential_output_{call}").value(0), y.detach())
        assert (trial.tensor(f"0_output_{call}").value(0) < 0).any()
        assert (trial.tensor(f"1_output_{call}").value(0) >= 0).all()


def test_set_mode_is_heard_by_the_run_beside_the_hook(luff: Luff):
    """An evaluation with a backward pass is one in smdebug's files and in the run."""
    script = SCRIPT.replace(
        "    optimizer.step()\n",
        """    optimizer.step()
    if step % 20 == 19:
        hook.set_mode(smd.modes.EVAL)
        x = torch.randn(8, 4, requires_grad=True)
        loss(model(x), torch.randint(0, 3, (8,))).backward()
        hook.set_mode(smd.modes.TRAIN)
""",
    ).replace("for step in range(60):", "hook.set_mode(smd.modes.TRAIN)\nfor step in range(60):")
    (luff.cwd / "train.py").write_text(script)
    run, out = luff.tmp / "run", luff.tmp / "out"
    code, _, stderr = luff(
        "run", "--compat", "smdebug", "--run", str(run), "--", sys.executable, "train.py", str(out)
    )
    assert code == 0, stderr
    for trial in (create_trial(str(run)), create_trial(str(out))):
        assert trial.steps(modes.EVAL)[0] == 0
    recorded = create_trial(str(run))
    assert len(recorded.steps(modes.TRAIN)) == 60
    assert recorded.steps(modes.EVAL) == [0, 1, 2]
    assert recorded.steps()[20] == 20
    assert recorded.mode(20) is modes.EVAL


def test_another_name_is_refused(luff: Luff):
    code, _, stderr = luff("run", "--compat", "other", "--", "true")
    assert code == 2
    assert "--compat is 'other'; there is smdebug" in stderr


def test_a_job_as_sagemaker_describes_it(luff: Luff):
    (luff.cwd / "train.py").write_text(BARE)
    (luff.cwd / "checks.py").write_text(RULES)
    Job(
        DebuggerHookConfig(
            container_local_output_path="out",
            hook_parameters={"save_interval": "10"},
            collection_configs=[CollectionConfig("gradients")],
        ),
        rules=[
            Rule.custom(
                "small", source="checks.py", rule_to_invoke="Small", rule_parameters={"threshold": "100"},
                actions=rule_configs.ActionList(rule_configs.StopTraining(), rule_configs.Email("a@example.org")),
            ),
            Rule.sagemaker(rule_configs.exploding_tensor()),
        ],
    ).write(luff.cwd / "job.json")  # fmt: skip
    findings = luff.tmp / "findings.jsonl"
    code, _, stderr = luff(
        "run", "--config", "job.json", "--run", str(luff.tmp / "run"), "--findings", str(findings), "--",
        sys.executable, "train.py", **PYTHON,
    )  # fmt: skip
    assert code in (0, 76), stderr  # sixty short steps may end before the stop is agreed on
    assert "no mail is sent; set LUFF_MAIL_HOST" in stderr
    found = [json.loads(line) for line in findings.read_text().splitlines()]
    assert {one["rule"] for one in found if "rule" in one} == {"Small"}
    assert "Small" in stderr
    written = create_trial(str(luff.cwd / "out"))
    assert written.tensor("gradient/Sequential_0.weight").steps(modes.TRAIN)[0] == 0


def test_the_same_file_configures_a_hook_in_the_script(luff: Luff):
    (luff.cwd / "train.py").write_text(SCRIPT)
    out = luff.tmp / "out"
    job = Job(
        DebuggerHookConfig(
            container_local_output_path=str(out),
            hook_parameters={"save_interval": "30"},
            collection_configs=[CollectionConfig("weights")],
        )
    )
    job.write(luff.cwd / "job.json")
    code, stdout, stderr = luff(
        "run", "--compat", "smdebug", "--config", "job.json", "--run", str(luff.tmp / "run"), "--",
        sys.executable, "train.py", **PYTHON,
    )  # fmt: skip
    assert (code, stdout) == (0, "[0, 30]\n"), stderr
    assert Path(out, "training_job_end.ts").exists()


def test_a_mistake_in_a_job_is_told_before_it_begins(luff: Luff):
    (luff.cwd / "job.json").write_text('{"HookParameters": {"save_intervall": "5"}}')
    code, _, stderr = luff("run", "--config", "job.json", "--", "true", **PYTHON)
    assert code == 2
    assert "unknown key 'save_intervall' at HookParameters; nearest: 'save_interval'" in " ".join(
        stderr.split()
    )
    assert "job.json" in stderr


LAUNCHER = """
import sagemaker
from sagemaker.debugger import CollectionConfig, DebuggerHookConfig, Rule, rule_configs
from sagemaker.pytorch import PyTorch

from smdebug.trials import create_trial

estimator = PyTorch(
    entry_point="train.py",
    source_dir="src",
    role=sagemaker.get_execution_role(),
    instance_type="ml.p3.2xlarge",
    instance_count=1,
    framework_version="1.12.0",
    py_version="py38",
    hyperparameters={"steps": 60, "lr": 0.0},
    rules=[
        Rule.sagemaker(rule_configs.loss_not_decreasing(), rule_parameters={"collection_names": "losses"}),
        Rule.sagemaker(rule_configs.exploding_tensor()),
    ],
    debugger_hook_config=DebuggerHookConfig(
        s3_output_path="s3://bucket/debug", collection_configs=[CollectionConfig("losses", {"save_interval": "1"})]
    ),
)
estimator.fit({"train": "file://data"}, wait=WAIT)
if not WAIT:
    job = estimator.latest_training_job
    assert {row["RuleEvaluationStatus"] for row in job.rule_job_summary()} <= {"InProgress", "IssuesFound"}
    job.wait(logs=False)
for row in estimator.latest_training_job.rule_job_summary():
    print(row["RuleConfigurationName"], row["RuleEvaluationStatus"], row.get("StatusDetails", "")[:26])
print(estimator.latest_training_job.describe()["TrainingJobStatus"])
trial = create_trial(estimator.latest_job_debugger_artifacts_path())
print(len(trial.steps()), trial.tensor_names(collection="losses"))
"""

ENTRY = (
    BARE.replace(
        "import sys\n",
        "import argparse, os, sys\nparser = argparse.ArgumentParser()\n"
        'parser.add_argument("--steps", type=int)\nparser.add_argument("--lr", type=float)\n'
        "arguments = parser.parse_args()\nassert os.path.isdir(os.environ['SM_MODEL_DIR'])\n"
        "print('data in', os.environ['SM_CHANNEL_TRAIN'])\n",
        1,
    )
    .replace("lr=0.1", "lr=arguments.lr")
    .replace("range(60)", "range(arguments.steps)")
    .replace("torch.randn(8, 4)", "torch.ones(8, 4)")
    .replace("torch.randint(0, 3, (8,))", "torch.zeros(8, dtype=torch.long)")
)


@pytest.mark.parametrize("wait", [True, False])
def test_a_launcher_of_jobs_runs_unchanged(luff: Luff, wait: bool):
    (luff.cwd / "src").mkdir()
    (luff.cwd / "src" / "train.py").write_text(ENTRY)
    (luff.cwd / "launch.py").write_text(LAUNCHER.replace("WAIT", str(wait)))
    done = subprocess.run(
        [sys.executable, "-m", "luff.compat.sagemaker", "launch.py"],
        cwd=luff.cwd, capture_output=True, text=True, timeout=200,
        env={**luff.environment, "LUFF_EXECUTABLE": str(luff.executable), **PYTHON},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-4:] == [
        "LossNotDecreasing IssuesFound RuleEvaluationConditionMet",
        "ExplodingTensor NoIssuesFound ",
        "Completed",
        "60 ['CrossEntropyLoss_output_0']",
    ], done.stdout
    assert (f"data in {luff.cwd / 'data'}" in lines) == wait


def test_a_job_goes_on_when_the_notebook_is_killed(luff: Luff):
    done = luff.cwd / "done"
    (luff.cwd / "train.py").write_text(f"import time\ntime.sleep(2)\nopen({str(done)!r}, 'w').close()\n")
    notebook = "import os, signal\nfrom luff.compat.sagemaker import Estimator\n"
    notebook += (
        "Estimator('train.py', debugger_hook_config=False).fit(wait=False)\nos.killpg(0, signal.SIGKILL)"
    )
    killed = subprocess.run(
        [sys.executable, "-c", notebook],
        cwd=luff.cwd,
        env=luff.environment,
        start_new_session=True,
        timeout=100,
    )
    assert killed.returncode == -signal.SIGKILL
    assert not done.exists()
    end = time.monotonic() + 60
    while not done.exists() and time.monotonic() < end:
        time.sleep(0.1)
    assert done.exists()


def test_a_job_that_fails_is_an_error(luff: Luff, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(luff.cwd)
    monkeypatch.setenv("LUFF_EXECUTABLE", str(luff.executable))
    (luff.cwd / "train.py").write_text("print('no data')\nraise SystemExit(3)")
    estimator = Estimator("train.py", debugger_hook_config=False)
    with pytest.raises(UnexpectedStatusException, match="exit code 3, its last words: 'no data'") as failure:
        estimator.fit()
    assert failure.value.actual_status == "Failed"
    with pytest.raises(InvalidArgumentError, match=r"s3://data.*expected a directory of this machine"):
        estimator.fit("s3://data")
    with pytest.raises(InvalidArgumentError, match="expected the entry_point"):
        Estimator("other.py").fit()
