"""Listing of object storage, which is not supported."""

from __future__ import annotations

from typing import Any

from luff.compat.smdebug.core.access_layer.s3 import no_s3

__all__ = ["list_s3_objects"]


def list_s3_objects(bucket: str, prefix: str, *_: Any, **__: Any) -> Any:
    """Raises an error: object storage is not supported."""
    no_s3(f"s3://{bucket}/{prefix}")
