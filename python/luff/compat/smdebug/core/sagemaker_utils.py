"""Detects a SageMaker job."""

from __future__ import annotations

import os

from luff.compat.smdebug.core.config_constants import TRAINING_JOB_NAME_ENV

__all__ = ["is_sagemaker_job"]


def is_sagemaker_job() -> bool:
    """Returns whether the platform has named a job."""
    return os.environ.get(TRAINING_JOB_NAME_ENV) is not None
