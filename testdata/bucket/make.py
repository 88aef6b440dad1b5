"""Writes golden buckets anew: make.py [STATE ...], with luff on PYTHONPATH. Without a state, the twins alone.

`live` is a bucket whose run is being uploaded (everything in the tail of the head), `ended` one whose run has ended
(values in parts, rows in the tail of the head), `sealed` one whose segments have footers and an index, `judged` one
whose ended run was judged by two processes. The twins are what the heads say, and for `judged` what was committed.
"""

import hashlib
import json
import shutil
import sys
import tempfile
import zlib
from dataclasses import asdict
from pathlib import Path

from luff.remote import _commits, _sealed
from luff.remote._checkpoint import checkpoint_key, get_checkpoint, put_checkpoint
from luff.remote._commits import Ledger, read_commit
from luff.remote._files import EVALUATOR, judged_key
from luff.remote._head import parse_head_untrusted
from luff.remote._judged_card import judged_card_key
from luff.remote._store import FolderStore
from luff.remote._uploader import Uploader

HERE = Path(__file__).parent / "v1"
RUN = Path(__file__).parents[1] / "format" / "v1" / "run"
STATES = ("live", "ended", "sealed", "judged")
FIRST, SECOND = "a" * 32, "b" * 32  # who judges
RULES = "0123456789abcdef"


def finding(event: str, number: int, **changes: object) -> str:
    """A line of findings.jsonl."""
    line = {
        "event": event, "id": f"{number:016x}", "rule": "NonFinite", "cause": "nonfinite", "severity": "stop",
        "tensor": "loss", "other_tensors": ["gradient/w"], "other_count": 0, "mode": "TRAIN", "worker": 0, "step": 5,
        "global_step": 5, "update": 5, "since_step": 5, "last_step": 5, "healed": False, "leader": "",
        "forecast": False, "lead_steps": 0, "what": "loss is NaN … since step 5", "why": "a \"quoted\" \\ reason",
        "remedy": "lower the rate", "causes": ["rate"], "evidence": {"loss": "NaN"}, "series": [[4, 1.5], [5, "NaN"]],
        "threshold": "any", "page": "docs/rules/non_finite.md",
    }  # fmt: skip
    return json.dumps(line | changes, ensure_ascii=False)


#: Of the first commit, of the second one (which another process had to act on), of the last one none.
LINES = (
    [finding("new", 1), finding("new", 2, severity="warn", tensor="gradient/w", leader=f"{1:016x}")],
    [
        finding("update", 1, last_step=7),
        finding("healed", 2, severity="warn", tensor="gradient/w", healed=True),
    ],
)
CHECKPOINT = json.dumps({"format": "luff-rules", "steps": 6, "rules": {"NonFinite": {"seen": [1, 2]}}})


def twin(head: bytes) -> dict:
    """Returns what a head says, as the tests compare it."""
    manifest, tails = parse_head_untrusted(head)
    fields = asdict(manifest) | {"files": []}
    for file, entry in manifest.files.items():
        digest = hashlib.sha256(tails[file]).hexdigest() if file in tails else ""
        fields["files"].append({"path": file.path, **asdict(entry), "tail_sha256": digest})
    return fields


def judged_twin(base: Path) -> dict:
    """Returns what stands in a judged bucket beside the run."""
    store = FolderStore(f"file://{base}", str(base))
    (run_id,) = store.children(f"rules/{EVALUATOR}/")
    commits = []
    while (commit := read_commit(store, run_id, len(commits) + 1)) is not None:
        told = commit._asdict()
        commits.append(told | {"heads": sorted(map(list, commit.heads.items())), "lines": list(commit.lines)})
    checkpoint, findings = get_checkpoint(store, run_id)
    packed = (base / checkpoint_key(run_id)).read_bytes()
    return {
        "run_id": run_id,
        "objects": sorted(str(p.relative_to(base)) for p in base.rglob("*") if p.is_file()),
        "commits": commits,
        "taken": (base / f"rules/{EVALUATOR}/{run_id}/000002.taken-1").read_text(),
        "checkpoint": checkpoint,
        "findings": findings,
        "checkpoint_object": json.loads(zlib.decompress(packed)),
        "judged_card": json.loads((base / judged_card_key(run_id)).read_bytes()),
    }


def judge(store: FolderStore, run_id: str, sequence: int) -> None:
    """Writes what two judges leave: the second one acts on a commit of the first, and ends the run."""
    store.put_new(f"judges/{EVALUATOR}", b"{}")

    def nothing(*_: object) -> None:
        pass

    first = Ledger(store, run_id, FIRST, RULES)
    first.load()
    first.commit(LINES[0], 6, {}, nothing)
    first.done(1)
    first.commit(LINES[1], 8, {}, nothing)
    second = Ledger(store, run_id, SECOND, RULES)
    second.load()
    before, _commits.TAKE_OVER_S = _commits.TAKE_OVER_S, 0.0  # the first one died
    won = second.take_over()
    _commits.TAKE_OVER_S = before
    assert [commit.number for commit in won] == [2]
    second.done(2)
    second.commit([], 8, {0: sequence}, nothing)
    with tempfile.TemporaryDirectory() as copy:
        folder = Path(copy) / "rules" / EVALUATOR
        folder.mkdir(parents=True)
        (folder / "checkpoint.json").write_text(CHECKPOINT)
        (folder / "findings.jsonl").write_text("".join(f"{line}\n" for line in LINES[0]))
        put_checkpoint(store, run_id, copy, second.knows, 0)
    card = {
        "format": "luff-judged-card", "version": 1, "run_id": run_id,
        "findings": {"count": 1, "rules": ["NonFinite"]},
    }  # fmt: skip
    store.put(judged_card_key(run_id), json.dumps(card).encode())


def write(state: str) -> None:
    """Writes a bucket."""
    base = HERE / state
    shutil.rmtree(base, ignore_errors=True)
    _sealed.MIN_SEALED = 1 if state == "sealed" else 1 << 60  # those of the golden run are small
    store = FolderStore(f"file://{base}", str(base))
    uploader = Uploader(str(RUN), store)
    uploader.begin()
    uploader.flush("live" if state == "live" else "ended")
    if state != "live":
        uploader.end()
    if state == "judged":
        judge(store, uploader.run_id, uploader.sequence)
        assert (base / judged_key(uploader.run_id)).exists()
    (base / ".luff-lock").unlink()


def main() -> None:
    """Writes what is asked for, and all twins."""
    for state in sys.argv[1:]:
        write(state)
    for state in STATES:
        (head,) = (HERE / state).glob("live/*/*/u0000")
        says = twin(head.read_bytes())
        if state == "judged":
            says = {"head": says} | judged_twin(HERE / state)
        (HERE / f"{state}.expected.json").write_text(json.dumps(says, indent=1) + "\n")


if __name__ == "__main__":
    main()
