"""What a profiler of SageMaker's kind recorded: ``luff profile DIR``, ``luff check DIR``, and the export of a run in
its layout. Started by the luff command.
"""

from __future__ import annotations

import argparse
import inspect
import json
import logging
import os
import sys
from collections import defaultdict
from typing import Any

import numpy as np

import luff
from luff import _core
from luff._nearest import hint

_MOST_PROBLEMS = 20


def _trial(path: str, out: str | None = None) -> Any:
    from luff.compat.smdebug.trials.profiler_trial import ProfilerTrial

    trial = ProfilerTrial(os.path.basename(path.rstrip("/")), path, out, follow=False)
    for reader in (trial.system_metrics_reader, trial.framework_metrics_reader):
        reader.collect_problems = True
    return trial


def _problems(trial: Any) -> list[str]:
    return [*trial.system_metrics_reader.problems, *trial.framework_metrics_reader.problems]


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def _chosen(text: str, trial: Any) -> list[Any]:
    """Makes the rules of ``NAME[:PARAMETER=VALUE...],...``; all of them for nothing or ``all``."""
    from luff.compat.smdebug.profiler.rules import RULES

    known = {name: rule for name, rule in RULES.items() if name != "ProfilerReport"}
    if text in ("", "all"):
        return [rule(trial) for rule in known.values()]
    rules = []
    for part in text.split(","):
        name, *settings = part.strip().split(":")
        by_case = {one.lower(): one for one in RULES}
        rule = RULES.get(by_case.get(name.lower(), name))
        if rule is None:
            raise luff.errors.InvalidArgumentError(
                f"there is no rule {name!r} of the profiler{hint(name, RULES)}"
            )
        given = {}
        for setting in settings:
            key, equals, value = setting.partition("=")
            names = [one for one in inspect.signature(rule).parameters if one != "base_trial"]
            if not equals or (key not in names and "rule_parameters" not in names):
                raise luff.errors.InvalidArgumentError(
                    f"{rule.__name__}: found {setting!r}, expected PARAMETER=VALUE{hint(key, names)}"
                )
            given[key] = _value(value)
        try:
            rules.append(rule(trial, **given))
        except (TypeError, ValueError) as error:
            raise luff.errors.InvalidArgumentError(f"{rule.__name__}: {error}") from error
    return rules


def _skip(trial: Any, rule: Any) -> None:
    """Goes on to the window of a rule that has data again: times in a folder may be years apart."""
    whole = begin = rule.last_timestamp
    width, latest = rule.scan_interval_us, trial.get_latest_timestamp() + rule.scan_interval_us
    while begin <= latest:
        values, events = rule.data_of(begin, begin + width)
        if values or events:
            first = min([one.timestamp * 1e6 for one in values[:1]] + [one.end_time for one in events[:1]])
            rule.last_timestamp = whole + int(first - whole) // rule.scan_interval_us * rule.scan_interval_us
            return
        begin, width = begin + width, 2 * width
    rule.last_timestamp = begin


def _evaluate(trial: Any, rules: list[Any], also: Any = None) -> set[str]:
    """Gives each window of the data to all rules; returns the names of those that fired."""
    from luff.compat.smdebug.exceptions import NoMoreProfilerData

    fired = set()
    while trial.first_timestamp:
        try:
            begin, end = rules[0].next_window()
        except NoMoreProfilerData:
            break
        values, events = rules[0].data_of(begin, end)
        if not values and not events:
            _skip(trial, rules[0])
            continue
        fired |= {rule.rule_name for rule in rules if rule.look(begin, end, values, events)}
        if also is not None:
            also(values, events)
    return fired


def _what(rule: Any) -> str:
    report = rule.report
    points = f"{report['Datapoints']:,} data points"
    patience = rule.parameters.get("patience")
    if patience is not None and report["Datapoints"] <= patience:
        return f"not judged: {points}, it wants more than {patience:,}"
    if not report["Datapoints"]:
        return "not judged: no data"
    return f"{report['Violations']:,} violations, {points}"


def check(args: argparse.Namespace) -> int:
    """Evaluates rules; 1 if one fires or something cannot be read."""
    trial = _trial(args.dir, args.out or None)
    rules = _chosen(args.rules, trial)
    fired = _evaluate(trial, rules)
    if args.out:
        from luff.compat.smdebug.profiler.rules.report import write_reports

        write_reports(args.out, rules)
    problems = _problems(trial)
    for rule in rules:
        if args.json:
            line = {"rule": rule.rule_name, "fired": rule.rule_name in fired, **rule.report}
            print(json.dumps(line, default=float))
            continue
        word = "fires" if rule.rule_name in fired else "-"
        print(f"{rule.rule_name:<24} {word:<6} {_what(rule)}")
        if rule.rule_name in fired:
            print(f"    {rule.description} {rule.recommendation}".rstrip())
    for problem in problems[:_MOST_PROBLEMS]:
        print(f"luff: not read: {_core.escaped(problem)}", file=sys.stderr)
    if not trial.first_timestamp:
        print(f"luff: the folder has no data of a profiler: {_core.escaped(args.dir)}", file=sys.stderr)
        return 1
    return 1 if fired or problems else 0


