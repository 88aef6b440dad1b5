"""Small helpers that smdebug's callers use."""

from __future__ import annotations

import enum
import os
import sys
import tempfile
from types import TracebackType
from typing import Any

import numpy as np

from luff.compat.smdebug.core.collection import flatten
from luff.compat.smdebug.core.config_constants import (
    CLAIM_FILENAME,
    CONFIG_FILE_PATH_ENV_STR,
    DEFAULT_SAGEMAKER_OUTDIR,
    DEFAULT_SAGEMAKER_TENSORBOARD_PATH,
    TENSORBOARD_CONFIG_FILE_PATH_ENV_STR,
    TRAINING_JOB_NAME_ENV,
)
from luff.compat.smdebug.core.error_handling_agent import error_handling_agent
from luff.compat.smdebug.core.locations import (
    deserialize_tf_device,
    get_path_to_collections,
    get_worker_name_from_collection_file,
    parse_worker_name_from_file,
    serialize_tf_device,
)
from luff.compat.smdebug.core.logger import get_logger
from luff.compat.smdebug.exceptions import SMDebugTypeError

__all__ = [
    "FRAMEWORK",
    "SagemakerSimulator",
    "ScriptSimulator",
    "deserialize_tf_device",
    "ensure_dir",
    "error_handling_agent",
    "flatten",
    "get_logger",
    "get_path_to_collections",
    "get_worker_name_from_collection_file",
    "is_first_process",
    "is_framework_version_supported",
    "is_s3",
    "make_numpy_array",
    "parse_worker_name_from_file",
    "remove_file_if_exists",
    "serialize_tf_device",
]


class FRAMEWORK(enum.Enum):
    """Frameworks for which there are hooks."""

    PYTORCH = "pytorch"
    TENSORFLOW = "tensorflow"
    MXNET = "mxnet"
    XGBOOST = "xgboost"


def is_framework_version_supported(framework: FRAMEWORK | None = None) -> bool:
    """Returns whether hooks of a framework work with the installed version."""
    if framework is FRAMEWORK.PYTORCH:
        import torch

        return int(torch.__version__.partition(".")[0]) >= 1
    if framework is FRAMEWORK.TENSORFLOW:
        import tensorflow as tf

        return tuple(int(part) for part in tf.__version__.split(".")[:2]) >= (2, 16)
    return True


def make_numpy_array(x: Any) -> np.ndarray[Any, Any]:
    """Converts a user's value to an array.

    Raises
    ------
    SMDebugTypeError
        If it cannot be converted.
    """
    if isinstance(x, np.ndarray):
        return x
    if isinstance(x, (bool, int, float, complex, str, np.generic)):
        return np.array([x])
    if isinstance(x, (list, tuple)):
        return np.asarray(x)
    if isinstance(x, dict):
        return np.array(x)
    if hasattr(x, "detach") and hasattr(x, "numpy"):
        from luff.compat.smdebug.pytorch.utils import to_numpy

        return to_numpy(x)
    if hasattr(x, "asnumpy"):
        return np.asarray(x.asnumpy())
    raise SMDebugTypeError(
        f"found {type(x).__name__}, expected an array, a number, a text or a list of numbers"
    )


def horovod_rank_and_size(framework: str) -> tuple[int, int]:
    """Returns rank and number of processes from Horovod's module for a framework, if a
    script uses it, else (0, 1).
    """
    horovod = sys.modules.get(f"horovod.{framework}")
    if horovod is not None:
        try:
            return int(horovod.rank()), int(horovod.size())
        except ValueError:  # imported, but not initialised
            pass
    return 0, 1


def is_s3(path: str) -> tuple[bool, str | None, str | None]:
    """Returns whether a path lies in a bucket, with bucket and prefix."""
    if not path.startswith("s3://"):
        return False, None, None
    bucket, _, prefix = path[len("s3://") :].partition("/")
    return True, bucket, prefix


def ensure_dir(file_path: str, is_file: bool = True) -> None:
    """Creates the directory, or that of a file."""
    folder = os.path.dirname(file_path) if is_file else file_path
    if folder:
        os.makedirs(folder, exist_ok=True)


def remove_file_if_exists(file_path: str) -> None:
    """Deletes a file, if it exists."""
    if os.path.exists(file_path):
        os.remove(file_path)


def is_first_process(path: str) -> bool:
    """Claims a directory for this process; returns False if another one has claimed it."""
    if path.startswith("s3://"):
        return True
    os.makedirs(path, exist_ok=True)
    try:
        os.close(os.open(os.path.join(path, CLAIM_FILENAME), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


class ScriptSimulator:
    """A scratch directory; hides the platform's environment variables."""

    def __init__(self, out_dir: str | None = None, tensorboard_dir: str | None = None) -> None:
        self.out_dir = out_dir or tempfile.mkdtemp()
        self.tensorboard_dir = tensorboard_dir
        self._before: dict[str, str | None] = {}

    def _set(self, name: str, value: str | None) -> None:
        self._before.setdefault(name, os.environ.get(name))
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value

    def __enter__(self) -> Any:
        self._set(CONFIG_FILE_PATH_ENV_STR, None)
        self._set(TRAINING_JOB_NAME_ENV, None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, before in self._before.items():
            if before is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = before


class SagemakerSimulator(ScriptSimulator):
    """Provides the files and variables that the platform gives to a job."""

    def __init__(
        self,
        json_config_path: str = "/tmp/zcc_config.json",
        tensorboard_dir: str = "/tmp/tensorboard",
        training_job_name: str = "sm_job",
        json_file_contents: str = "{}",
        enable_tb: bool = True,
    ) -> None:
        super().__init__(DEFAULT_SAGEMAKER_OUTDIR, tensorboard_dir)
        self.json_config_path = json_config_path
        self.tb_json_config_path = DEFAULT_SAGEMAKER_TENSORBOARD_PATH
        self.training_job_name = training_job_name
        self.json_file_contents = json_file_contents
        self.enable_tb = enable_tb

    def __enter__(self) -> Any:
        import json
        import shutil

        shutil.rmtree(self.out_dir, ignore_errors=True)
        self._set(CONFIG_FILE_PATH_ENV_STR, self.json_config_path)
        self._set(TRAINING_JOB_NAME_ENV, self.training_job_name)
        with open(self.json_config_path, "w", encoding="utf-8") as file:
            file.write(self.json_file_contents)
        if self.enable_tb:
            self._set(TENSORBOARD_CONFIG_FILE_PATH_ENV_STR, self.tb_json_config_path)
            os.makedirs(os.path.dirname(self.tb_json_config_path), exist_ok=True)
            with open(self.tb_json_config_path, "w", encoding="utf-8") as file:
                json.dump({"LocalPath": self.tensorboard_dir}, file)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        remove_file_if_exists(self.json_config_path)
        if self.enable_tb:
            remove_file_if_exists(self.tb_json_config_path)
        super().__exit__(kind, value, trace)
