"""Users of smdebug and SageMaker Debugger under `luff run`, with their scripts, rules and jobs unchanged."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from luff.compat.sagemaker import CollectionConfig, DebuggerHookConfig, Job, Rule, rule_configs
from luff.compat.smdebug import create_trial, modes

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
