"""What can go wrong between Luff and a bucket, in words for people."""

from __future__ import annotations


class BucketError(Exception):
    """A request that failed. The message says what to do."""


class Absent(BucketError):
    """There is no such object."""


class Conflict(BucketError):
    """The condition of a put did not hold: the object exists, or is another one. It may be our own: see `_uploader`."""


class Refused(BucketError):
    """It will not work later either: no right, no such bucket, a store without conditional puts."""


class TooLarge(Refused):
    """An object has more bytes than Luff writes into one. It was not read."""


class Unreachable(BucketError):
    """It may work later: the network, a stall, an overloaded server, an answer that makes no sense."""


class NotUntilMended(Unreachable):
    """It works once something outside was mended: a clock, credentials. Asking again at once changes nothing."""


class Replaced(Unreachable):
    """An object was there, and another one is in its place: who reads the head again finds it."""


class WrongUrl(BucketError):
    """A URL that names no bucket or run."""


def of_disk(error: OSError, folder: str) -> BucketError:
    """What a failure to write the local copy is to a reader."""
    return Unreachable(
        f"the local copy cannot be written ({error.strerror}); make room, or set LUFF_CACHE: {folder}"
    )
