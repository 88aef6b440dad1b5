"""Estimators: a job on this machine, under ``luff run``, described as for the platform."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from luff._rules_beside import luff_command
from luff.compat.sagemaker.config import DebuggerHookConfig, TensorBoardOutputConfig
from luff.compat.sagemaker.exceptions import UnexpectedStatusException
from luff.compat.sagemaker.inputs import TrainingInput, local_path
from luff.compat.sagemaker.job import Job
from luff.compat.sagemaker.profiler import ProfilerConfig, ProfilerRule
from luff.compat.sagemaker.rules import Rule
from luff.errors import InvalidArgumentError, NotFoundError

__all__ = ["Estimator", "TrainingJob"]

_STOPPED = 76  # exit code of `luff run` when a finding has stopped the job


class TrainingJob:
    """A job that `Estimator.fit` has started. It goes on if this process ends.

    Attributes
    ----------
    name, job_name
        Name of the job.
    folder
        Its directory: ``job.json``, ``log``, ``run``, ``model``, ``output``.
    """

    def __init__(self, name: str, folder: Path, job: Job, process: subprocess.Popen[bytes]) -> None:
        self.name = self.job_name = name
        self.folder = folder
        self._job = job
        self._process = process

    @property
    def run(self) -> str:
        """Luff's run."""
        return str(self.folder / "run")

    @property
    def status(self) -> str:
        """``InProgress``, ``Completed``, ``Stopped`` by a rule, or ``Failed``."""
        code = self._process.poll()
        if code is None:
            return "InProgress"
        return {0: "Completed", _STOPPED: "Stopped"}.get(code, "Failed")

    def wait(self, logs: bool = True) -> None:
        """Waits until the job has ended. With `logs`, prints what it prints.

        Raises
        ------
        UnexpectedStatusException
            If it has failed.
        """
        tail = ""
        with open(self.folder / "log", encoding="utf-8", errors="replace") as log:
            while True:
                ended = self._process.poll() is not None
                if text := log.read(1 << 20):
                    tail = (tail + text)[-1000:]
                    if logs:
                        sys.stdout.write(text)
                elif ended:
                    break
                else:
                    time.sleep(0.1)
        if self.status == "Failed":
            said = tail.splitlines()
            raise UnexpectedStatusException(
                f"job {self.name} ended with exit code {self._process.returncode}"
                + (f", its last words: {said[-1]!r}" if said else "")
                + f"; all of its output: {self.folder / 'log'}",
                ["Completed", "Stopped"],
                "Failed",
            )

    def stop(self) -> None:
        """Asks the job to end, by SIGTERM."""
        if self._process.poll() is None:
            self._process.terminate()

    def rule_job_summary(self) -> list[dict[str, Any]]:
        """Returns the status of each rule: ``InProgress``, ``IssuesFound`` or ``NoIssuesFound``."""
        found: dict[str, dict[str, Any]] = {}
        written = self.folder / "run" / "rules" / "luff" / "findings.jsonl"
        if written.exists():
            for line in written.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    finding = json.loads(line)
                except ValueError:  # the line is being written
                    continue
                if isinstance(finding, dict) and finding.get("event") == "new":
                    found.setdefault(str(finding.get("rule")), finding)
        quiet = "InProgress" if self.status == "InProgress" else "NoIssuesFound"
        now = datetime.now(timezone.utc)
        summary = []
        for rule in self._job.rules:
            finding = found.get(rule.rule_parameters["rule_to_invoke"].rpartition(":")[2])
            row = {
                "RuleConfigurationName": rule.name,
                "RuleEvaluationJobArn": f"{self.name}/{rule.name}",
                "RuleEvaluationStatus": "IssuesFound" if finding else quiet,
                "LastModifiedTime": now,
            }
            if finding:
                row["StatusDetails"] = (
                    f"RuleEvaluationConditionMet: at step {finding.get('step')}, {finding.get('what')}"
                )
            summary.append(row)
        return summary + [
            {
                "RuleConfigurationName": rule.name,
                "RuleEvaluationJobArn": f"{self.name}/{rule.name}",
                "RuleEvaluationStatus": "IssuesFound" if self._fired(rule) else quiet,
                "LastModifiedTime": now,
            }
            for rule in self._job.profiler_rules
        ]

    @staticmethod
    def _fired(rule: ProfilerRule) -> bool:
        """Whether a rule of the profiler, which is evaluated at the end, has found something."""
        name = f"{rule.rule_parameters['rule_to_invoke']}.json"
        try:
            path = Path(rule.container_local_output_path or "") / "profiler-reports" / name
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return isinstance(found, dict) and bool(found.get("RuleTriggered"))

    def describe(self) -> dict[str, Any]:
        """Returns name, status, configuration and rules of the job."""
        return {
            "TrainingJobName": self.name,
            "TrainingJobStatus": self.status,
            **self._job.to_dict(),
            "DebugRuleEvaluationStatuses": self.rule_job_summary(),
        }


