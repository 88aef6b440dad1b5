"""Runs jobs that are described as for SageMaker: ``luff run --config job.json -- python train.py``.

>>> from luff.compat.sagemaker import CollectionConfig, DebuggerHookConfig, Job, Rule, rule_configs
>>> job = Job(
...     DebuggerHookConfig(collection_configs=[CollectionConfig("gradients", {"save_interval": "50"})]),
...     rules=[Rule.sagemaker(rule_configs.vanishing_gradient(), actions=rule_configs.StopTraining())],
... )
>>> job.write("job.json")  # doctest: +SKIP
"""

from __future__ import annotations

from luff.compat.sagemaker import rule_configs
from luff.compat.sagemaker.config import CollectionConfig, DebuggerHookConfig, TensorBoardOutputConfig
from luff.compat.sagemaker.job import Job, read_job
from luff.compat.sagemaker.rules import Rule

__all__ = [
    "CollectionConfig",
    "DebuggerHookConfig",
    "Job",
    "Rule",
    "TensorBoardOutputConfig",
    "read_job",
    "rule_configs",
]
