"""Writes the golden bucket anew: make.py, with luff on PYTHONPATH. Only for a new version of the format.

`live` is a bucket whose run is being uploaded (everything in the tail of the head), `ended` one whose run has ended
(everything in parts). The twins are what the heads say.
"""

import hashlib
import json
import shutil
from dataclasses import asdict
from pathlib import Path

from luff.remote._head import parse_head_untrusted
from luff.remote._store import FolderStore
from luff.remote._uploader import Uploader

HERE = Path(__file__).parent / "v0"
RUN = Path(__file__).parents[1] / "format" / "v1" / "run"


def twin(head: bytes) -> dict:
    """Returns what a head says, as the tests compare it."""
    manifest, tails = parse_head_untrusted(head)
    fields = asdict(manifest) | {"files": []}
    for file, entry in manifest.files.items():
        digest = hashlib.sha256(tails[file]).hexdigest() if file in tails else ""
        fields["files"].append({"path": file.path, **asdict(entry), "tail_sha256": digest})
    return fields


def main() -> None:
    """Writes both buckets and their twins."""
    for state in ("live", "ended"):
        base = HERE / state
        shutil.rmtree(base, ignore_errors=True)
        uploader = Uploader(str(RUN), FolderStore(f"file://{base}", str(base)))
        uploader.begin()
        uploader.flush(state)
        if state == "ended":
            uploader.end()
        (base / ".luff-lock").unlink()
        (head,) = base.glob("live/*/*/*")
        (HERE / f"{state}.expected.json").write_text(json.dumps(twin(head.read_bytes()), indent=1) + "\n")


if __name__ == "__main__":
    main()
