"""Files of a trial. Buckets are not accessed: copy or mount them first (docs/migrate/smdebug.md)."""

from __future__ import annotations

from luff.compat.smdebug.core.access_layer.file import TSAccessFile, get_temp_path
from luff.compat.smdebug.core.access_layer.s3 import TSAccessS3
from luff.compat.smdebug.core.access_layer.utils import (
    DEFAULT_GRACETIME_FOR_RULE_STOP_SEC,
    ENV_RULE_STOP_SIGNAL_FILENAME,
    check_dir_exists,
    has_training_ended,
    is_rule_signalled_gracetime_passed,
    training_has_ended,
)

__all__ = [
    "DEFAULT_GRACETIME_FOR_RULE_STOP_SEC",
    "ENV_RULE_STOP_SIGNAL_FILENAME",
    "TSAccessFile",
    "TSAccessS3",
    "check_dir_exists",
    "get_temp_path",
    "has_training_ended",
    "is_rule_signalled_gracetime_passed",
    "training_has_ended",
]
