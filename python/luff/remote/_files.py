"""Names of a run's files as numbers, and where their objects lie.

A name from a bucket is a list of small integers and fixed words. Paths are made from these alone, so nothing in a
bucket can lead out of a folder.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

from luff.remote._errors import WrongUrl

VERSION = 1  # of the bucket format: of every object that has one, but requests and messages between hosts
WINDOW = 8 << 20  # no part crosses a multiple of this
MAX_WORKER = 0xFFFFFFFE
MAX_SEQUENCE = (1 << 24) - 1
MAX_BYTES = (1 << 40) - 1
MAX_GENERATION = 64
MAX_UPLOADER = 9999
MAX_FOOTER = 16 << 20  # of a sealed segment, that it has an object of its own
CARDS = "cards/"
EVALUATOR = "luff"
JUDGED = "judged"
MAX_CARD = 8192  # bytes

_WORD = re.compile(r"[a-z_]{1,32}")  # of a name, of a later version, too
_MOST_IN_NAME = 8

_ID = re.compile(r"[0-9a-f]{32}")
_INDEX = re.compile(r"[0-9a-f]{16}")
_FOLDER = re.compile(r"([wh])([0-9]{4,9})")
_STREAM = re.compile(r"([md])-([0-9]{6,8})(?:-([0-9]{1,2}))?\.lf([md])")
# One-word names: text files that grow, or are replaced.
_TEXTS = {
    "findings": "rules/luff/findings.jsonl",
    "actions": "rules/luff/actions.jsonl",
    "aside": "aside.jsonl",
}
_NUMBERED = {"control": ("control", 6), "training": ("trainings", 4)}


class File(NamedTuple):
    """One file of a run.

    ``kind``: "w" or "h" (a stream in the folder of a worker or a host), "control", "training", or a word of `_TEXTS`.
    """

    kind: str
    folder: int = 0
    stream: str = ""  # "m" metadata, "d" payload
    sequence: int = 0
    generation: int = 0  # of a merged segment

    @property
    def is_payload(self) -> bool:
        return self.stream == "d"

    @property
    def is_stream(self) -> bool:
        return self.stream != ""

    @property
    def path(self) -> str:
        """Relative to the run directory."""
        return _path_of(self)

    def as_json(self) -> list[Any]:
        if self.is_stream:
            return [self.kind, self.folder, self.stream, self.sequence, self.generation]
        return [self.kind, self.sequence] if self.kind in _NUMBERED else [self.kind]


@lru_cache(maxsize=1 << 14)  # looks at live runs ask for the same ones every other second
def _path_of(file: File) -> str:
    if file.is_stream:
        merged = f"-{file.generation}" if file.generation else ""
        return f"{file.kind}{file.folder:04d}/{file.stream}-{file.sequence:06d}{merged}.lf{file.stream}"
    if file.kind in _NUMBERED:
        folder, digits = _NUMBERED[file.kind]
        return f"{folder}/{file.sequence:0{digits}d}.json"
    return _TEXTS[file.kind]


def _whole(value: object, most: int) -> bool:
    return type(value) is int and 0 <= value <= most


def parse_file_untrusted(name: object) -> File:
    """Parses the name of a file in a manifest. ValueError if it is none."""
    if isinstance(name, list) and name and isinstance(name[0], str):
        kind, rest = name[0], name[1:]
        if kind in ("w", "h") and len(rest) == 4 and rest[1] in ("m", "d"):
            numbers = _whole(rest[0], MAX_WORKER) and _whole(rest[2], MAX_SEQUENCE)
            if numbers and rest[2] > 0 and _whole(rest[3], MAX_GENERATION if rest[1] == "m" else 0):
                return File(kind, rest[0], rest[1], rest[2], rest[3])
        elif kind in _NUMBERED and len(rest) == 1 and _whole(rest[0], 10 ** _NUMBERED[kind][1] - 1):
            return File(kind, sequence=rest[0])
        elif kind in _TEXTS and not rest:
            return File(kind)
    raise ValueError("a name that no file of a run has")


def stream_of(folder: str, name: str) -> File | None:
    """The file of a worker's or host's folder that has this name on disk."""
    where, what = _FOLDER.fullmatch(folder), _STREAM.fullmatch(name)
    if where is None or what is None or what[1] != what[4]:
        return None
    file = File(where[1], int(where[2]), what[1], int(what[2]), int(what[3] or 0))
    return file if file.path == f"{folder}/{name}" and file.sequence <= MAX_SEQUENCE else None


def text_files() -> list[File]:
    return [File(kind) for kind in _TEXTS]


def numbered_of(kind: str, name: str) -> File | None:
    digits = _NUMBERED[kind][1]
    if re.fullmatch(rf"[0-9]{{{digits}}}\.json", name) is None:
        return None
    return File(kind, sequence=int(name[:digits]))


def numbered_folders() -> list[tuple[str, str]]:
    """Pairs of kind and folder."""
    return [(kind, folder) for kind, (folder, _) in _NUMBERED.items()]


def is_later_kind(name: object) -> bool:
    """True for the name of a file of a kind that a later Luff may have added: a word that is not known here."""
    known = ("w", "h", *_NUMBERED, *_TEXTS)
    if not isinstance(name, list) or not name or not isinstance(name[0], str) or name[0] in known:
        return False
    return len(name) <= _MOST_IN_NAME and all(
        _whole(part, MAX_BYTES) or (isinstance(part, str) and _WORD.fullmatch(part) is not None)
        for part in name
    )


def is_version(found: object) -> bool:
    """True for the version of the bucket format that this Luff reads and writes."""
    return type(found) is int and found == VERSION


def other_version(found: object) -> str:
    """What to say of an object of another version of the bucket format."""
    if type(found) is not int or found < 0:
        return "found an object of a bucket that does not tell its version"
    if found < VERSION:
        return (
            f"found version {found} of the bucket format, which no released Luff has written; upload the run again "
            "with this one, below another prefix"
        )
    return (
        f"found version {str(found)[:20]} of the bucket format, this Luff reads {VERSION}; a later Luff has written "
        "it: install that one (pip install --upgrade luff)"
    )


def split_run(url: str) -> tuple[str, str]:
    """Splits the URL of a run, BASE/ID. WrongUrl if it is none."""
    base, _, run_id = url.rstrip("/").rpartition("/")
    if not is_run_id(run_id) or "://" not in base:
        raise WrongUrl(
            f"found {url}, expected BASE/ID: the URL of a bucket, and the run's id of 32 hexadecimal digits"
        )
    return base, run_id


def is_run_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def is_index(text: str) -> bool:
    """True for a name that an index may have."""
    return _INDEX.fullmatch(text) is not None


def live_prefix(run_id: str) -> str:
    """Where heads of a run lie."""
    return f"live/{run_id[0]}/{run_id}/"


def run_prefix(run_id: str) -> str:
    """Where everything else that is uploaded of a run lies, but for its card."""
    return f"runs/{run_id}/"


def head_key(run_id: str, uploader: int) -> str:
    return f"{live_prefix(run_id)}u{uploader:04d}"


def prefixes(run_id: str) -> tuple[str, ...]:
    """Where everything of a run lies but for its cards. The largest is the last."""
    others = (commits_prefix(run_id), f"requests/{run_id}/", f"keys/{run_id}/")
    return (live_prefix(run_id), *others, run_prefix(run_id))


def end_key(run_id: str, uploader: int) -> str:
    return f"{run_prefix(run_id)}u{uploader:04d}/end"


def card_key(run_id: str) -> str:
    return CARDS + run_id


def run_key(run_id: str) -> str:
    return f"runs/{run_id}/run.json"


def part_key(run_id: str, file: File, rewrites: int, begin: int, end: int) -> str:
    again = f".{rewrites}" if rewrites else ""
    return f"runs/{run_id}/{file.path}{again}/{begin:x}-{end:x}"


def footer_key(run_id: str, file: File) -> str:
    """The object with the footer of a sealed segment."""
    return f"runs/{run_id}/{file.path}/footer"


def commits_prefix(run_id: str) -> str:
    """Where who judges the run puts commits."""
    return f"rules/{EVALUATOR}/{run_id}/"


def judged_key(run_id: str) -> str:
    """Says, beside the heads, that there are commits."""
    return f"live/{run_id[0]}/{run_id}/{JUDGED}"


def index_key(run_id: str, uploader: int, name: str) -> str:
    return f"runs/{run_id}/u{uploader:04d}/index-{name}"
