"""Runs jobs that are described as for SageMaker: ``luff run --config job.json -- python train.py``, or by estimators.

After `install`, and under ``python -m luff.compat.sagemaker SCRIPT ...``, an unchanged ``from sagemaker.debugger import
Rule, rule_configs`` finds this package. docs/migrate/smdebug.md lists the differences.

>>> from luff.compat.sagemaker import CollectionConfig, DebuggerHookConfig, Job, Rule, rule_configs
>>> job = Job(
...     DebuggerHookConfig(collection_configs=[CollectionConfig("gradients", {"save_interval": "50"})]),
...     rules=[Rule.sagemaker(rule_configs.vanishing_gradient(), actions=rule_configs.StopTraining())],
... )
>>> job.write("job.json")  # doctest: +SKIP
"""

from __future__ import annotations

from luff.compat._alias import Alias
from luff.compat.sagemaker import rule_configs
from luff.compat.sagemaker.config import CollectionConfig, DebuggerHookConfig, TensorBoardOutputConfig
from luff.compat.sagemaker.estimator import Estimator, TrainingJob
from luff.compat.sagemaker.inputs import Session, TrainingInput, get_execution_role
from luff.compat.sagemaker.job import Job, read_job
from luff.compat.sagemaker.profiler import (
    DataloaderProfilingConfig,
    DetailedProfilingConfig,
    FrameworkProfile,
    ProfilerConfig,
    ProfilerRule,
    PythonProfilingConfig,
)
from luff.compat.sagemaker.rules import Rule

__all__ = [
    "CollectionConfig",
    "DataloaderProfilingConfig",
    "DebuggerHookConfig",
    "DetailedProfilingConfig",
    "Estimator",
    "FrameworkProfile",
    "Job",
    "ProfilerConfig",
    "ProfilerRule",
    "PythonProfilingConfig",
    "Rule",
    "Session",
    "TensorBoardOutputConfig",
    "TrainingInput",
    "TrainingJob",
    "get_execution_role",
    "install",
    "read_job",
    "rule_configs",
    "uninstall",
]

_alias = Alias(
    "sagemaker",
    __name__,
    {
        "sagemaker.debugger": __name__,
        "sagemaker.session": f"{__name__}.inputs",
        **{
            f"sagemaker.{name}": f"{__name__}.frameworks"
            for name in ("mxnet", "pytorch", "sklearn", "tensorflow", "xgboost")
        },
    },
)
install, uninstall = _alias.install, _alias.uninstall
