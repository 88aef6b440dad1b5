"""The upload beside a training that attached itself: ``attach(upload="s3://bucket/team")``. docs/buckets.md."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from luff.errors import InvalidArgumentError

__all__ = ["take_upload", "upload_beside"]

_TIMEOUT_S = 30


def take_upload(config: dict[str, Any]) -> str:
    """Removes ``upload`` from the options of `attach`; returns the URL, or "".

    Raises
    ------
    InvalidArgumentError
        If it is no URL of a bucket, or needs what is not installed.
    """
    url = config.pop("upload", "")
    if not url:
        return ""
    from luff.remote._errors import BucketError
    from luff.remote._store import check_installed, normal_url
    from luff.remote._upload_key import check_encryption

    try:
        if not isinstance(url, str):
            raise InvalidArgumentError(f"upload is {url!r}; expected the URL of a bucket")
        url = normal_url(url)
        check_installed(url)
        check_encryption()
    except BucketError as error:
        raise InvalidArgumentError(f"upload: {error}") from None
    return url


def upload_beside(run: str, url: str) -> None:
    """Starts `luff sync` in the background, as a process that is not our child. It ends after the run.

    One that is killed before is begun again by the process that has started it, within bounds. What they say goes to
    ``sync/log`` in the run.

    Raises
    ------
    InvalidArgumentError
        If it does not start, or the application has no Python to start it with.
    """
    if getattr(sys, "frozen", False) or not sys.executable:  # that would start the application once more
        raise InvalidArgumentError("upload= needs a Python of its own; `luff run --sync` uploads without")
    os.makedirs(os.path.join(run, "sync"), mode=0o700, exist_ok=True)
    from luff.remote._errors import BucketError
    from luff.remote._upload_key import note_recipients

    try:
        note_recipients(run)  # first: the command that goes on by hand has another environment
    except BucketError:
        pass  # the upload says it, and ends
    detach = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_verbs", "_detach.py")
    done = subprocess.run(
        [sys.executable, "-I", detach, run, url],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise InvalidArgumentError(f"the upload ended with exit code {done.returncode}: {run}")
