"""What lists of runs say of a run that is judged in its bucket: ``cards/ID.judged``, beside the card of its upload.

The upload replaces the card without a condition, so who judges has an object of its own. docs/spec/bucket-format.md, 8.
"""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

from luff.remote import _files

if TYPE_CHECKING:
    from luff.remote._store import Store

FORMAT = "luff-judged-card"
ENDING = ".judged"
MAX_JUDGED = 4096
_MOST_S = 60.0


def judged_card_key(run_id: str) -> str:
    return f"{_files.card_key(run_id)}{ENDING}"


def put_judged_card(store: Store, run_id: str, copy: str, luff: str, sealed: bool) -> None:
    """Puts what the rules have found in a copy. Of an encrypted run only how many findings there are.

    Raises a BucketError. A card that cannot be made is left out: it is a summary.
    """
    try:
        done = subprocess.run(
            [luff, "card", copy],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_MOST_S,
            check=False,
        )
        findings = json.loads(done.stdout)["findings"]
        told = {"count": findings["count"]} if sealed else findings
    except (OSError, subprocess.TimeoutExpired, ValueError, TypeError, KeyError):
        return
    text = json.dumps(
        {"format": FORMAT, "version": _files.VERSION, "run_id": run_id, "findings": told}
    ).encode()
    if len(text) > MAX_JUDGED:
        told = {"count": findings["count"]}
        text = json.dumps(
            {"format": FORMAT, "version": _files.VERSION, "run_id": run_id, "findings": told}
        ).encode()
    store.put(judged_card_key(run_id), text)


def with_judged(card: bytes, judged: bytes, run_id: str) -> bytes:
    """A card with the findings of who judges the run, unless rules beside the training have some. Untrusted."""
    try:
        whole: Any = json.loads(card)
        told: Any = json.loads(judged)
        good = told["format"] == FORMAT and _files.is_version(told["version"]) and told["run_id"] == run_id
        findings, count = told["findings"], told["findings"]["count"]
        known = whole.get("findings") or {}
        if not good or type(count) is not int or count < 0 or known.get("count"):
            return card
        whole["findings"] = findings
        if count and whole.get("verdict") == "ok":
            whole["verdict"] = "findings"
        text = json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return card
    return text if len(text) <= _files.MAX_CARD else card
