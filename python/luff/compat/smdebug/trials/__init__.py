"""Opens what was saved."""

from __future__ import annotations

from typing import Any

from luff.compat.smdebug.core.access_layer.s3 import no_s3
from luff.compat.smdebug.trials.local_trial import LocalTrial
from luff.compat.smdebug.trials.luff_trial import LuffTrial
from luff.compat.smdebug.trials.profiler_trial import ProfilerTrial
from luff.compat.smdebug.trials.trial import Trial
from luff.compat.smdebug.trials.utils import create_trial

__all__ = ["LocalTrial", "LuffTrial", "ProfilerTrial", "S3Trial", "Trial", "create_trial"]


class S3Trial:
    """A trial in a bucket; cannot be made, since buckets are not supported."""

    def __init__(self, name: str, bucket_name: str, prefix_name: str = "", **_: Any) -> None:
        no_s3(f"s3://{bucket_name}/{prefix_name} ({name})")