class Estimator:
    """Describes a job and runs it on this machine.

    Parameters
    ----------
    entry_point
        The script; its path is relative to `source_dir`.
    source_dir
        The job's working directory; default: the current one.
    hyperparameters
        Passed to the script as ``--name value``.
    rules, debugger_hook_config, tensorboard_output_config
        What is checked and saved. ``debugger_hook_config=False`` without rules runs the script without Luff.
    profiler_config
        What smdebug's hook profiles, in scripts that import it.
    disable_profiler
        Switches that off.
    base_job_name
        Jobs are called so, with the time behind it; default: the class's name.
    output_path
        A directory for the jobs' directories; default: ``luff-jobs``. Buckets are ignored.
    environment
        More environment variables for the script.
    **platform
        What only the platform uses (role, instances, versions, images, time limits, ...); ignored.
    """

    def __init__(
        self,
        entry_point: str | None = None,
        source_dir: str | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
        rules: Iterable[Rule | ProfilerRule] | None = None,
        debugger_hook_config: DebuggerHookConfig | bool | None = None,
        tensorboard_output_config: TensorBoardOutputConfig | None = None,
        profiler_config: ProfilerConfig | None = None,
        disable_profiler: bool = False,
        base_job_name: str | None = None,
        output_path: str | None = None,
        environment: Mapping[str, str] | None = None,
        **platform: Any,
    ) -> None:
        if not entry_point:
            raise InvalidArgumentError(
                "found no entry_point, expected the script that trains: images are not run here"
            )
        self.entry_point = entry_point
        self.source_dir = source_dir
        self._hyperparameters = dict(hyperparameters or {})
        self.rules = list(rules or ())
        self.debugger_hook_config = debugger_hook_config
        self.tensorboard_output_config = tensorboard_output_config
        self.profiler_config = None if disable_profiler else profiler_config
        self.base_job_name = base_job_name or type(self).__name__.lower()
        self.output_path = output_path
        self.environment = dict(environment or {})
        self.platform = platform
        self.latest_training_job: TrainingJob | None = None
        self._artifacts: str | None = None

    def set_hyperparameters(self, **values: Any) -> None:
        """Adds hyperparameters."""
        self._hyperparameters.update(values)

    def hyperparameters(self) -> dict[str, Any]:
        """Returns the hyperparameters."""
        return dict(self._hyperparameters)

    def fit(
        self,
        inputs: str | TrainingInput | Mapping[str, str | TrainingInput] | None = None,
        wait: bool = True,
        logs: bool = True,
        job_name: str | None = None,
    ) -> None:
        """Starts the job; waits for it unless told otherwise.

        Parameters
        ----------
        inputs
            Directories with data, by channel; one alone is the channel ``training``. The script finds channel NAME in
            the variable ``SM_CHANNEL_NAME``.
        wait, logs
            Whether to wait, and to print meanwhile what the job prints.
        job_name
            Name of the job.

        Raises
        ------
        InvalidArgumentError
            If there is no such script, or data are on another machine.
        UnexpectedStatusException
            If the job was waited for and has failed.
        """
        source = Path(local_path(self.source_dir or ".", "source_dir"))
        script = source / self.entry_point
        if not script.is_file():
            raise InvalidArgumentError(f"found no script at {script}, expected the entry_point")
        name = job_name or f"{self.base_job_name}-{datetime.now():%Y-%m-%d-%H-%M-%S-%f}"[:-3]
        folder = self._base() / name
        job = self._job(folder, _uses_smdebug(source))
        environment = self._environment(folder, inputs)
        for part in ("model", "output"):
            (folder / part).mkdir(parents=True)
        job.write(folder / "job.json")
        if self.profiler_config is not None:
            found = self.profiler_config.to_dict()
            found.setdefault("ProfilingParameters", {}).setdefault("LocalPath", str(folder / "profiler"))
            (folder / "profilerconfig.json").write_text(json.dumps(found, indent=2), encoding="utf-8")
            environment.setdefault("SMPROFILER_CONFIG_PATH", str(folder / "profilerconfig.json"))
        command = [sys.executable if script.suffix == ".py" else "/bin/sh", str(script), *self._arguments()]
        if self.debugger_hook_config is not False or self.rules:
            compat = ["--compat", "smdebug"] if _uses_smdebug(source) else []
            watch = [
                luff_command(),
                "run",
                "--config",
                str(folder / "job.json"),
                "--run",
                str(folder / "run"),
            ]
            command = [*watch, *compat, "--", *command]
        with open(folder / "log", "wb") as log:
            process = subprocess.Popen(
                command, cwd=source, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,  # notebooks send their signals to a whole group
            )  # fmt: skip
        self.latest_training_job = TrainingJob(name, folder, job, process)
        self._artifacts = job.hook_config.container_local_output_path or str(folder / "run")
        if wait:
            self.latest_training_job.wait(logs)

    def latest_job_debugger_artifacts_path(self) -> str:
        """Returns what `create_trial` reads of the latest job."""
        if self._artifacts is None:
            raise NotFoundError("no job was started yet, expected a call of fit()")
        return self._artifacts

    def latest_job_tensorboard_artifacts_path(self) -> str | None:
        """Returns the directory of the latest job's files for TensorBoard."""
        output = self.tensorboard_output_config
        return output.container_local_output_path if output is not None else None

    def _base(self) -> Path:
        if self.output_path and not self.output_path.startswith("s3://"):
            return Path(local_path(self.output_path, "output_path"))
        return Path.cwd() / "luff-jobs"

    def _job(self, folder: Path, with_smdebug: bool) -> Job:
        given = self.debugger_hook_config
        hook = copy.copy(given) if isinstance(given, DebuggerHookConfig) else DebuggerHookConfig()
        if with_smdebug and not hook.container_local_output_path:
            hook.container_local_output_path = str(folder / "tensors")
        rules = [copy.copy(rule) for rule in self.rules]
        for rule in rules:
            if isinstance(rule, ProfilerRule) and not rule.container_local_output_path:
                rule.container_local_output_path = str(folder / "profiler-output")
            if source := rule.rule_parameters.get("source_s3_uri"):
                place = local_path(source, f"the source of rule {rule.name}")
                rule.rule_parameters = {**rule.rule_parameters, "source_s3_uri": place}
        return Job(hook, rules, self.tensorboard_output_config, self.profiler_config)

    def _arguments(self) -> list[str]:
        pairs = [
            (f"-{key}" if len(key) == 1 else f"--{key}", value)
            for key, value in self._hyperparameters.items()
        ]
        return [text for key, value in pairs for text in (key, str(value))]

    def _environment(self, folder: Path, inputs: Any) -> dict[str, str]:
        channels = (
            inputs if isinstance(inputs, Mapping) else {"training": inputs} if inputs is not None else {}
        )
        paths = {
            name: place.path if isinstance(place, TrainingInput) else local_path(place, f"channel {name}")
            for name, place in channels.items()
        }
        return {
            **os.environ,
            **{f"SM_CHANNEL_{name.upper()}": path for name, path in paths.items()},
            "SM_CHANNELS": json.dumps(sorted(paths)),
            "SM_CURRENT_HOST": "localhost",
            "SM_HOSTS": '["localhost"]',
            "SM_HPS": json.dumps(self._hyperparameters, default=str),
            "SM_MODEL_DIR": str(folder / "model"),
            "SM_NUM_GPUS": str(sum(1 for _ in Path("/proc/driver/nvidia/gpus").glob("*"))),
            "SM_OUTPUT_DATA_DIR": str(folder / "output"),
            **self.environment,
        }


def _uses_smdebug(source: Path) -> bool:
    """Returns whether a Python file of the directory imports smdebug."""
    for file in source.glob("*.py"):
        text = file.read_text(encoding="utf-8", errors="replace")
        if any(line.lstrip().startswith(("import smdebug", "from smdebug")) for line in text.splitlines()):
            return True
    return False
