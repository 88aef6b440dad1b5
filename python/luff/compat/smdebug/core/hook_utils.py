"""Chooses the directory that a hook writes to."""

from __future__ import annotations

import os

from luff.compat.smdebug.core.access_layer.utils import check_dir_exists
from luff.compat.smdebug.core.config_constants import DEFAULT_SAGEMAKER_OUTDIR
from luff.compat.smdebug.core.logger import get_logger
from luff.compat.smdebug.core.sagemaker_utils import is_sagemaker_job

__all__ = ["verify_and_get_out_dir"]


def verify_and_get_out_dir(out_dir: str | os.PathLike[str] | None) -> str:
    """Returns the directory to write to.

    Raises
    ------
    SMDebugRuntimeError
        If it holds the trial of a training that has ended.
    """
    if is_sagemaker_job():
        if out_dir is not None and os.fspath(out_dir) != DEFAULT_SAGEMAKER_OUTDIR:
            get_logger().info("the job of the platform writes to %s", out_dir)
        return os.fspath(out_dir) if out_dir is not None else DEFAULT_SAGEMAKER_OUTDIR
    if out_dir is None:
        raise RuntimeError("found no out_dir, expected the directory of the trial: Hook(out_dir=...)")
    path = os.path.expanduser(os.fspath(out_dir))
    check_dir_exists(path)
    return path
