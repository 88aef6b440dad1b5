"""The platform's profiler in its SDK: what is profiled, and which rules look at it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from luff._nearest import hint
from luff.compat.sagemaker.config import texts
from luff.errors import InvalidArgumentError

__all__ = [
    "RULE_NAMES",
    "DataloaderProfilingConfig",
    "DetailedProfilingConfig",
    "FrameworkProfile",
    "ProfilerConfig",
    "ProfilerRule",
    "PythonProfilingConfig",
    "profiler_rule",
]

RULE_NAMES = (
    "BatchSize", "CPUBottleneck", "Dataloader", "GPUMemoryIncrease", "IOBottleneck", "LoadBalancing",
    "LowGPUUtilization", "MaxInitializationTime", "OverallFrameworkMetrics", "OverallSystemUsage", "ProfilerReport",
    "StepOutlier",
)  # fmt: skip


class ProfilerRuleConfig:
    """One of the profiler's rules with its parameters; made by ``rule_configs``.

    Raises
    ------
    TypeError
        For a parameter that the rule does not have.
    InvalidArgumentError
        For a percentage below 0 or above 100, and for a count that is not above 0.
    """

    def __init__(self, rule_name: str, parameters: Mapping[str, Any]) -> None:
        from luff.compat.smdebug.profiler.rules import RULES
        from luff.compat.smdebug.profiler.rules.report import sorted_out

        self.rule_name = rule_name
        given = dict(parameters)
        if rule_name == "ProfilerReport":
            sorted_out({key: value for key, value in given.items() if key != "opt_out_telemetry"})
        else:
            known = [one for one in inspect.signature(RULES[rule_name]).parameters if one != "base_trial"]
            for key in given:
                if key not in known:
                    raise TypeError(f"{rule_name} has no parameter {key!r}{hint(key, known)}")
        for key, value in given.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                percent = key.endswith(("_p95", "_p5", "gpu_threshold", "cpu_threshold", "io_threshold"))
                if (percent and not 0 <= value <= 100) or value < 0:
                    raise InvalidArgumentError(
                        f"{rule_name}: found {key}={value}, "
                        f"expected {'a percentage' if percent else 'a number above 0'}"
                    )
        self.rule_parameters = given

    def to_dict(self) -> dict[str, str]:
        """Returns the parameters as the job's configuration has them."""
        return {"rule_to_invoke": self.rule_name, **texts(self.rule_parameters)}


def profiler_rule(name: str) -> Callable[..., ProfilerRuleConfig]:
    """Returns what makes a rule of this name."""

    def make(**parameters: Any) -> ProfilerRuleConfig:
        return ProfilerRuleConfig(name, parameters)

    make.__name__ = name
    make.__doc__ = (
        f"The profiler's rule {name}; parameters as of `luff.compat.smdebug.profiler.rules.{name}`."
    )
    return make


class ProfilerRule:
    """A rule of the profiler in a job; made by `ProfilerRule.sagemaker`. It is evaluated when the job has ended."""

    def __init__(
        self, name: str, rule_parameters: Mapping[str, Any], container_local_output_path: str | None = None
    ) -> None:
        self.name = name
        self.rule_parameters = texts(rule_parameters)
        self.container_local_output_path = container_local_output_path
        self.collection_configs: list[Any] = []  # as rules of tensors have them

    @classmethod
    def sagemaker(
        cls,
        base_config: ProfilerRuleConfig,
        name: str | None = None,
        container_local_output_path: str | None = None,
        s3_output_path: str | None = None,  # noqa: ARG003
        instance_type: str | None = None,  # noqa: ARG003
        volume_size_in_gb: int | None = None,  # noqa: ARG003
    ) -> ProfilerRule:
        """Makes a built-in rule.

        Parameters
        ----------
        base_config
            E.g. ``rule_configs.CPUBottleneck(threshold=40)``, ``rule_configs.ProfilerReport()``.
        name
            Name of the rule.
        container_local_output_path
            Where its report goes.
        s3_output_path, instance_type, volume_size_in_gb
            Used by the platform; ignored here.
        """
        if not isinstance(base_config, ProfilerRuleConfig):
            raise InvalidArgumentError(
                f"found {base_config!r}, expected a rule of the profiler, e.g. rule_configs.ProfilerReport()"
            )
        return cls(name or base_config.rule_name, base_config.to_dict(), container_local_output_path)

    @classmethod
    def custom(cls, name: str, *_: Any, **__: Any) -> ProfilerRule:
        """Raises an error: write a rule of Luff instead."""
        raise InvalidArgumentError(
            f"profiler rule {name}: own rules of the profiler are not evaluated; write one of Luff (docs/own-rules.md)"
        )

    def to_profiler_rule_config_dict(self) -> dict[str, Any]:
        """Returns the form in the job's configuration."""
        out = {"RuleConfigurationName": self.name, "RuleParameters": dict(self.rule_parameters)}
        if self.container_local_output_path:
            out["LocalPath"] = self.container_local_output_path
        return out


