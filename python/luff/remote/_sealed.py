"""Sealed metadata segments: what a reader needs to open one, and the object that has this of sixteen.

A sealed segment has its rows twice: as frames, as they were published, and as columns of its footer, tensor by tensor
(docs/spec/run-format.md, section 5). Who opens it reads the footer's head, its steps, its directories and a few loose
frames, a hundredth of the file; who asks for a tensor, that tensor's columns. The sizes and places here are only
believed: readers check every piece by its checksum.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from luff.remote import _files
from luff.remote._files import MAX_FOOTER, VERSION, File, is_version, other_version, parse_file_untrusted
from luff.remote._head import BadObject, unpack_bounded

if TYPE_CHECKING:
    from collections.abc import Callable

MIN_SEALED = 256 << 10  # smaller ones travel whole
MAX_PIECES = 2 << 20  # of one segment, bytes
MAX_INDEX = 8 << 20  # of one object, unpacked
MAX_PACKED_INDEX = MAX_INDEX + (1 << 16)
INDEXED = 16  # segments in one object
_MAX_LISTED = 1 << 12  # pieces of a segment
_MAX_LOOSE = 1 << 20  # bytes of loose frames; the others are asked for
_MAX_HEADER = 1 << 21

_HEADER_BYTES = 4096  # of the file
_FRAME_BYTES = 32  # header of a frame
_TAIL = struct.Struct("<8sQQQ24x8x")
_TAIL_MAGIC = b"LUFFTAIL"
# head_bytes, kinds, first and next ordinal, TRAIN steps; counts; offset, bytes, checksum of five sections
_HEAD = struct.Struct("<IIQQq6I" + "QQQ" * 5)
_FRAME_ENTRY = struct.Struct("<HHIQQ")
# Documents, gaps, acknowledgements, end marks, relocations, retirements, series: read when a segment is opened.
_AT_OPENING = frozenset((3, 12, 14, 15, 16, 17, 22))


class Sealed(NamedTuple):
    """A sealed segment: `footer` to `end` are its columns and directories, the last bytes of the file."""

    footer: int
    end: int
    pieces: list[tuple[int, int]]  # begin and end of what an opening reads, ascending, without the file's end


class Indexed(NamedTuple):
    """Pieces of a segment, as an index has them."""

    file: File
    end: int  # bytes of the file
    pieces: list[tuple[int, bytes]]  # offset, content


def look(read: Callable[[int, int], bytes | None], length: int, sequence: int) -> Sealed | None:
    """What a segment of `length` bytes has, by `read(begin, end)`. None if it is not sealed, or travels whole."""
    if length < _HEADER_BYTES + _TAIL.size:
        return None
    tail = read(length - _TAIL.size, length)
    if tail is None:
        return None
    magic, footer, size, number = _TAIL.unpack(tail)
    if magic != _TAIL_MAGIC or number != sequence or footer < _HEADER_BYTES:
        return None
    if footer + size + _TAIL.size != length or length - footer > MAX_FOOTER:
        return None
    body = footer + _FRAME_BYTES
    head = read(body, body + _HEAD.size + 8) if size >= _FRAME_BYTES + _HEAD.size + 8 else None
    if head is None:
        return None
    sections = _HEAD.unpack_from(head)[11:]
    steps, tensors, defs, layouts, frames = (
        (body + sections[i], body + sections[i] + sections[i + 1]) for i in range(0, 15, 3)
    )
    wanted = [(0, _HEADER_BYTES), (footer, body + len(head)), steps, tensors, defs, layouts, frames]
    wanted.append((length - _TAIL.size, length))
    if any(not 0 <= begin <= end <= length for begin, end in wanted) or frames[1] - frames[0] > MAX_PIECES:
        return None
    listed = read(*frames)
    if listed is None:
        return None
    loose = 0
    for at in range(0, len(listed) - _FRAME_ENTRY.size + 1, _FRAME_ENTRY.size):
        kind, _, size, _, offset = _FRAME_ENTRY.unpack_from(listed, at)
        if kind in _AT_OPENING and loose + size <= _MAX_LOOSE and offset + size <= footer:
            wanted.append((offset, offset + size))
            loose += size
    pieces = _joined(wanted)
    if sum(end - begin for begin, end in pieces) > MAX_PIECES or len(pieces) > _MAX_LISTED:
        return None
    return Sealed(footer, length, pieces)


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ascending, with those in one that touch, or lie so near that naming them apart costs more."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(r for r in ranges if r[1] > r[0]):
        if found and begin <= found[-1][1] + 16:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def pack_index(run_id: str, segments: list[Indexed]) -> bytes:
    """`u32 bytes of the header · header (JSON) · contents of the pieces`, as one zlib stream."""
    files = [
        {"f": s.file.as_json(), "end": s.end, "pieces": [[offset, len(data)] for offset, data in s.pieces]}
        for s in segments
    ]
    header = json.dumps(
        {"version": VERSION, "run_id": run_id, "files": files}, separators=(",", ":")
    ).encode()
    contents = (data for s in segments for _, data in s.pieces)
    return zlib.compress(b"".join((struct.pack("<I", len(header)), header, *contents)), 6)


def parse_index_untrusted(packed: bytes, run_id: str) -> dict[File, Indexed]:
    """Parses an index. BadObject says what is wrong."""
    data = unpack_bounded(packed, MAX_INDEX, "the index")
    (size,) = struct.unpack_from("<I", data) if len(data) >= 4 else (_MAX_HEADER + 1,)
    if size > _MAX_HEADER or size + 4 > len(data):
        raise BadObject("the index is cut off")
    try:
        header = json.loads(data[4 : 4 + size])
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or header.get("run_id") != run_id:
        raise BadObject("the index is of another run")
    if not is_version(header.get("version")):
        raise BadObject(other_version(header.get("version")))
    files = header.get("files")
    if not isinstance(files, list) or len(files) > INDEXED:
        raise BadObject(f"the index has no list of at most {INDEXED} files")
    found: dict[File, Indexed] = {}
    at = 4 + size
    for one in files:
        segment, at = _parse_segment(one, data, at)
        if segment.file in found:
            raise BadObject("the index names a file twice")
        found[segment.file] = segment
    if at != len(data):
        raise BadObject("the index has another length than it says")
    return found


def _parse_segment(one: Any, data: bytes, at: int) -> tuple[Indexed, int]:
    wrong = BadObject("an entry of the index is none that Luff writes")
    if not isinstance(one, dict):
        raise wrong
    try:
        file = parse_file_untrusted(one.get("f"))
    except ValueError as error:
        raise BadObject(f"the index has {error}") from None
    length, listed = one.get("end"), one.get("pieces")
    if type(length) is not int or not 0 < length <= _files.MAX_BYTES or file.stream != "m":
        raise wrong
    if not isinstance(listed, list) or not 0 < len(listed) <= _MAX_LISTED:
        raise wrong
    pieces: list[tuple[int, bytes]] = []
    last = 0
    for piece in listed:
        good = isinstance(piece, list) and len(piece) == 2 and all(type(n) is int for n in piece)
        if not good or piece[0] < last or piece[1] <= 0 or piece[0] + piece[1] > length:
            raise wrong
        last = piece[0] + piece[1]
        if at + piece[1] > len(data):
            raise BadObject("the index is cut off")
        pieces.append((piece[0], data[at : at + piece[1]]))
        at += piece[1]
    return Indexed(file, length, pieces), at


def opens(segment: Indexed, footer: int) -> bool:
    """Whether the pieces have both ends of a sealed file: without them a reader takes a hole for its content."""
    (begin, first), (at, last) = segment.pieces[0], segment.pieces[-1]
    if begin != 0 or len(first) < _HEADER_BYTES or len(last) < _TAIL.size or at + len(last) != segment.end:
        return False
    magic, offset, size, number = _TAIL.unpack(last[-_TAIL.size :])
    return bool(
        magic == _TAIL_MAGIC
        and number == segment.file.sequence
        and offset == footer
        and footer + size + _TAIL.size == segment.end
    )
