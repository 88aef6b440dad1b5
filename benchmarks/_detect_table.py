"""Tables of detection quality from the scorer's JSON."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
GROUPS = ("numeric", "programming", "data")


def _labels() -> dict[str, dict[str, Any]]:
    folder = HERE / "faultbench" / "public"
    labels = {entry["id"]: entry for entry in json.loads((folder / "labels.json").read_text())}
    for entry in json.loads((folder / "xgb_labels.json").read_text()):  # a boosting round counts as a step
        if entry["kind"] == "fault":
            entry |= {"detect_by_step": entry["detect_by_round"], "onset_step": entry["onset_round"]}
        labels[entry["id"]] = entry
    return labels


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def _interval(share: float | None, band: list[float | None]) -> str:
    if share is None or band[0] is None or band[1] is None:
        return "-"
    return f"{100 * share:.0f} % ({100 * band[0]:.0f} to {100 * band[1]:.0f})"


def _wilson(hits: int, trainings: int, programs: int) -> str:
    from faultbench.score import wilson

    share = hits / trainings if trainings else None
    return _interval(share, wilson(share, programs) if share is not None else [None, None])


def rule_rows(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns one row for each rule that raised an alert."""
    labels = _labels()
    faults, silent = results["faults"], results["healthy"] + results["twins"]
    names = {rule for row in faults + silent for rule in row["alerts"]}
    rows = []
    for name in sorted(names):
        meant = [f for f in faults if name in labels[f["id"]]["expect_any"]]
        by = {f["id"]: labels[f["id"]]["detect_by_step"] for f in meant}
        onset = {f["id"]: labels[f["id"]]["onset_step"] for f in meant}
        named = [
            f for f in meant if name in f["alerts"] and onset[f["id"]] <= f["alerts"][name] <= by[f["id"]]
        ]
        first = [f for f in named if f["rule"] == name]
        latencies = [f["latency"] for f in first if f["latency"] is not None]
        rows.append(
            {
                "rule": name,
                "meant": len(meant),
                "programs": len({f["id"] for f in meant}),
                "named": len(named),
                "first": len(first),
                "latency": statistics.median(latencies) if latencies else None,
                "healthy": sum(name in row["alerts"] for row in results["healthy"]),
                "twins": sum(name in row["alerts"] for row in results["twins"]),
            }
        )
    return rows


def per_rule_table(results: dict[str, Any]) -> str:
    """Returns a Markdown table of the detection quality of each rule."""
    lines = [
        "| rule | names the fault in time, of the trainings that expect it (95 %) | first to name it | median latency "
        "| alarms on healthy | alarms on twins |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rule_rows(results):
        share = f"{row['named']} of {row['meant']}"
        if row["meant"]:
            share += f", {_wilson(row['named'], row['meant'], row['programs'])}"
        latency = "-" if row["latency"] is None else f"{row['latency']:g}"
        lines.append(
            f"| {row['rule']} | {share if row['meant'] else '-'} | {row['first']} | {latency} | {row['healthy']} "
            f"| {row['twins']} |"
        )
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _group_table(results: dict[str, Any]) -> str:
    summary = results["summary"]
    lines = [
        "| group | programs | trainings | recall (95 %) | with a silent twin | first alert right | remedy right "
        "| median latency | 90 % |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, part in [("all", summary["faults"]), *((g, summary["groups"][g]) for g in GROUPS)]:
        lines.append(
            f"| {name} | {part['programs']} | {part['trainings']} | {_interval(part['recall'], part['recall_95'])} "
            f"| {_percent(part.get('recall_with_silent_twin'))} | {_percent(part['first_alert_right'])} "
            f"| {_percent(part.get('remedy_right'))} | {_number(part['median_latency'])} "
            f"| {_number(part['latency_90'])} |"
        )
    lines += [
        "",
        "| without a fault | trainings | with an alarm (95 %) | rules alarming per run |",
        "| --- | --- | --- | --- |",
    ]
    for name in ("healthy", "twins"):
        part = summary[name]
        if part:
            lines.append(
                f"| {name} | {part['trainings']} | {part['with_alarm']}, "
                f"{_interval(part['alarm_share'], part['alarm_share_95'])} | {part['rules_per_run']:.3f} |"
            )
    return "\n".join(lines)


def _program_table(results: dict[str, Any]) -> str:
    labels = _labels()
    twins = {(t["id"], t["seed"]): t for t in results["twins"]}
    lines = [
        "| fault | what | verdict | first alert | remedy | repaired |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for program in sorted({f["id"] for f in results["faults"]}):
        verdicts, firsts, remedies, repaired = [], [], [], []
        for row in (f for f in results["faults"] if f["id"] == program):
            said = f"{row['outcome']}: {row['rule']} at {row['step']}" if row["rule"] else row["outcome"]
            verdicts.append(said)
            if row["alerts"]:
                at = min(row["alerts"].values())
                firsts.append(", ".join(r for r, s in row["alerts"].items() if s == at))
            if "remedy_right" in row:
                remedies.append("right" if row["remedy_right"] else "wrong")
            twin = twins.get((program, row["seed"]))
            repaired.append("-" if twin is None else ", ".join(twin["alerts"]) or "silent")
        columns = (
            "; ".join(dict.fromkeys(column)) or "-" for column in (verdicts, firsts, remedies, repaired)
        )
        lines.append(f"| {program} | {labels[program]['title']} | {' | '.join(columns)} |")
    return "\n".join(lines)


def tables(results: dict[str, Any]) -> str:
    """Returns all tables of docs/detection.md."""
    return "\n\n".join([_group_table(results), per_rule_table(results), _program_table(results)])


def _between(text: str, begin: str, end: str, inside: str) -> str:
    head, rest = text.split(begin, 1)
    return f"{head}{begin}\n\n{inside}\n\n{end}{rest.split(end, 1)[1]}"


def write_docs(results: dict[str, Any], pages: dict[str, str]) -> None:
    """Writes the tables into docs/detection.md, and a line into the page of each rule.

    Parameters
    ----------
    results
        The scorer's JSON.
    pages
        Page of each rule.
    """
    root = HERE.parent
    path = root / "docs/detection.md"
    begin, end = "<!-- tables: ./dev bench detect --table FILE --write -->", "<!-- end -->"
    path.write_text(_between(path.read_text(), begin, end, tables(results)))
    rows = {row["rule"]: row for row in rule_rows(results)}
    healthy, twins = len(results["healthy"]), len(results["twins"])
    seeds = f"seed{'s' if ',' in results['meta']['seeds'] else ''} {results['meta']['seeds']}"
    for rule, page in pages.items():
        row = rows.get(rule)
        if row is None:
            said = "silent on all of its programs"
        elif row["meant"]:
            said = (
                f"named the fault in time in {row['named']} of {row['meant']} trainings whose label names it"
            )
            said += f" ({_wilson(row['named'], row['meant'], row['programs'])})"
        else:
            said = "no program of the fault bench has its fault"
        alarms = (row["healthy"], row["twins"]) if row else (0, 0)
        line = (
            f"**Measured** on the [fault bench](../detection.md), {seeds}: {said}; alarms: "
            f"{alarms[0]} of {healthy} healthy trainings, {alarms[1]} of {twins} repaired ones."
        )
        file = root / page
        parts = file.read_text().rstrip().split("\n\n")
        if parts[-1].startswith("**Measured**") and not parts[-1].startswith(
            "**Measured** on the [fault bench]"
        ):
            continue  # measured in another way, which the page tells
        kept = [text for text in parts if not text.startswith("**Measured**")]
        file.write_text("\n\n".join([*kept, line]) + "\n")
