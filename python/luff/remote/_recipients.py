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

from luff.remote._errors import Absent, Conflict, Refused, TooLarge
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
_COMMAND_S = 30
_X25519 = re.compile(r"x25519:([A-Za-z0-9+/]{43}=)")
_FORMAT = "luff-run-key"
_FILE_FORMAT = "luff-bucket-key"


class Recipient(NamedTuple):
    """Who is to read: an X25519 public key, or a command."""

    public: bytes = b""
    command: tuple[str, ...] = ()


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
        "version": 0,
        "public": f"x25519:{public}",
        "secret": base64.b64encode(secret.private_bytes_raw()).decode(),
    }
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            json.dump(text, file, indent=1)
            file.write("\n")
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
    if text.get("format") != _FILE_FORMAT or text.get("version") != 0:
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


def _name(public: bytes) -> str:
    return f"x25519-{hashlib.sha256(public).hexdigest()[:32]}"


def key_prefix(run_id: str) -> str:
    return f"keys/{run_id}/"


def put_key(store: Store, run_id: str, key: bytes, recipients: list[Recipient], new: bool = False) -> None:
    """Puts the key of a run for each recipient, if absent. Raises a BucketError.

    `new`: nobody else has the key, so one that is there is another one, of another host: Refused.
    """
    commands = 0
    for one in sorted(recipients):  # of several hosts, the first is first everywhere
        if one.public:
            name, text = _name(one.public), _wrap(run_id, key, one.public)
        else:
            name, commands = f"command-{commands}", commands + 1
            text = {"kind": "command", "wrapped": _text(_call(one.command, "wrap", key))}
        data = json.dumps({"format": _FORMAT, "version": 0, "run_id": run_id, **text}).encode()
        place = key_prefix(run_id) + name
        try:
            store.put_new(place, data)
        except Conflict:  # of an upload before this one; or a client repeats a put whose answer was lost
            found = store.get(place, MAX_OBJECT) if new else None
            if new and (found is None or found[0] != data):
                raise Refused(
                    f"another host uploads the run, encrypted with a key that is not here; name a key that opens it in "
                    f"{KEY_FILES}: {store.url}/{place}"
                ) from None


def get_key(store: Store, run_id: str, owned: list[Identity]) -> bytes | None:
    """The key of a run; None if it was wrapped for none of these. Raises a BucketError."""
    problem: Refused | None = None
    for one in owned:
        names = [_name(one.public)] if one.public else [f"command-{n}" for n in range(MAX_RECIPIENTS)]
        for name in names:
            try:
                found = store.get(key_prefix(run_id) + name, MAX_OBJECT)
            except (Absent, TooLarge):
                break
            try:
                key = _open_untrusted(found[0] if found else b"", run_id, one)
            except Refused as error:  # of a command, which may not be the one that has wrapped this
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
    if [text.get(name) for name in ("format", "version", "run_id", "kind")] != [_FORMAT, 0, run_id, kind]:
        return None
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

    key: bytes = HKDF(SHA256(), KEY_BYTES, ephemeral + public, f"{_FORMAT} 0 {run_id}".encode()).derive(
        shared
    )
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
    """Calls ``PROGRAM WORDS wrap|unwrap``: bytes in, bytes out. Refused if it fails."""
    program = command[0]
    try:
        done = subprocess.run(
            [*command, what], input=data, capture_output=True, timeout=_COMMAND_S, check=False
        )
    except OSError as error:
        raise Refused(f"the command of the key does not start ({error.strerror}): {program}") from None
    except subprocess.TimeoutExpired:
        raise Refused(f"the command of the key has not ended after {_COMMAND_S} s: {program}") from None
    if done.returncode != 0 or not 0 < len(done.stdout) <= _MAX_WRAPPED:
        said = done.stderr[-200:].decode(errors="replace").strip()
        raise Refused(
            f"the command of the key has failed (exit code {done.returncode}, {len(done.stdout)} bytes): {program} "
            f"{what}: {said}"
        )
    return done.stdout
