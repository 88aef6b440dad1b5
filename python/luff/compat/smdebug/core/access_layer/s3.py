"""Stand-ins for access to object storage, which is not supported."""

from __future__ import annotations

from typing import Any, NoReturn

from luff.compat.smdebug.exceptions import SMDebugNotImplementedError

__all__ = ["TSAccessS3", "no_s3"]


def no_s3(path: str) -> NoReturn:
    """Raises an error that says what to do with a path in a bucket."""
    raise SMDebugNotImplementedError(
        f"found a path in a bucket, expected a local directory: copy or mount it first "
        f"(aws s3 sync, or a file system in user space): {path}"
    )


class TSAccessS3:
    """An object in a bucket; cannot be made."""

    def __init__(self, bucket_name: str, key_name: str, *_: Any, **__: Any) -> None:
        no_s3(f"s3://{bucket_name}/{key_name}")
