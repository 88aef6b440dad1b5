"""How the benches decide whether a remedy, and the headline of a verdict, is right."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from _remedies import EDITS, mark_remedies, names_the_edit  # noqa: E402
from mutants.judge import headline  # noqa: E402


def _found(number: int, rule: str, severity: str = "warn", **more: Any) -> dict[str, Any]:
    return {"id": str(number), "rule": rule, "severity": severity, "since_step": number} | {
        "leader": "",
        "healed": False,
        **more,
    }


def test_the_headline_is_what_stands_then_what_is_grave_then_what_began_first() -> None:
    healed = _found(1, "LossSpike", "stop", healed=True)
    mild, late = _found(2, "InputScale"), _found(9, "Overfit")
    assert headline([]) is None
    assert headline([healed, late, mild]) is mild
    assert headline([mild, _found(5, "NonFinite", "stop")])["rule"] == "NonFinite"  # type: ignore[index]
    follows = _found(5, "NonFinite", "stop", leader="2")
    assert headline([late, mild, follows]) is mild  # as grave as what follows from it
    assert headline([late, _found(9, "Overfit", healed=True), mild]) is mild  # the newest form counts


def test_every_fault_has_an_edit_and_no_phrase_is_empty() -> None:
    labels = json.loads((ROOT / "benchmarks/faultbench/public/labels.json").read_text())
    labels += json.loads((ROOT / "benchmarks/faultbench/public/xgb_labels.json").read_text())
    assert {label["id"] for label in labels if label["kind"] == "fault"} == set(EDITS)
    assert all(
        phrase == phrase.lower() and len(phrase) > 2 for _, phrases in EDITS.values() for phrase in phrases
    )
    assert not any(names_the_edit(program, "look at the training") for program in EDITS)


def test_the_remedy_of_the_finding_that_names_the_fault_is_judged(tmp_path: Path) -> None:
    for program, alerts in {
        "pf07": [
            ("LossSpike", 1, "lower the learning rate"),
            ("WeightUpdateRatio", 4, "raise the learning rate"),
        ],
        "pf08": [("WeightUpdateRatio", 6, "raise the learning rate (by a thousand and more)")],
        "pf09": [],
    }.items():
        folder = tmp_path / f"{program}-0"
        folder.mkdir()
        lines = [json.dumps({"rule": rule, "step": step, "remedy": remedy}) for rule, step, remedy in alerts]
        (folder / "alerts.jsonl").write_text("".join(f"{line}\n" for line in lines))
    row = {"seed": 0, "group": "numeric"}
    results: dict[str, Any] = {
        "faults": [
            {"id": "pf07", "rule": "WeightUpdateRatio", "step": 4, **row},
            {"id": "pf08", "rule": "WeightUpdateRatio", "step": 6, **row},
            {"id": "pf09", "rule": None, "step": None, **row},
        ],
        "summary": {"faults": {}, "groups": {"numeric": {}}},
    }
    mark_remedies(results, tmp_path)
    assert [fault["remedy_right"] for fault in results["faults"]] == [False, True, False]
    assert (
        results["summary"]["faults"]["remedy_right"]
        == results["summary"]["groups"]["numeric"]["remedy_right"]
        == 1 / 3
    )
