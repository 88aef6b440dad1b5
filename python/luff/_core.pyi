"""The C++ core of Luff. Private: use the modules of `luff`."""

def version() -> str:
    """The version of this build."""

def raise_status(code: int, message: str) -> None:
    """
    Raise the exception of a status code, so that tests can see each of them.
    """
