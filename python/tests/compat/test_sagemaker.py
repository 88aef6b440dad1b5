"""Jobs as users of SageMaker describe them, and their translation for Luff."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from luff import config as luff_config
from luff.compat.sagemaker import (
    CollectionConfig,
    DebuggerHookConfig,
    FrameworkProfile,
    Job,
    ProfilerConfig,
    ProfilerRule,
    PythonProfilingConfig,
    Rule,
    TensorBoardOutputConfig,
    read_job,
    rule_configs,
)
from luff.compat.sagemaker.job import capture, to_luff
from luff.compat.smdebug.core.json_config import collect_hook_config_params, get_json_config_as_dict
from luff.errors import InvalidArgumentError

tomllib = pytest.importorskip("tomllib")


def job() -> Job:
    return Job(
        DebuggerHookConfig(
            "s3://bucket/prefix",
            hook_parameters={"train.save_interval": 5, "save_all": False},
            collection_configs=[
                CollectionConfig(
                    "relu", {"include_regex": "relu_output, tanh", "reductions": "mean,abs_max"}
                ),
                CollectionConfig("weights", {"save_steps": "1,3"}),
            ],
        ),
        rules=[
            Rule.sagemaker(
                rule_configs.vanishing_gradient(),
                rule_parameters={"threshold": 1e-9},
                actions=rule_configs.ActionList(rule_configs.StopTraining(), rule_configs.Email("a@b.org")),
            ),
            Rule.sagemaker(rule_configs.loss_not_decreasing(), name="Loss"),
            Rule.custom("mine", source="checks.py", rule_to_invoke="TooSmall", rule_parameters={"limit": 5}),
        ],
        tensorboard_output_config=TensorBoardOutputConfig("s3://bucket/tb", "/tmp/tensorboard"),
    )


def test_a_job_is_one_file_that_comes_back(tmp_path: Path):
    path = tmp_path / "job.json"
    job().write(path)
    found = read_job(path)
    assert found == job().to_dict()
    assert found["DebugHookConfig"]["HookParameters"] == {"train.save_interval": "5", "save_all": "false"}
    names = [one["CollectionName"] for one in found["DebugHookConfig"]["CollectionConfigurations"]]
    assert names == ["relu", "weights", "gradients", "losses"]  # what the rules need is saved, too


def test_it_becomes_luffs_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("LUFF_MAIL_HOST", raising=False)
    path = tmp_path / "job.json"
    job().write(path)
    text, told = to_luff(read_job(path))
    found = tomllib.loads(text)
    assert found["parameters"] == "original"
    assert found["output"] == {"tensorboard": "/tmp/tensorboard"}
    assert found["rules"] == ["VanishingGradient", "LossNotDecreasing", "checks.py:TooSmall"]
    assert found["rule"]["VanishingGradient"] == {"threshold": "1e-09"}
    assert found["rule"]["checks.py:TooSmall"] == {"limit": "5"}
    assert [(a["kind"], a["rules"], a["dry_run"]) for a in found["action"]] == [
        ("stop", ["VanishingGradient"], False)
    ]
    assert "LUFF_MAIL_HOST" in told[0]
    described = {one["name"]: one for one in luff_config.describe(json.dumps(found["capture"]))}
    assert described["relu"]["include"] == ["relu_output", "tanh"]
    assert described["relu"]["forms"] == ["summary"]
    assert described["weights"]["save"]["TRAIN"] == {
        "save_interval": 5, "save_steps": [1, 3], "start_step": 0, "end_step": None,
    }  # fmt: skip
    monkeypatch.setenv("LUFF_MAIL_HOST", "mail.example.org")
    monkeypatch.setenv("LUFF_MAIL_FROM", "luff@example.org")
    mail = tomllib.loads(to_luff(read_job(path))[0])["action"][1]
    assert (mail["kind"], mail["to"], mail["host"]) == ("mail", ["a@b.org"], "mail.example.org")


def test_the_jobs_directories_get_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "hook.json"
    path.write_text(json.dumps({"LocalPath": "out", "HookParameters": {"tensorboard_dir": "tb"}}))
    monkeypatch.delenv("LUFF_COMPAT", raising=False)
    assert tomllib.loads(to_luff(read_job(path))[0])["output"] == {"smdebug": "out", "tensorboard": "tb"}
    monkeypatch.setenv("LUFF_COMPAT", "smdebug")  # in this case the hook in the script writes them
    assert "output" not in tomllib.loads(to_luff(read_job(path))[0])


def test_the_report_of_a_boosted_model_is_no_rule(tmp_path: Path):
    path = tmp_path / "job.json"
    report = rule_configs.create_xgboost_report()
    Job(rules=[Rule.sagemaker(report, actions=rule_configs.StopTraining())]).write(path)
    text, told = to_luff(read_job(path))
    found = tomllib.loads(text)
    assert found["rules"] == "none"
    assert found["output"] == {"report": "CreateXgboostReport/xgboost_report.html"}
    assert told == ["rule CreateXgboostReport: it finds nothing, so no action follows"]
    assert "action" not in found
    described = {one["name"]: one for one in luff_config.describe(json.dumps(found["capture"]))}
    assert described["predictions"]["save"]["TRAIN"]["save_interval"] == 5
    assert described["hyperparameters"]["save"]["TRAIN"]["save_steps"] == [0]
    assert "raw" in described["labels"]["forms"]
    here = Rule.sagemaker(report, name="mine", container_local_output_path=str(tmp_path / "out"))
    Job(rules=[here, Rule.sagemaker(rule_configs.tree_depth())]).write(path)
    found = tomllib.loads(to_luff(read_job(path))[0])
    assert found["rules"] == ["TreeDepth"]
    assert found["output"] == {"report": str(tmp_path / "out" / "xgboost_report.html")}


def test_the_hooks_file_alone_will_do(tmp_path: Path):
    path = tmp_path / "debughookconfig.json"
    path.write_text(json.dumps({"S3OutputPath": "s3://b", "HookParameters": {"save_all": "true"}}))
    text, told = to_luff(read_job(path))
    assert not told
    assert list(tomllib.loads(text)) == ["capture"]
    assert tomllib.loads(text)["capture"]["save_all"] is True


def test_a_script_with_a_hook_reads_the_jobs_file_too(tmp_path: Path):
    path = tmp_path / "job.json"
    job().write(path)
    hook = collect_hook_config_params(get_json_config_as_dict(str(path)))
    assert hook["tensorboard_dir"] == "/tmp/tensorboard"


def test_every_rule_of_the_sdk_has_its_collections():
    others = ("get_collection", "is_valid_action_object")
    made = [
        getattr(rule_configs, name)()
        for name in rule_configs.__all__
        if name.islower() and name not in others
    ]
    names = {one["DebugRuleConfiguration"]["RuleConfigurationName"] for one in made}
    assert len(names) == len(made) == 21
    assert rule_configs.dead_relu()["CollectionConfigurations"][0]["CollectionParameters"] == {
        "include_regex": ".*relu_output", "save_interval": "500",
    }  # fmt: skip
    assert rule_configs.get_collection("nothing") is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"HookConfig": {}, "DebugHookConfig": {}},
            "unknown key 'HookConfig' at the top; nearest: 'DebugHookConfig'",
        ),
        (
            {"HookParameters": {"save_intervall": 1}},
            "'save_intervall' at HookParameters; nearest: 'save_interval'",
        ),
        ({"DebugHookConfig": {}, "DebugRuleConfigurations": {}}, "expected a list"),
        (
            {
                "DebugHookConfig": {},
                "DebugRuleConfigurations": [{"RuleConfigurationName": "a", "RuleParameters": {}}],
            },
            r"found no rule_to_invoke at DebugRuleConfigurations\[0\]",
        ),
        (
            {"DebugHookConfig": {}, "DebugRuleConfigurations": [{"Rule": 1}]},
            r"'Rule' at DebugRuleConfigurations\[0\]",
        ),
    ],
)
def test_a_mistake_is_told_with_file_and_place(tmp_path: Path, change, message):
    path = tmp_path / "job.json"
    path.write_text(json.dumps(change))
    with pytest.raises(InvalidArgumentError, match=message) as told:
        read_job(path)
    assert str(path) in str(told.value)


def test_a_collection_that_nothing_is_known_of_needs_an_expression():
    with pytest.raises(InvalidArgumentError, match="'mine' has no include_regex"):
        capture({"CollectionConfigurations": [{"CollectionName": "mine"}]})


def test_actions_are_checked():
    with pytest.raises(InvalidArgumentError, match="expected an address"):
        rule_configs.Email("nobody")
    with pytest.raises(InvalidArgumentError, match="expected a number"):
        rule_configs.SMS("123")
    with pytest.raises(InvalidArgumentError, match="prefix of a job"):
        rule_configs.StopTraining("a job")
    with pytest.raises(TypeError):
        rule_configs.ActionList("stop")
    action = rule_configs.StopTraining()
    action.update_training_job_prefix_if_not_specified("job-1")
    assert action.to_dict() == {"name": "stoptraining", "training_job_prefix": "job-1"}
    with pytest.raises(InvalidArgumentError, match="expected one of rule_configs"):
        Rule.sagemaker({})
    with pytest.raises(InvalidArgumentError, match="the class in it"):
        Rule.custom("mine")


def test_the_command_says_what_is_wrong(tmp_path: Path):
    path = tmp_path / "job.json"
    path.write_text("{")
    done = subprocess.run(
        [sys.executable, "-m", "luff._verbs.sagemaker", str(path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.startswith("luff: found no JSON")
    assert str(path) in done.stderr


def test_an_unknown_rule_names_the_nearest_ones():
    with pytest.raises(AttributeError, match="no rule 'vanishing_gradiant'; nearest: 'vanishing_gradient'"):
        _ = rule_configs.vanishing_gradiant


def test_rules_of_the_profiler_are_evaluated_at_the_end(tmp_path: Path):
    rules = [
        ProfilerRule.sagemaker(rule_configs.CPUBottleneck(threshold=40, cpu_threshold=80)),
        ProfilerRule.sagemaker(
            rule_configs.ProfilerReport(CPUBottleneck_cpu_threshold=90), container_local_output_path="/out"
        ),
        Rule.sagemaker(rule_configs.vanishing_gradient()),
    ]
    Job(DebuggerHookConfig(), rules).write(tmp_path / "job.json")
    found = read_job(tmp_path / "job.json")
    assert found["ProfilerRuleConfigurations"][0]["RuleParameters"] == {
        "rule_to_invoke": "CPUBottleneck", "threshold": "40", "cpu_threshold": "80",
    }  # fmt: skip
    text, told = to_luff(found)
    assert told == []
    assert tomllib.loads(text)["output"] == {
        "profiler_rules": "CPUBottleneck:threshold=40:cpu_threshold=80,ProfilerReport:CPUBottleneck_cpu_threshold=90",
        "profiler_report": "/out",
    }


def test_a_rule_of_the_profiler_is_checked_when_it_is_made(tmp_path: Path):
    with pytest.raises(TypeError, match="gpu_threshold"):
        rule_configs.CPUBottleneck(gpu_treshold=1)
    with pytest.raises(InvalidArgumentError, match="percentage"):
        rule_configs.LowGPUUtilization(threshold_p95=170)
    with pytest.raises(InvalidArgumentError, match="ProfilerReport"):
        ProfilerRule.sagemaker(rule_configs.vanishing_gradient())
    Job(DebuggerHookConfig(), [ProfilerRule("x", {"rule_to_invoke": "CPUBottleneck"})] * 2).write(
        tmp_path / "j.json"
    )
    with pytest.raises(InvalidArgumentError, match="twice"):
        read_job(tmp_path / "j.json")


def test_what_is_profiled_is_what_the_hook_reads():
    profile = FrameworkProfile("/p", python_profiling_config=PythonProfilingConfig(start_step=3, num_steps=2))
    found = ProfilerConfig(framework_profile_params=profile).to_dict()
    assert found["ProfilingParameters"]["LocalPath"] == "/p"
    assert json.loads(found["ProfilingParameters"]["PythonProfilingConfig"]) == {
        "StartStep": 3, "NumSteps": 2, "ProfilerName": "cprofile", "cProfileTimer": "default",
    }  # fmt: skip
