"""Runs and folders made by an attacker."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import luff.testing
import numpy as np

# What these names try: to steer the terminal, to look like another name, to leave the target folder, to be executed
# by a spreadsheet, to break a format, not to be text at all. Bytes that are not UTF-8 are lone surrogates, as
# everywhere in Python.
NAMES = [
    "\x1b[31mred", "\x07bell", "\x1b]8;;http://evil\x1b\\link", os.fsdecode(b"\x9b31mc1"), "\u009b31mc1", "cr\rover",
    "line\nfeed", "bidi\u202etxt", os.fsdecode(b"\xff\xfe"), "__metadata__", "../../out", "/tmp/out",
    "=cmd|' /C calc'!A0",
    "+1+1", "@SUM(1)", "-2", "\t=1", "<script>alert(1)</script>", "$\\frac{", "a,b\"c'", "del\x7f",
]  # fmt: skip
ALL = "".join(name for name in NAMES if name.isascii() or max(name) < "\udc80") + "\u202e\u009b"
# Luff's own escape sequences: colours, and a line that replaces another.
_OWN = re.compile(r"\x1b\[(0|1;31|1;33|2)m|\r\x1b\[2?K")
_STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


def assert_steers_nothing(out: bytes) -> None:
    """Checks that the output is valid UTF-8 and that only Luff's own parts of it control the terminal."""
    text = _OWN.sub("", out.decode("utf-8").replace("\r\n", "\n"))
    found = _STEERS.search(text)
    assert found is None, repr(text[max(0, found.start() - 60) : found.end() + 40])


def make_run(path: Path, names: list[str] = NAMES) -> Path:
    """Makes a run whose names, findings, actions, outcome, log and documents are the attacker's."""
    steps = 3
    tensors: dict[str, list[object]] = {
        name: [np.full(4, step + 1.0, np.float32) for step in range(steps)] for name in names
    }
    roles = dict.fromkeys(names, "gradient") | {names[0]: "weight", names[-1]: "weight"}
    for name in names[:4]:
        tensors[f"{name}.loss"] = [1.0, 2.0, float("nan")]
        roles[f"{name}.loss"] = "loss"
    luff.testing.trial(
        tensors, path=path, roles=roles, module_types=dict.fromkeys(names, ALL), collections={ALL: ["^x"]}
    )
    texts = ("rule", "cause", "tensor", "mode", "what", "why", "remedy", "threshold", "page", "leader")
    finding = dict.fromkeys(texts, ALL) | {
        "event": "new", "severity": "stop", "other_tensors": [ALL, ALL], "causes": [ALL], "evidence": {ALL: 1.0},
        "series": [[0, 1.0], [1, 2.0]], "step": 1, "since_step": 1, "last_step": 2,
    }  # fmt: skip
    action = {
        "unix_ns": 1, "id": ALL, "action": ALL, "kind": "webhook" + ALL, "finding": ALL, "cause": ALL + "/x",
        "event": "begun", "detail": ALL,
    }  # fmt: skip
    outcome = {
        "number": 1, "kind": "outcome", "phase": "", "proposal": 0, "train_step": 0, "deadline_s": 0, "reason": ALL,
        "finding": ALL, "author": ALL, "body": {"state": "failed" + ALL, "why": ALL}, "created_unix_ns": 1,
    }  # fmt: skip
    rules = path / "rules" / "luff"
    rules.mkdir(parents=True)
    lines = [finding | {"id": "id1" + ALL}, finding | {"id": "id2" + ALL, "leader": "id1" + ALL}]
    (rules / "findings.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (rules / "actions.jsonl").write_text(json.dumps(action) + "\n")
    (path / "log").mkdir()
    for stream in ("stdout", "stderr"):
        (path / "log" / stream).write_bytes((ALL + "\n").encode() + bytes(range(256)))
    (path / "log" / "times").write_bytes(bytes(range(256)))
    (path / "control" / "000001.json").write_text(json.dumps(outcome))
    return path
