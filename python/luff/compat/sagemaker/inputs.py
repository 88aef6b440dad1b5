"""What scripts that start jobs ask the platform for, answered for this machine."""

from __future__ import annotations

import os
from typing import Any

from luff.errors import InvalidArgumentError

__all__ = ["Session", "TrainingInput", "get_execution_role", "local_path"]


def get_execution_role(*_: Any, **__: Any) -> str:
    """Returns a name for the role, which nothing here asks for."""
    return "local"


class Session:
    """Stands where a session of the platform is asked for; it holds nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.boto_region_name = "local"

    def default_bucket(self) -> str:
        """Returns the name that paths of the default bucket begin with."""
        return "local"


class TrainingInput:
    """Data of a job.

    Parameters
    ----------
    s3_data
        A directory of this machine, or ``file://`` and its path.
    """

    def __init__(self, s3_data: str, *_: Any, **__: Any) -> None:
        self.path = local_path(s3_data, "inputs")


def local_path(place: str, where: str) -> str:
    """Returns the path that a text names.

    Raises
    ------
    InvalidArgumentError
        For places on other machines.
    """
    text = os.fspath(place)
    if text.startswith("file://"):
        return os.path.abspath(text[len("file://") :])
    if "://" in text:
        raise InvalidArgumentError(
            f"found {text!r} at {where}, expected a directory of this machine: jobs run here, and fetch nothing"
        )
    return os.path.abspath(text)
