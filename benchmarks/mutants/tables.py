"""Tables of judged mutants. What is kept apart appears in sums only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from faultbench.score import wilson

from mutants.operators import OPERATORS

Rows = Sequence[dict[str, Any]]

#: Of each half: whether its programs, and whether its edits are in sight. Edits kept apart are the newest generation.
HALVES = {
    "develop": ("in sight", "in sight"),
    "program": ("kept apart", "in sight"),
    "operator": ("in sight", "kept apart"),
    "both": ("kept apart", "kept apart"),
}
NAMED = 0.90  # goal: share of the faults of edits kept apart that are named, and whose first alert is right
ALARMS = 1 / 60  # goal: most healthy trainings kept apart with an alarm
DIFFERENCE = 0.05  # goal: between edits in sight and kept apart


def share(hits: int, n: int) -> str:
    """Returns the share of hits as text, with Wilson's interval of 95 %."""
    if n == 0:
        return "-"
    low, high = wilson(hits / n, n)
    return f"{hits} of {n}, {hits / n:.0%} ({low:.0%} to {high:.0%})"


def _kept(rows: Rows) -> list[dict[str, Any]]:
    return [row for row in rows if not row["dropped"]]


def _cell(rows: Rows, key: str) -> str:
    return share(sum(row[key] for row in rows), len(rows))


def _mean(rows: Rows, key: str) -> float:
    return sum(row[key] for row in rows) / len(rows)


def halves(rows: Rows) -> None:
    """Prints the sums of each half, and how many mutants were dropped."""
    keys = ("named", "first", "headline", "remedy")
    print(
        "| program | edit | faults named (95 %) | first alert right | headline right | remedy right | "
        "healthy with an alarm |\n| --- | --- | --- | --- | --- | --- | --- |"
    )
    for half, (program, edit) in HALVES.items():
        own = [row for row in _kept(rows) if row["half"] == half]
        faults, quiet = [r for r in own if r["fault"]], [r for r in own if not r["fault"]]
        if own:
            cells = [program, edit, *(_cell(faults, key) for key in keys), _cell(quiet, "alarm")]
            print(f"| {' | '.join(cells)} |")
    reasons = sorted({row["dropped"] for row in rows} - {""})
    print("\ndropped: " + ", ".join(f"{sum(r['dropped'] == why for r in rows)} {why}" for why in reasons))


def _of_rule(rows: Rows, rule: str, edit: str) -> list[str]:
    """Returns how often a rule is among those that name a fault that it is for, and how often it has a false alarm."""
    own = [row for row in rows if HALVES[row["half"]][1] == edit]
    meant = [rule in row["rules"] for row in own if row["fault"] and rule in OPERATORS[row["operator"]].rules]
    quiet = [rule in row["rules"] for row in own if not row["fault"]]
    return [share(sum(meant), len(meant)), f"{sum(quiet)} of {len(quiet)}"]


def sums(rows: Rows) -> int:
    """Prints what each rule earns on edits in sight and on those kept apart, and the goals; returns 1 if one is missed.

    Most edits expect one of several rules, so that the share of a rule alone is no recall.
    """
    kept = _kept(rows)
    print(
        "\n| rule | names, of edits in sight that may expect it (95 %) | alarms | of edits kept apart (95 %) | alarms |"
        "\n| --- | --- | --- | --- | --- |"
    )
    expected = {rule for row in kept if row["fault"] for rule in OPERATORS[row["operator"]].rules}
    for rule in sorted(expected | {rule for row in kept if not row["fault"] for rule in row["rules"]}):
        cells = _of_rule(kept, rule, "in sight") + _of_rule(kept, rule, "kept apart")
        print(f"| {rule} | {' | '.join(cells)} |")
    print()
    seen = [row for row in kept if row["fault"] and HALVES[row["half"]][1] == "in sight"]
    unseen = [row for row in kept if row["fault"] and HALVES[row["half"]][1] == "kept apart"]
    quiet = [row for row in kept if not row["fault"] and row["half"] != "develop"]
    goals: dict[str, bool] = {}
    if unseen:
        for key, told in (("named", "named"), ("first", "first alert right")):
            goals[f"edits kept apart, {told}: {_cell(unseen, key)}; goal {NAMED:.0%}"] = (
                _mean(unseen, key) >= NAMED
            )
    if quiet:
        text = f"healthy, kept apart, with an alarm: {_cell(quiet, 'alarm')}; goal 1 of 60"
        goals[text] = _mean(quiet, "alarm") <= ALARMS
    if seen and unseen:
        difference = abs(_mean(seen, "named") - _mean(unseen, "named"))
        text = (
            f"edits in sight, named: {_cell(seen, 'named')}; difference {difference:.2f}, goal {DIFFERENCE}"
        )
        goals[text] = difference <= DIFFERENCE
    for text, met in goals.items():
        print(f"{'met' if met else 'MISSED':6}  {text}")
    if len(goals) < 4:
        print(
            "not measured: the other goals, which need faults of edits in sight, too, and healthy trainings"
        )
    return 0 if len(goals) == 4 and all(goals.values()) else 1


def each(rows: Rows) -> int:
    """Prints each operator, and each mutant that is judged wrongly; only of the half to develop on. Returns 0."""
    kept = _kept(rows)
    print("\n| operator | mutants | named | first | otherwise said |\n| --- | --- | --- | --- | --- |")
    for operator in sorted({row["operator"] for row in kept}):
        own = [row for row in kept if row["operator"] == operator]
        others = sorted({rule for row in own if not (row["fault"] and row["named"]) for rule in row["rules"]})
        print(
            f"| {operator} | {len(own)} | {sum(r['named'] for r in own)} | {sum(r['first'] for r in own)} | "
            f"{', '.join(others) or 'nothing'} |"
        )
    for row in kept:
        wrong = [key for key in ("headline", "remedy") if row["fault"] and row["named"] and not row[key]]
        if wrong:
            print(f"wrong {' and '.join(wrong)}: {row['program']} {row['operator']}: {row['rules']}")
        if (row["fault"] and not row["named"]) or (not row["fault"] and row["alarm"]):
            print(
                f"{'missed' if row['fault'] else 'alarm'}: {row['program']} {row['operator']}: {row['rules']}"
            )
    return 0
