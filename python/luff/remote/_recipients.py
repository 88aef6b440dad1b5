"""Who can open the runs of a bucket: the key of each run, wrapped for each recipient.

A run has one random key of 32 bytes. ``keys/ID/`` in the bucket holds it once for each recipient: an X25519 public
key, or a command (of a key management service) that wraps 32 bytes. What an object of the bucket says never becomes a
command or a path.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
import shlex
import stat
import subprocess
from typing import TYPE_CHECKING, NamedTuple

from luff.remote._errors import Absent, BucketError, Refused, TooLarge, Unreachable
from luff.remote._files import VERSION, is_version, other_version
from luff.remote._put_once import put_once, put_unless_there
from luff.remote._seal import KEY_BYTES, check_cryptography

if TYPE_CHECKING:
    from luff.remote._store import Store

ENCRYPT_TO = "LUFF_BUCKET_ENCRYPT_TO"  # of an upload: recipients, with commas between them
KEY_FILES = "LUFF_BUCKET_KEY"  # of a reader: files of secret keys, with colons between them
KEY_COMMAND = "LUFF_BUCKET_KEY_COMMAND"  # of a reader
MAX_RECIPIENTS = 16
MAX_OBJECT = 16 << 10
_MAX_WRAPPED = 8 << 10
_MAX_FILE = 4096
_CHECK_BYTES = 16
_COMMAND_S = 30
_X25519 = re.compile(r"x25519:([A-Za-z0-9+/]{43}=)")
_FORMAT = "luff-run-key"
_FILE_FORMAT, _FILE_VERSION = "luff-bucket-key", 1


class Recipient(NamedTuple):
    """Who is to read: an X25519 public key, or a command."""

    public: bytes = b""
    command: tuple[str, ...] = ()


class OtherKey(Refused):
    """The run is encrypted with another key."""


class CommandFailed(Unreachable):
    """A command of a key management service has failed, or takes too long: it denies this, or is away."""


class Identity(NamedTuple):
    """Who reads: an X25519 secret key with its public one, or a command."""

    secret: bytes = b""
    public: bytes = b""
    command: tuple[str, ...] = ()


def parse_recipients(text: str) -> list[Recipient]:
    """Parses ``x25519:BASE64,command:PROGRAM WORDS``. Refused says what is wrong."""
    found = []
    for one in (part.strip() for part in text.split(",")):
        match = _X25519.fullmatch(one)
        if match is not None:
            found.append(Recipient(public=base64.b64decode(match[1])))
        elif one.startswith("command:") and (words := _words(one[len("command:") :], ENCRYPT_TO)):
            found.append(Recipient(command=words))
        else:
            raise Refused(
                f"found the recipient {one[:80]!r}, expected x25519:KEY, as `luff keys new FILE --encryption` prints "
                f"it, or command:/PATH/OF/PROGRAM: {ENCRYPT_TO}"
            )
    if len(found) > MAX_RECIPIENTS:
        raise Refused(f"found {len(found)} recipients, expected at most {MAX_RECIPIENTS}: {ENCRYPT_TO}")
    return found


def _words(text: str, where: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise Refused(f"the command cannot be split into words ({error}): {where}") from None
    if not words or not os.path.isabs(words[0]):
        raise Refused(f"expected a command whose program has an absolute path: {where}")
    return words


def new_key_file(path: str) -> str:
    """Makes a secret key in a new file that only its owner can read. Returns the recipient, ``x25519:…``."""
    check_cryptography()
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    secret = X25519PrivateKey.generate()
    public = base64.b64encode(secret.public_key().public_bytes_raw()).decode()
    text = {
        "format": _FILE_FORMAT,
        "version": _FILE_VERSION,
        "public": f"x25519:{public}",
        "secret": base64.b64encode(secret.private_bytes_raw()).decode(),
    }
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "w") as file:
                json.dump(text, file, indent=1)
                file.write("\n")
                file.flush()
                os.fsync(fd)  # runs are encrypted for it from now on
        except BaseException:
            os.unlink(path)
            raise
    except OSError as error:
        raise Refused(f"the key cannot be written ({error.strerror}): {path}") from None
    return f"x25519:{public}"


def read_key_file(path: str) -> Identity:
    """Reads a secret key. Refused if others can read it, or it is none."""
    check_cryptography()
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                raise Refused(f"the key is no file: {path}")
            if info.st_mode & 0o077:
                raise Refused(f"others can read the key; `chmod 600` it: {path}")
            data = file.read(_MAX_FILE)
    except OSError as error:
        raise Refused(f"the key cannot be read ({error.strerror}): {path}") from None
    text = _object_untrusted(data)
    if text.get("format") != _FILE_FORMAT or text.get("version") != _FILE_VERSION:
        raise Refused(f"found no key that `luff keys new FILE --encryption` makes: {path}")
    secret = _bytes_untrusted(text.get("secret"))
    if len(secret) != KEY_BYTES:
        raise Refused(f"found a key that is damaged: {path}")
    return Identity(secret, X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw())


def identities() -> list[Identity]:
    """Those of this environment. Refused if one cannot be read."""
    found = [read_key_file(path) for path in os.environ.get(KEY_FILES, "").split(":") if path]
    command = os.environ.get(KEY_COMMAND, "")
    if command:
        found.append(Identity(command=_words(command, KEY_COMMAND)))
    return found


def _name(one: Recipient | Identity) -> str:
    kind, what = ("x25519", one.public) if one.public else ("command", "\0".join(one.command).encode())
    return f"{kind}-{hashlib.sha256(what).hexdigest()[:32]}"


def key_prefix(run_id: str) -> str:
    return f"keys/{run_id}/"


def wrap_key(store: Store, run_id: str, key: bytes, recipients: list[Recipient]) -> dict[str, bytes]:
    """Wraps the key of a run for each recipient that has no object yet. Puts nothing. Raises a BucketError.

    Returns the objects, by their keys in the bucket, for `put_wrapped`.
    """
    wrapped = {}
    for one in recipients:
        place = key_prefix(run_id) + _name(one)
        if _is_there(
            store, place
        ):  # a key management service that is away does not end an upload that goes on
            continue
        if one.public:
            text = _wrap(run_id, key, one.public)
        else:
            text = {"kind": "command", "wrapped": _text(_call(one.command, "wrap", key))}
        wrapped[place] = _object(run_id, text)
    return wrapped


def put_wrapped(store: Store, wrapped: dict[str, bytes]) -> None:
    """Puts what `wrap_key` has made, after `put_check`: so what is there already wraps the same key."""
    for place, data in wrapped.items():
        put_unless_there(store, place, data)  # another host may have


def put_check(store: Store, run_id: str, key: bytes) -> None:
    """Puts which key the run has, if absent. Raises OtherKey if it has another one; any BucketError.

    Of hosts that begin at once the first put wins, whoever their recipients are.
    """
    place = key_prefix(run_id) + "check"
    check = _text(_check_of(run_id, key))
    try:
        there = put_once(store, place, _object(run_id, {"kind": "check", "check": check}), MAX_OBJECT)
    except TooLarge:  # no upload has put it
        there = b""
    if there is None:
        return
    text = _object_untrusted(there) if there else {}
    if (text.get("run_id"), text.get("check")) != (run_id, check):
        raise OtherKey(f"the run is encrypted with another key: {store.url}/{place}")


def _is_there(store: Store, place: str) -> bool:
    try:
        store.get(place, MAX_OBJECT)
    except Absent:
        return False
    except TooLarge:
        pass
    return True


def _object(run_id: str, text: dict[str, str]) -> bytes:
    return json.dumps({"format": _FORMAT, "version": VERSION, "run_id": run_id, **text}).encode()


def _check_of(run_id: str, key: bytes) -> bytes:
    """Tells one key of a run from another, and nothing else of it: 16 bytes of HKDF-SHA256."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    check: bytes = HKDF(SHA256(), _CHECK_BYTES, run_id.encode(), f"{_FORMAT} check".encode()).derive(key)
    return check