class _Range:
    """Steps or a time: ``start_step``, ``num_steps``, or ``start_unix_time``, ``duration``."""

    def __init__(
        self,
        start_step: int | None = None,
        num_steps: int | None = None,
        start_unix_time: int | None = None,
        duration: float | None = None,
        profile_default_steps: bool = False,
    ) -> None:
        if profile_default_steps or (start_step, num_steps, start_unix_time, duration) == (None,) * 4:
            start_step, num_steps = self.default_steps
        steps, times = (start_step, num_steps) != (None, None), (start_unix_time, duration) != (None, None)
        if steps and times:
            raise InvalidArgumentError("found steps and a time, expected one of them")
        self.parameters: dict[str, Any] = {
            key: value
            for key, value in (
                ("StartStep", start_step),
                ("NumSteps", num_steps),
                ("StartTimeInSecSinceEpoch", start_unix_time),
                ("DurationInSeconds", duration),
            )
            if value is not None
        }

    default_steps: tuple[int, int] = (5, 1)


class DetailedProfilingConfig(_Range):
    """Times of modules; by default of step 5."""


class DataloaderProfilingConfig(_Range):
    """Events of data loaders; by default of step 7."""

    default_steps = (7, 1)

    def __init__(self, *args: Any, metrics_regex: str = ".*", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parameters["MetricsRegex"] = metrics_regex


class PythonProfilingConfig(_Range):
    """Python functions; by default of steps 9 to 11."""

    default_steps = (9, 3)

    def __init__(
        self, *args: Any, python_profiler: Any = "cprofile", cprofile_timer: Any = "default", **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.parameters["ProfilerName"] = str(getattr(python_profiler, "value", python_profiler)).lower()
        if self.parameters["ProfilerName"] == "cprofile":
            self.parameters["cProfileTimer"] = str(getattr(cprofile_timer, "value", cprofile_timer)).lower()


class FrameworkProfile:
    """What smdebug's hook profiles, and where it writes.

    Parameters
    ----------
    local_path
        Folder of the profiler.
    file_max_size, file_close_interval, file_open_fail_threshold
        When a timeline's file is finished (bytes, seconds), and after how many failures none is written.
    detailed_profiling_config, dataloader_profiling_config, python_profiling_config
        What is profiled; nothing for None.
    horovod_profiling_config, smdataparallel_profiling_config
        Accepted and ignored.
    """

    def __init__(
        self,
        local_path: str | None = None,
        file_max_size: int | None = None,
        file_close_interval: float | None = None,
        file_open_fail_threshold: int | None = None,
        detailed_profiling_config: DetailedProfilingConfig | None = None,
        dataloader_profiling_config: DataloaderProfilingConfig | None = None,
        python_profiling_config: PythonProfilingConfig | None = None,
        horovod_profiling_config: Any = None,  # noqa: ARG002
        smdataparallel_profiling_config: Any = None,  # noqa: ARG002
        **_: Any,
    ) -> None:
        given = {
            "LocalPath": local_path,
            "RotateMaxFileSizeInBytes": file_max_size,
            "RotateFileCloseIntervalInSeconds": file_close_interval,
            "FileOpenFailThreshold": file_open_fail_threshold,
        }
        self.profiling_parameters = {key: str(value) for key, value in given.items() if value is not None}
        for key, config in (
            ("DetailedProfilingConfig", detailed_profiling_config),
            ("DataloaderProfilingConfig", dataloader_profiling_config),
            ("PythonProfilingConfig", python_profiling_config),
        ):
            if config is not None:
                self.profiling_parameters[key] = json.dumps(config.parameters)


class ProfilerConfig:
    """What is profiled.

    Parameters
    ----------
    s3_output_path, system_monitor_interval_millis
        Used by the platform. Here the machine is sampled in any case, into the run.
    framework_profile_params
        What smdebug's hook profiles.
    """

    def __init__(
        self,
        s3_output_path: str | None = None,
        system_monitor_interval_millis: int | None = None,
        framework_profile_params: FrameworkProfile | None = None,
        disable_profiler: bool = False,
    ) -> None:
        self.s3_output_path = s3_output_path
        self.system_monitor_interval_millis = system_monitor_interval_millis
        self.framework_profile_params = framework_profile_params
        self.disable_profiler = disable_profiler

    def to_dict(self) -> dict[str, Any]:
        """Returns what smdebug's hook reads, in the file that SMPROFILER_CONFIG_PATH names."""
        out: dict[str, Any] = {"DisableProfiler": self.disable_profiler}
        if self.framework_profile_params is not None:
            out["ProfilingParameters"] = dict(self.framework_profile_params.profiling_parameters)
        return out
