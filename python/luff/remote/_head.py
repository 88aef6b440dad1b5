"""The head of a run in a bucket: the only object that is replaced, and what makes all others visible.

``tail · manifest · u32 manifest bytes · u32 tail bytes · "LUFFHEAD"``, both parts as zlib streams (RFC 1950).
docs/spec/bucket-format.md, section 3.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

from luff.remote._files import (
    MAX_BYTES,
    MAX_FOOTER,
    MAX_UPLOADER,
    VERSION,
    WINDOW,
    File,
    is_index,
    is_later_kind,
    is_run_id,
    is_version,
    other_version,
    parse_file_untrusted,
)

MAGIC = b"LUFFHEAD"
MAX_PACKED = 1 << 20  # bytes of the manifest in the object
MAX_TAIL = 2 << 20  # unpacked
MAX_PACKED_TAIL = MAX_TAIL + (1 << 16)
MAX_MANIFEST = 16 << 20
MAX_HEAD = MAX_PACKED + MAX_PACKED_TAIL + 16
MAX_FILES = 1 << 17
STATES = ("live", "draining", "ended")

_TRAILER = struct.Struct("<II8s")
_INSTANCE = 32


class BadObject(ValueError):
    """An object of a bucket that is not what it should be."""


@dataclass
class Entry:
    """What a bucket has of a file: parts, one behind the other from byte 0, then `tail` bytes in the head."""

    ends: list[int] = field(default_factory=list)  # of the parts, ascending
    tail: int = 0
    rewrites: int = 0  # how often the file began again
    lost: bool = False  # deleted before all of it was uploaded
    # Of a metadata segment that is sealed: its bytes from `footer` on, as they are, have an object of their own, and
    # parts need not reach further.
    footer: int = 0
    sealed: int = 0  # bytes of such a file; 0: it is none
    index: str = ""  # name of the object that has what opens it

    @property
    def in_parts(self) -> int:
        return self.ends[-1] if self.ends else 0

    @property
    def bytes(self) -> int:
        return self.sealed or self.in_parts + self.tail


@dataclass
class Manifest:
    run_id: str
    uploader: int = 0
    instance: str = ""
    sequence: int = 0
    host_unix_ns: int = 0  # clock of the uploader's host
    state: str = "live"
    interval_ms: int = 2000
    pruned: bool = False  # values were removed from the bucket
    behind: bool = False  # rows are visible whose payload is not there yet
    files: dict[File, Entry] = field(default_factory=dict)
    requests: int = 0  # that the upload has made so far
    puts: int = 0  # of these
    sent: int = 0  # bytes that it has put
    run: str = ""  # run.json, unless it is long


def _runs(ends: list[int]) -> list[list[int]]:
    """Sizes of parts, equal ones counted: [[size, how many], ...]."""
    sizes: list[list[int]] = []
    begin = 0
    for end in ends:
        if sizes and sizes[-1][0] == end - begin:
            sizes[-1][1] += 1
        else:
            sizes.append([end - begin, 1])
        begin = end
    return sizes


def _pack_tail(payload: list[bool], tails: list[bytes]) -> bytes:
    """A zlib stream of the tails. Payload is packed by its writer where that helps, so it is only stored."""
    if not tails:
        return b""
    stream, check = [b"\x78\x01"], 1
    for stored, data in zip(payload, tails, strict=True):
        packer = zlib.compressobj(0 if stored else 1, zlib.DEFLATED, -zlib.MAX_WBITS)
        stream += (packer.compress(data), packer.flush(zlib.Z_FULL_FLUSH))
        check = zlib.adler32(data, check)
    stream.append(zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS).flush())
    return b"".join((*stream, check.to_bytes(4, "big")))


def pack(manifest: Manifest, tails: list[bytes]) -> bytes:
    """`tails`: those of the files that have one, in the order of the manifest."""
    files = []
    indexes: dict[str, int] = {}
    for file, entry in manifest.files.items():
        one: dict[str, Any] = {"f": file.as_json()}
        if entry.ends:
            one["p"] = _runs(entry.ends)
        if entry.tail:
            one["t"] = entry.tail
        if entry.rewrites:
            one["r"] = entry.rewrites
        if entry.lost:
            one["lost"] = True
        if entry.sealed:
            one["s"] = [entry.footer, entry.sealed, indexes.setdefault(entry.index, len(indexes))]
        files.append(one)
    text = {
        "version": VERSION,
        "run_id": manifest.run_id,
        "uploader": manifest.uploader,
        "instance": manifest.instance,
        "sequence": manifest.sequence,
        "host_unix_ns": manifest.host_unix_ns,
        "state": manifest.state,
        "interval_ms": manifest.interval_ms,
        "behind": manifest.behind,
        **({"pruned": True} if manifest.pruned else {}),
        "requests": manifest.requests,
        "puts": manifest.puts,
        "sent": manifest.sent,
        **({"run": manifest.run} if manifest.run else {}),
        **({"indexes": list(indexes)} if indexes else {}),
        "files": files,
    }
    tail = _pack_tail([file.is_payload for file, entry in manifest.files.items() if entry.tail], tails)
    body = zlib.compress(json.dumps(text, separators=(",", ":")).encode(), 6)
    return tail + body + _TRAILER.pack(len(body), len(tail), MAGIC)


def unpack_bounded(packed: bytes, most: int, what: str) -> bytes:
    """Unpacks a zlib stream of at most `most` bytes. BadObject if it is damaged or larger."""
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(packed, most + 1)
    except zlib.error as error:
        raise BadObject(f"{what} is damaged ({error})") from None
    if len(data) > most:
        raise BadObject(f"{what} unpacks to more than {most} bytes")
    if not stream.eof or stream.unused_data:
        raise BadObject(f"{what} is cut off, or has bytes behind its end")
    return data


def parse_head_untrusted(data: bytes) -> tuple[Manifest, dict[File, bytes]]:
    """Parses a head. Returns its manifest and the tails by file. BadObject says what is wrong."""
    if not _TRAILER.size < len(data) <= MAX_HEAD:
        raise BadObject(f"found a head of {len(data)} bytes, expected {_TRAILER.size + 1} to {MAX_HEAD}")
    manifest_bytes, tail_bytes, magic = _TRAILER.unpack_from(data, len(data) - _TRAILER.size)
    if magic != MAGIC or manifest_bytes + tail_bytes + _TRAILER.size != len(data):
        raise BadObject("the object is no head, or was cut off")
    if manifest_bytes > MAX_PACKED or tail_bytes > MAX_PACKED_TAIL:
        raise BadObject("the head is larger than any that Luff writes")
    body = unpack_bounded(data[tail_bytes : tail_bytes + manifest_bytes], MAX_MANIFEST, "the manifest")
    tail = unpack_bounded(data[:tail_bytes], MAX_TAIL, "the tail") if tail_bytes else b""
    manifest, order = _parse_manifest(body)
    tails, at = {}, 0
    for known, size in order:
        if known is not None:
            tails[known] = tail[at : at + size]
        at += size
    if at != len(tail):
        raise BadObject(f"the manifest describes {at} bytes of tail, the head has {len(tail)}")
    return manifest, tails


def _parse_manifest(body: bytes) -> tuple[Manifest, list[tuple[File | None, int]]]:
    """Also returns whose bytes the tail has, and how many: None for a file of a kind that is not known here."""
    try:
        text = json.loads(body)
    except (ValueError, RecursionError):
        raise BadObject("the manifest is no JSON") from None
    if not isinstance(text, dict):
        raise BadObject("the manifest is no object")
    if not is_version(text.get("version")):
        raise BadObject(other_version(text.get("version")))

    def whole(name: str, most: int) -> int:
        value = text.get(name)
        if type(value) is not int or not 0 <= value <= most:
            raise BadObject(f"the manifest's {name} is no number from 0 to {most}")
        return value

    run_id, instance, state = text.get("run_id"), text.get("instance"), text.get("state")
    if not isinstance(run_id, str) or not is_run_id(run_id):
        raise BadObject("the manifest's run_id has not 32 hexadecimal digits")
    if not isinstance(instance, str) or len(instance) != _INSTANCE or state not in STATES:
        raise BadObject("the manifest's instance or state is not one that Luff writes")
    manifest = Manifest(
        run_id,
        uploader=whole("uploader", MAX_UPLOADER),
        instance=instance,
        sequence=whole("sequence", 1 << 60),
        host_unix_ns=whole("host_unix_ns", (1 << 63) - 1),
        state=state,
        interval_ms=whole("interval_ms", 1 << 40),
        pruned=text.get("pruned") is True,
        behind=text.get("behind") is True,
        requests=whole("requests", 1 << 60),
        puts=whole("puts", 1 << 60),
        sent=whole("sent", 1 << 62),
        run=text["run"] if isinstance(text.get("run"), str) else "",
    )
    indexes = text.get("indexes", [])
    if not isinstance(indexes, list) or not all(isinstance(i, str) and is_index(i) for i in indexes):
        raise BadObject("the manifest names an index that Luff does not write")
    files = text.get("files")
    if not isinstance(files, list) or len(files) > MAX_FILES:
        raise BadObject(f"the manifest has no list of at most {MAX_FILES} files")
    parts_left = MAX_BYTES // WINDOW * 2
    order: list[tuple[File | None, int]] = []
    tail_left = MAX_TAIL
    for one in files:
        if not isinstance(one, dict):
            raise BadObject("an entry of the manifest is no object")
        file = None
        try:
            file = parse_file_untrusted(one.get("f"))
        except ValueError as error:
            if not is_later_kind(one.get("f")):
                raise BadObject(f"the manifest has {error}") from None
        if file in manifest.files:
            raise BadObject(f"the manifest names {file.path} twice")
        entry, parts_left = _parse_entry(one, parts_left)
        if "s" in one and file is not None:
            _parse_sealed(one["s"], file, entry, indexes)
        tail_left -= entry.tail
        if tail_left < 0:
            raise BadObject("the manifest describes a tail that is larger than any that Luff writes")
        if entry.tail:
            order.append((file, entry.tail))
        if file is not None:
            manifest.files[file] = entry
    return manifest, order


def _parse_entry(one: dict[str, Any], parts_left: int) -> tuple[Entry, int]:
    entry = Entry(lost=one.get("lost") is True)
    for name in ("t", "r"):
        value = one.get(name, 0)
        if type(value) is not int or not 0 <= value <= MAX_TAIL:
            raise BadObject("an entry of the manifest has a wrong number")
    entry.tail, entry.rewrites = one.get("t", 0), one.get("r", 0)
    runs = one.get("p", [])
    if not isinstance(runs, list):
        raise BadObject("an entry of the manifest has no list of parts")
    begin = 0
    for run in runs:
        good = isinstance(run, list) and len(run) == 2 and all(type(n) is int for n in run)
        if not good or not 0 < run[0] <= WINDOW or not 0 < run[1] <= parts_left:
            raise BadObject("an entry of the manifest has parts that Luff does not write")
        parts_left -= run[1]
        for _ in range(run[1]):
            end = begin + run[0]
            if end > MAX_BYTES or begin // WINDOW != (end - 1) // WINDOW:
                raise BadObject(
                    "an entry of the manifest has a part across two windows, or a file that is too large"
                )
            entry.ends.append(end)
            begin = end
    return entry, parts_left


def _parse_sealed(found: Any, file: File, entry: Entry, indexes: list[str]) -> None:
    good = isinstance(found, list) and len(found) == 3 and all(type(n) is int for n in found)
    good = good and file.stream == "m" and not entry.tail and 0 < found[0] <= entry.in_parts
    if not good or not 0 < found[1] - found[0] <= MAX_FOOTER or not 0 <= found[2] < len(indexes):
        raise BadObject("an entry of the manifest describes a sealed segment that Luff does not write")
    if entry.in_parts > found[1] or found[1] > MAX_BYTES:
        raise BadObject("an entry of the manifest has parts behind the end of its file")
    entry.footer, entry.sealed, entry.index = found[0], found[1], indexes[found[2]]
