"""What an option of `attach` may be called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from luff.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["check_names"]

_ARGUMENTS = ("run", "resume", "on_stop", "correct", "collections")  # of all hooks


def check_names(options: Mapping[str, Any], arguments: Iterable[str]) -> None:
    """Checks the names of capture options. `arguments`: of the hook beyond those of all hooks; one may be misspelt.

    Raises
    ------
    InvalidArgumentError
        If there is no such option; the message names the nearest options and arguments.
    """
    from luff.config import CaptureOptions

    known = CaptureOptions.__annotations__
    unknown = next((key for key in options if key not in known), None)
    if unknown is not None:
        from luff._nearest import hint

        names = [*arguments, *_ARGUMENTS, *known]
        raise InvalidArgumentError(
            f"unknown option {unknown!r}{hint(unknown, names)}; expected one of {', '.join(names)}"
        )