def get_key(store: Store, run_id: str, owned: list[Identity]) -> bytes | None:
    """The key of a run; None if it was wrapped for none of these. Raises a BucketError."""
    problem: BucketError | None = None
    for one in owned:
        names = [_name(one)]
        if one.command:  # what wraps may have other words than what unwraps
            there = [name for name in store.children(key_prefix(run_id)) if name.startswith("command-")]
            names = sorted(there, key=lambda name: name != names[0])[:MAX_RECIPIENTS]
        for name in names:
            try:
                found = store.get(key_prefix(run_id) + name, MAX_OBJECT)
            except (Absent, TooLarge):
                continue
            try:
                key = _open_untrusted(found[0] if found else b"", run_id, one)
            except (
                Refused,
                CommandFailed,
            ) as error:  # of a command, which may not be the one that has wrapped this
                problem = error
                continue
            if key is not None:
                return key
    if problem is not None:
        raise problem
    return None


def _open_untrusted(data: bytes, run_id: str, one: Identity) -> bytes | None:
    text = _object_untrusted(data)
    kind = "x25519" if one.public else "command"
    if [text.get(name) for name in ("format", "run_id", "kind")] != [_FORMAT, run_id, kind]:
        return None
    if not is_version(text.get("version")):
        raise Refused(other_version(text.get("version")))
    wrapped = _bytes_untrusted(text.get("wrapped"))
    if not 0 < len(wrapped) <= _MAX_WRAPPED:
        return None
    if one.public:
        return _unwrap(run_id, _bytes_untrusted(text.get("ephemeral")), wrapped, one)
    key = _call(one.command, "unwrap", wrapped)
    return key if len(key) == KEY_BYTES else None


