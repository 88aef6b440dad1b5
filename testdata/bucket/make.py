"""Writes golden buckets anew: make.py [STATE ...], with luff on PYTHONPATH. Without a state, the twins alone.

`live` is a bucket whose run is being uploaded (everything in the tail of the head), `ended` one whose run has ended
(everything in parts, as an earlier Luff left it), `sealed` one whose segments have footers and an index. The twins are
what the heads say.
"""

import hashlib
import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

from luff.remote import _sealed
from luff.remote._head import parse_head_untrusted
from luff.remote._store import FolderStore
from luff.remote._uploader import Uploader

HERE = Path(__file__).parent / "v0"
RUN = Path(__file__).parents[1] / "format" / "v1" / "run"
STATES = ("live", "ended", "sealed")


def twin(head: bytes) -> dict:
    """Returns what a head says, as the tests compare it."""
    manifest, tails = parse_head_untrusted(head)
    fields = asdict(manifest) | {"files": []}
    for file, entry in manifest.files.items():
        digest = hashlib.sha256(tails[file]).hexdigest() if file in tails else ""
        fields["files"].append({"path": file.path, **asdict(entry), "tail_sha256": digest})
    return fields


def write(state: str) -> None:
    """Writes a bucket."""
    base = HERE / state
    shutil.rmtree(base, ignore_errors=True)
    _sealed.MIN_SEALED = 1 if state == "sealed" else 1 << 60  # those of the golden run are small
    uploader = Uploader(str(RUN), FolderStore(f"file://{base}", str(base)))
    uploader.begin()
    uploader.flush("live" if state == "live" else "ended")
    if state != "live":
        uploader.end()
    (base / ".luff-lock").unlink()


def main() -> None:
    """Writes what is asked for, and all twins."""
    for state in sys.argv[1:]:
        write(state)
    for state in STATES:
        (head,) = (HERE / state).glob("live/*/*/*")
        (HERE / f"{state}.expected.json").write_text(json.dumps(twin(head.read_bytes()), indent=1) + "\n")


if __name__ == "__main__":
    main()
