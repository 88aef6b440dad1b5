"""Folders as buckets: which can never be one, and which are not there."""

from __future__ import annotations

import os
from urllib.parse import unquote, urlsplit

from luff.remote._errors import Refused


def check_place(url: str) -> None:
    """Refused if the URL is of a folder that can never be: something else has its name, or that of one above it."""
    if not url.startswith("file:"):
        return
    place = unquote(urlsplit(url).path)
    while not os.path.lexists(place) and place != os.path.dirname(place):
        place = os.path.dirname(place)
    if os.path.exists(place) and not os.path.isdir(place):  # a link that leads nowhere may be mounted later
        raise Refused(f"found a file where a folder is expected, {place}; name another folder: {url}")


def check_there(url: str) -> None:
    """Refused if the URL is of a folder that is not there. Who only reads makes none."""
    place = unquote(urlsplit(url).path)
    if url.startswith("file:") and not os.path.isdir(place):
        check_place(url)
        raise Refused(f"there is no such folder: {place}")


def refuse_for_good(url: str, error: OSError) -> None:
    """After a folder could not be made: Refused if it will never be."""
    check_place(url)
    above = os.path.dirname(unquote(urlsplit(url).path))
    # /proc says that there is none. So does an automounter while its server is away, which may come back.
    if isinstance(error, FileNotFoundError) and _of_the_kernel(above):
        raise Refused(f"no folder can be made there; give another place: {url}") from None


def _of_the_kernel(folder: str) -> bool:
    """Returns whether a folder is one of /proc or /sys, in which no one makes folders."""
    try:
        device = os.stat(folder).st_dev
        return any(os.path.ismount(root) and os.stat(root).st_dev == device for root in ("/proc", "/sys"))
    except OSError:
        return False
