"""Who uploads a run: whether it is encrypted, with which key, and for whom. docs/security.md.

What an upload was told stays in the run directory, where everything is readable anyway: ``sync/key``, the key of the
run, and ``sync/encrypt_to``, the recipients. So the next upload of the run is encrypted, whatever it is told.
"""

from __future__ import annotations

import os
import secrets
import stat
from typing import TYPE_CHECKING

from luff.remote._bucket import check_bucket
from luff.remote._errors import Absent, Refused
from luff.remote._files import run_key
from luff.remote._recipients import (
    ENCRYPT_TO,
    KEY_FILES,
    OtherKey,
    Recipient,
    get_key,
    identities,
    key_prefix,
    parse_recipients,
    put_check,
    put_wrapped,
    wrap_key,
)
from luff.remote._run_store import RunStore, has_identity
from luff.remote._seal import KEY_BYTES, check_cryptography, is_sealed

if TYPE_CHECKING:
    from luff.remote._store import Store

_MAX_RUN_JSON = 2 << 20  # encrypted
_MAX_NOTE = 64 << 10
_KEY, _NOTE = "the key of the run", "the note of who can read the run"


def check_encryption() -> None:
    """Before a job begins: Refused if LUFF_BUCKET_ENCRYPT_TO is wrong, or needs what is not installed."""
    if text := _wanted():
        parse_recipients(text)
        check_cryptography()


def uploading(store: Store, run: str, run_id: str) -> RunStore:
    """The store of a run for who uploads it.

    Encrypted if LUFF_BUCKET_ENCRYPT_TO names recipients, or an upload of this directory was. Raises a BucketError.
    """
    # First: where the bucket does not answer, nothing else tells the next upload to encrypt.
    note_recipients(run)
    recipients = _recipients(run)
    path = _path(run, "key")
    key = _read_key(path)
    if not recipients and key is None:
        return RunStore(store, run_id, lambda: b"", sealed=False)
    check_cryptography()
    first = _first_object(store, run_id)
    if first and not is_sealed(first):
        noted = [one for one in (_path(run, "encrypt_to"), path) if os.path.lexists(one)]
        raise Refused(
            f"the run is in the bucket already and not encrypted; prune it there, or give another prefix; to go on "
            f"readable, upload without {ENCRYPT_TO} and remove {' and '.join(noted)}: {store.url}"
        )
    made = False
    if key is None:
        key = get_key(store, run_id, identities()) if has_identity() else None
        if key is None:
            if first:
                raise _other(store, run_id)
            made, key = True, secrets.token_bytes(KEY_BYTES)
        kept = _keep_key(path, key)
        made, key = made and kept == key, kept
    known = key
    try:
        check_bucket(store)  # else a put of a key might replace that of an upload before
        wrapped = wrap_key(store, run_id, known, recipients)
        put_check(store, run_id, known)
    except Refused as error:
        if made:
            os.unlink(path)  # nothing was put: it opens nothing
        if isinstance(
            error, OtherKey
        ):  # as the bucket has it, which may be anybody's: an older key stays here
            raise _other(store, run_id, "" if made else path) from None
        raise
    put_wrapped(store, wrapped)
    return RunStore(store, run_id, lambda: known, sealed=True)


def _other(store: Store, run_id: str, path: str = "") -> Refused:
    remove = f" and remove {path}" if path else ""
    return Refused(
        f"another host uploads the run, encrypted with a key that is not here; name a key that opens it in "
        f"{KEY_FILES}{remove}, or give another prefix: {store.url}/{key_prefix(run_id)}"
    )


def _wanted() -> str:
    return os.environ.get(ENCRYPT_TO, "").strip()


def _path(run: str, name: str) -> str:
    return os.path.join(run, "sync", name)


def note_recipients(run: str) -> None:
    """Keeps in the run who can read it in a bucket, if LUFF_BUCKET_ENCRYPT_TO says so. Refused if it cannot be kept."""
    if text := _wanted():
        parse_recipients(text)
        path = _path(run, "encrypt_to")
        try:
            known = _read_note(path) == text
        except Refused:
            known = False
        if not known:
            _write(path, text.encode(), _NOTE, anew=True)


def _recipients(run: str) -> list[Recipient]:
    if text := _wanted():
        return parse_recipients(text)
    noted = _read_note(_path(run, "encrypt_to"))
    return parse_recipients(noted) if noted is not None else []


def _first_object(store: Store, run_id: str) -> bytes:
    """The run's first object in the bucket, as it is there; b"" if there is none."""
    try:
        found = store.get(run_key(run_id), _MAX_RUN_JSON)
    except Absent:
        return b""
    return found[0] if found else b""


# ---- Files of the run directory ----


def _read(path: str, most: int, what: str) -> bytes | None:
    """Up to `most` + 1 bytes of a file; None if there is none. Refused unless it is this user's alone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Refused(f"{what} cannot be read ({error.strerror}): {path}") from None
    with os.fdopen(fd, "rb") as file:
        info = os.fstat(fd)
        if info.st_uid != os.geteuid():
            raise Refused(f"{what} is another user's; upload as that one: {path}")
        if info.st_mode & 0o077:
            raise Refused(
                f"others can read {what}; if nobody else can have written it, `chmod 600` it: {path}"
            )
        return file.read(most + 1) if stat.S_ISREG(info.st_mode) else b""


def _read_note(path: str) -> str | None:
    """Who can read the run, of an upload before. It may name a command, which is called."""
    data = _read(path, _MAX_NOTE, _NOTE)
    if data is None:
        return None
    if not 0 < len(data) <= _MAX_NOTE:
        raise Refused(f"{_NOTE} is damaged; set {ENCRYPT_TO} anew: {path}")
    return data.decode(errors="replace")


def _read_key(path: str) -> bytes | None:
    data = _read(path, KEY_BYTES, _KEY)
    if data is not None and len(data) != KEY_BYTES:
        raise Refused(f"{_KEY} is damaged: {path}")
    return data


def _write(path: str, data: bytes, what: str, anew: bool = False) -> bool:
    """Writes a file whole or not at all. Returns False if there is one, and not `anew`."""
    temporary = f"{path}.{secrets.token_hex(8)}~"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(fd)  # without it what is in the bucket is lost to the next upload
            if anew:
                os.replace(temporary, path)
                return True
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
            return True
        finally:
            if os.path.lexists(temporary):
                os.unlink(temporary)
    except OSError as error:
        raise Refused(f"{what} cannot be kept ({error.strerror}): {path}") from None


def _keep_key(path: str, key: bytes) -> bytes:
    """Writes the key of a run, and never over another one. Returns the one that is there."""
    if _write(path, key, _KEY):
        return key
    return _read_key(path) or key  # another upload of the run was faster
