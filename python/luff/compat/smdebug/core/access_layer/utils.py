"""Marker files that a training leaves in its trial."""

from __future__ import annotations

import os
import time

from luff.compat.smdebug.core.access_layer.file import write_text
from luff.compat.smdebug.core.access_layer.s3 import no_s3
from luff.compat.smdebug.core.config_constants import TRAINING_END_FILENAME
from luff.compat.smdebug.exceptions import SMDebugRuntimeError

__all__ = [
    "DEFAULT_GRACETIME_FOR_RULE_STOP_SEC",
    "ENV_RULE_STOP_SIGNAL_FILENAME",
    "check_dir_exists",
    "delete_s3_prefixes",
    "has_training_ended",
    "is_rule_signalled_gracetime_passed",
    "is_s3",
    "training_has_ended",
]

ENV_RULE_STOP_SIGNAL_FILENAME = "SAGEMAKER_ENV_RULE_STOP_SIGNAL_FILE"
DEFAULT_GRACETIME_FOR_RULE_STOP_SEC = 60


def training_has_ended(trial_prefix: str) -> None:
    """Writes the marker of a finished training."""
    path = os.fspath(trial_prefix)
    if path.startswith("s3://"):
        no_s3(path)
    write_text(os.path.join(path, TRAINING_END_FILENAME), "")


def has_training_ended(trial_prefix: str) -> bool:
    """Returns whether the training has ended."""
    path = os.fspath(trial_prefix)
    if path.startswith("s3://"):
        no_s3(path)
    return os.path.exists(os.path.join(path, TRAINING_END_FILENAME))


def is_s3(path: str) -> tuple[bool, str, str]:
    """Returns whether a path names a bucket, and then the bucket and the rest; else twice an empty text."""
    if not path.startswith("s3://"):
        return False, "", ""
    bucket, _, key = path.removeprefix("s3://").partition("/")
    return True, bucket, key


def check_dir_exists(path: str) -> None:
    """Raises an error if a directory holds a finished training."""
    if path.startswith("s3://"):
        no_s3(path)
    if os.path.exists(path) and has_training_ended(path):
        raise SMDebugRuntimeError(
            "found the trial of a training that has ended, expected a new directory; choose another or delete it: "
            f"{path}"
        )


def delete_s3_prefixes(bucket: str, keys: object) -> None:
    """Raises an error: object storage is not supported."""
    no_s3(f"s3://{bucket}/{keys}")


def is_rule_signalled_gracetime_passed(trial_prefix: str) -> bool:
    """Returns whether the file that stops rules has existed for longer than its grace time."""
    name = os.environ.get(ENV_RULE_STOP_SIGNAL_FILENAME)
    if name is None:
        return False
    try:
        with open(os.path.join(trial_prefix, name), encoding="utf-8") as file:
            text = file.read().strip()
    except OSError:
        return False
    grace = float(os.environ.get("rule_stop_grace_time_secs", DEFAULT_GRACETIME_FOR_RULE_STOP_SEC))  # noqa: SIM112
    try:
        return time.time() > float(text) + grace
    except ValueError:
        return True