def _object_untrusted(data: bytes) -> dict[str, object]:
    try:
        text = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return text if isinstance(text, dict) else {}


def _bytes_untrusted(text: object) -> bytes:
    try:
        return base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        return b""


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _wrapping_key(run_id: str, shared: bytes, ephemeral: bytes, public: bytes) -> bytes:
    """HKDF-SHA256 of the shared secret, bound to both public keys and the run."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    key: bytes = HKDF(
        SHA256(), KEY_BYTES, ephemeral + public, f"{_FORMAT} {VERSION} {run_id}".encode()
    ).derive(shared)
    return key


_ONLY_NONCE = bytes(12)  # of a wrapping key, which wraps one key


def _wrap(run_id: str, key: bytes, public: bytes) -> dict[str, str]:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    once = X25519PrivateKey.generate()
    ephemeral = once.public_key().public_bytes_raw()
    try:
        shared = once.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise Refused(f"the recipient x25519:{_text(public)} is no public key: {ENCRYPT_TO}") from None
    wrapped = AESGCM(_wrapping_key(run_id, shared, ephemeral, public)).encrypt(_ONLY_NONCE, key, None)
    return {
        "kind": "x25519",
        "to": f"x25519:{_text(public)}",
        "ephemeral": _text(ephemeral),
        "wrapped": _text(wrapped),
    }


def _unwrap(run_id: str, ephemeral: bytes, wrapped: bytes, one: Identity) -> bytes | None:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        theirs = X25519PublicKey.from_public_bytes(ephemeral)
        shared = X25519PrivateKey.from_private_bytes(one.secret).exchange(theirs)
        key = AESGCM(_wrapping_key(run_id, shared, ephemeral, one.public)).decrypt(_ONLY_NONCE, wrapped, None)
    except (ValueError, InvalidTag):
        return None
    return key if len(key) == KEY_BYTES else None


def _call(command: tuple[str, ...], what: str, data: bytes) -> bytes:
    """Calls ``PROGRAM WORDS wrap|unwrap``: bytes in, bytes out.

    CommandFailed if it fails or takes too long; Refused if it does not start, or prints nothing or too much.
    """
    program = command[0]
    try:
        done = subprocess.run(
            [*command, what], input=data, capture_output=True, timeout=_COMMAND_S, check=False
        )
    except OSError as error:
        raise Refused(f"the command of the key does not start ({error.strerror}): {program}") from None
    except subprocess.TimeoutExpired:
        raise CommandFailed(f"the command of the key has not ended after {_COMMAND_S} s: {program}") from None
    if done.returncode != 0:
        said = done.stderr[-200:].decode(errors="replace").strip()
        raise CommandFailed(
            f"the command of the key has failed (exit code {done.returncode}): {program} {what}: {said}"
        )
    if not 0 < len(done.stdout) <= _MAX_WRAPPED:
        raise Refused(
            f"the command of the key has printed {len(done.stdout)} bytes, expected 1 to {_MAX_WRAPPED}: {program} "
            f"{what}"
        )
    return done.stdout
