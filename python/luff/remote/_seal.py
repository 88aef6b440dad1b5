"""Encryption of an object: AES256-GCM-HKDF streaming in segments of 64 KiB, as Tink defines it.

The format is Tink's "Streaming AEAD, AES-GCM-HKDF" with a derived key of 32 bytes and SHA-256, so any library of Tink's
opens what is written here. The associated data is the object's key in the bucket without BASE, so no object can stand
in the place of another one. An object that was cut off has no last segment, and is refused.

    object  = header · segment · segment · …
    header  = u8 40 · salt (32 bytes) · nonce prefix (7 bytes)
    segment = AES-256-GCM(HKDF-SHA256(key, salt, associated data), prefix · u32 number, big-endian · u8 is the last)

Every segment but the last ends at a multiple of 64 KiB of the object, header included, so a range is opened without the
rest.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from luff.remote._errors import Refused

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
SEGMENT = 1 << 16
HEADER = 40
TAG = 16
_SALT = 32
_FIRST = SEGMENT - HEADER - TAG  # bytes of the object's own in the first segment
_OTHER = SEGMENT - TAG
INSTALL = "pip install 'luff[remote]'"


class BadSeal(ValueError):
    """Bytes that this key does not open: of another key or another place, changed, or cut off."""


def check_cryptography() -> None:
    """Refused if what encrypts is not installed."""
    try:
        import cryptography.hazmat.primitives.ciphers.aead  # noqa: F401
    except ImportError:
        raise Refused(f"encryption needs cryptography; install it: {INSTALL}") from None


def is_sealed(data: bytes) -> bool:
    """True of an encrypted object. No other object of a run begins with that byte."""
    return data[:1] == bytes([HEADER])


def segments_of(size: int) -> int:
    """Segments of an object that has `size` bytes of its own. An empty one has one, too."""
    return 1 if size <= _FIRST else 1 + -(-(size - _FIRST) // _OTHER)


def sealed_size(size: int) -> int:
    """Bytes in the bucket of an object that has `size` bytes of its own."""
    return HEADER + size + TAG * segments_of(size)


def segment_at(offset: int) -> int:
    """The segment that holds the byte at `offset` of the object's own."""
    return 0 if offset < _FIRST else 1 + (offset - _FIRST) // _OTHER


def begin_of(segment: int) -> int:
    """Offset of a segment's first byte, of the object's own."""
    return 0 if segment == 0 else _FIRST + (segment - 1) * _OTHER


def _cipher(key: bytes, header: bytes, name: str) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    if len(header) != HEADER or not is_sealed(header):
        raise BadSeal("it has no header of an encrypted object")
    salt = header[1 : 1 + _SALT]
    return AESGCM(HKDF(SHA256(), KEY_BYTES, salt, name.encode()).derive(key))


def _nonce(header: bytes, segment: int, last: bool) -> bytes:
    return header[1 + _SALT :] + segment.to_bytes(4, "big") + bytes([last])


def seal(key: bytes, name: str, data: bytes) -> bytes:
    """Encrypts the object that has this key in the bucket. The same bytes give others each time."""
    header = bytes([HEADER]) + secrets.token_bytes(HEADER - 1)
    cipher, last = _cipher(key, header, name), segments_of(len(data)) - 1
    sealed = [header]
    for segment in range(last + 1):
        part = data[begin_of(segment) : begin_of(segment + 1)]
        sealed.append(cipher.encrypt(_nonce(header, segment, segment == last), part, None))
    return b"".join(sealed)


def unseal(key: bytes, name: str, sealed: bytes) -> bytes:
    """Decrypts a whole object. BadSeal if this key does not open it there."""
    header = sealed[:HEADER]
    last = max(1, -(-len(sealed) // SEGMENT)) - 1
    return unseal_segments(key, name, header, sealed[HEADER:], 0, last)


def unseal_segments(key: bytes, name: str, header: bytes, sealed: bytes, first: int, last: int) -> bytes:
    """Decrypts segments that lie one behind the other, from `first` to the end of an object or of a segment.

    `sealed`: their bytes, without the header. `last`: number of the object's last segment.
    """
    from cryptography.exceptions import InvalidTag

    cipher = _cipher(key, header, name)
    opened, at, segment = [], 0, first
    while at < len(sealed) or segment == first:
        size = SEGMENT - HEADER if segment == 0 else SEGMENT
        part = sealed[at : at + size]
        try:
            if len(part) < TAG:
                raise InvalidTag
            opened.append(cipher.decrypt(_nonce(header, segment, segment == last), part, None))
        except InvalidTag:
            raise BadSeal(
                "it is of another key or another place in the bucket, or was changed or cut off"
            ) from None
        at, segment = at + size, segment + 1
    return b"".join(opened)
