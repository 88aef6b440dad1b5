"""Requests to object storage, which is not supported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from luff.compat.smdebug.core.access_layer.s3 import no_s3
from luff.compat.smdebug.core.access_layer.utils import is_s3

__all__ = ["DeleteRequest", "ListRequest", "ReadObjectRequest", "S3Handler", "is_s3"]


@dataclass
class ReadObjectRequest:
    """Requests bytes of an object."""

    path: str
    start: int | None = None
    length: int | None = None


@dataclass
class ListRequest:
    """Requests names of objects."""

    Bucket: str
    Prefix: str = ""
    Delimiter: str = ""
    StartAfter: str = ""


@dataclass
class DeleteRequest:
    """Requests the deletion of objects."""

    Bucket: str
    Prefix: str = ""


class S3Handler:
    """Refuses every call: object storage is not supported."""

    @staticmethod
    def _refuse(*args: Any, **kwargs: Any) -> Any:
        no_s3(str(args[0] if args else kwargs))

    get_object = get_objects = list_prefix = list_prefixes = delete_prefix = delete_prefixes = _refuse