def _seconds(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.1f} s" if seconds < 600 else f"{seconds / 60:.0f} min"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"


def profile(args: argparse.Namespace) -> int:
    """Shows on one screen what the folder says."""
    trial = _trial(args.dir)
    rules = _chosen("", trial)
    took: dict[str, list[float]] = defaultdict(list)
    nodes: set[str] = set()
    last = [trial.first_timestamp / 1e6]

    def add(values: list[Any], events: list[Any]) -> None:
        nodes.update(one.node_id for one in values)
        for event in events:
            took[event.event_phase].append(event.duration / 1e6)
        last.extend([*(one.timestamp for one in values[-1:]), *(one.end_time / 1e6 for one in events[-1:])])

    fired = _evaluate(trial, rules, add)
    by_name = {rule.rule_name: rule for rule in rules}
    usage = by_name["OverallSystemUsage"].report["Details"]
    steps = sum(len(times) for name, times in took.items() if name.startswith("Step"))
    in_steps = sum(sum(times) for name, times in took.items() if name.startswith("Step"))
    phases: list[dict[str, Any]] = [
        {
            "phase": name,
            "events": len(times),
            "seconds": sum(times),
            "median": float(np.median(times)),
            "p95": float(np.quantile(times, 0.95)),
        }
        for name, times in sorted(took.items(), key=lambda one: -sum(one[1]))
    ]
    seconds = max(last) - trial.first_timestamp / 1e6
    problems = _problems(trial)
    if args.json:
        found = {
            "directory": args.dir,
            "seconds": seconds,
            "nodes": sorted(nodes),
            "steps": steps,
            "system": usage,
            "phases": phases,
            "rules": {name: {"fired": name in fired, **rule.report} for name, rule in by_name.items()},
            "problems": problems,
        }
        print(json.dumps(found, indent=2, default=float))
        return 0
    if not trial.first_timestamp:
        print("the folder has no data of a profiler")
        return 0
    judged = sorted(fired)
    print(
        f"{', '.join(judged)} fire"
        if len(judged) > 1
        else f"{judged[0]} fires"
        if judged
        else "no rule fires"
    )
    machines = f"{len(nodes)} machine{'s' if len(nodes) != 1 else ''}, " if nodes else ""
    print(f"\n  {machines}{_seconds(seconds)}, {steps:,} steps\n")
    for node, rows in sorted(usage.items()):
        print(f"  {_core.escaped(node):<16} {'median':>10} {'p95':>10} {'max':>10}")
        for title, row in rows.items():
            unit = "" if title == "Network" else " %"
            print(f"  {title:<16} {row['p50']:>10,.1f} {row['p95']:>10,.1f} {row['max']:>10,.1f}{unit}")
        print()
    if phases:
        print(f"  {'phase':<32} {'events':>9} {'median':>9} {'p95':>9} {'all':>9}")
        for one in phases[:20]:
            name = _core.escaped(one["phase"])[:32]
            print(
                f"  {name:<32} {one['events']:>9,} {_seconds(one['median']):>9} {_seconds(one['p95']):>9} "
                f"{_seconds(one['seconds']):>9}"
            )
        if in_steps:
            print(f"\n  steps took {_seconds(in_steps)} in all")
    print("\n  rules, with their published defaults")
    for name, rule in by_name.items():
        if not name.startswith("Overall"):
            print(f"    {name:<24} {'fires: ' if name in fired else ''}{_what(rule)}")
    if problems:
        print("\n  not read")
        for problem in problems[:_MOST_PROBLEMS]:
            print(f"    {_core.escaped(problem)}")
        if len(problems) > _MOST_PROBLEMS:
            print(f"    and {len(problems) - _MOST_PROBLEMS} more")
    return 0


def export(args: argparse.Namespace) -> int:
    """Writes a run in the layout of the original's profiler."""
    from luff.compat.smdebug.profiler._write import write_profile

    written = write_profile(args.dir, args.out)
    print(
        f"{written['steps']:,} steps and {written['values']:,} values of the machine written to "
        f"{_core.escaped(args.out)}"
    )
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="luff")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name, needs in (("profile", ()), ("check", ("--rules", "--out")), ("export", ("out",))):
        verb = verbs.add_parser(name)
        verb.add_argument("dir")
        for option in needs:
            verb.add_argument(option, default="" if option.startswith("-") else None)
        verb.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    logging.getLogger("smdebug").setLevel(logging.CRITICAL)  # problems are shown by the verbs
    try:
        return {"profile": profile, "check": check, "export": export}[args.verb](args)
    except (luff.LuffError, OSError, ValueError) as error:
        print(f"luff: {_core.escaped(str(error))}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
