"""The page of the profiler's report: one file, without scripts and without anything from elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

__all__ = ["page"]

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: .5rem 0 1rem; }
caption { text-align: left; font-weight: 600; }
td, th { border: 1px solid #8888; padding: .2rem .6rem; text-align: left; vertical-align: top; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
.fired { font-weight: 700; }
.bar { background: #4c8bf5; height: .8rem; display: inline-block; vertical-align: middle; }
pre { white-space: pre-wrap; margin: 0; }
"""
_MOST_ROWS = 50


def _cell(found: Any) -> str:
    if isinstance(found, bool) or found is None:
        return f"<td>{escape(str(found))}</td>"
    if isinstance(found, (int, float)):
        return (
            f'<td class="n">{found:,.4g}</td>'
            if isinstance(found, float)
            else f'<td class="n">{found:,}</td>'
        )
    return f"<td>{escape(str(found))}</td>"


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    if not rows:
        return ""
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows[:_MOST_ROWS])
    more = f"<p>{len(rows) - _MOST_ROWS} more rows.</p>" if len(rows) > _MOST_ROWS else ""
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    return f"<table><caption>{escape(title)}</caption><tr>{heads}</tr>{body}</table>{more}"


def _shares(title: str, shares: Mapping[str, float]) -> str:
    rows = sorted(shares.items(), key=lambda one: -one[1])[:_MOST_ROWS]
    if not rows:
        return ""
    body = "".join(
        f'<tr><td>{escape(str(name))}</td><td class="n">{share:.1f} %</td>'
        f'<td><span class="bar" style="width:{max(0.0, min(share, 100.0)) / 8:.2f}rem"></span></td></tr>'
        for name, share in rows
    )
    return f"<table><caption>{escape(title)}</caption>{body}</table>"


def _histogram(counts: Sequence[float], title: str) -> str:
    most = max(counts, default=0)
    if most <= 0:
        return ""
    bars = "".join(
        f'<rect x="{4 * i}" y="{60 - 60 * count / most:.1f}" width="3" height="{60 * count / most:.1f}"/>'
        for i, count in enumerate(counts)
    )
    label = escape(title)
    return (
        f'<figure><svg role="img" aria-label="{label}" viewBox="0 0 {4 * len(counts)} 60" width="{4 * len(counts)}" '
        f'height="60" fill="#4c8bf5">{bars}</svg><figcaption>{label}</figcaption></figure>'
    )


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds)) if seconds else "not known"


def _job(summary: Mapping[str, Any], details: Mapping[str, Any]) -> str:
    rows: list[tuple[str, Any]] = [
        ("begin", _time(summary["start"])),
        ("end", _time(summary["end"])),
        ("duration (s)", round(summary["duration"], 1)),
    ]
    steps, whole = details.get("step_num"), summary["duration"]
    if steps and whole > 0:
        first = max(steps["first"] / 1e6 - summary["start"], 0)
        last = max(summary["end"] - steps["last"] / 1e6, 0)
        rows += [
            ("initialization", f"{first:.1f} s, {100 * first / whole:.1f} %"),
            ("training loop", f"{max(whole - first - last, 0):.1f} s"),
            ("after the last step began", f"{last:.1f} s, {100 * last / whole:.1f} %"),
        ]
    return _table("Job", ("", ""), rows)


def _usage(details: Mapping[str, Any]) -> str:
    names = ("max", "p99", "p95", "p50", "min")
    rows = [
        (node, title, *(row[name] for name in names))
        for node, found in details.items()
        for title, row in found.items()
    ]
    return _table(
        "Use of the machines (percent; network in bytes a second)", ("node", "metric", *names), rows
    )


def _boxes(title: str, details: Mapping[str, Any]) -> str:
    names = ("gpu_max", "gpu_95", "gpu_5", "increase", "p25", "p50", "p75", "p95", "upper", "lower")
    rows, used = [], [n for n in names if any(n in one for gpus in details.values() for one in gpus.values())]
    for node, gpus in details.items():
        rows += [(node, gpu, *(one.get(name) for name in used)) for gpu, one in gpus.items()]
    return _table(title, ("node", "GPU", *used), rows)


def page(summary: Mapping[str, Any], rules: Sequence[Any], failed: Mapping[str, str]) -> str:
    """Returns the page.

    Parameters
    ----------
    summary
        ``start``, ``end``, ``duration`` of the data in seconds.
    rules
        The rules, each with `report`, `description` and `recommendation`.
    failed
        Errors of rules, by name.
    """
    by_name = {rule.rule_name: rule for rule in rules}
    details = {name: rule.report["Details"] for name, rule in by_name.items()}
    framework = details["OverallFrameworkMetrics"]
    parts = [
        "<h1>Profiler report</h1>",
        "<h2>Training job summary</h2>",
        _job(summary, details["MaxInitializationTime"]),
        "<h2>System usage</h2>",
        _usage(details["OverallSystemUsage"]) or "<p>No system metrics.</p>",
        "<h2>Framework metrics</h2>",
        "".join(
            _shares(title, framework.get(key, {}))
            for key, title in (
                ("phase", "Training and evaluation"),
                ("forward_backward", "Forward and backward"),
                ("ratio", "Operators of CPU and GPU"),
                ("general", "Other phases"),
                ("CPU", "CPU operators"),
                ("GPU", "GPU operators"),
                ("horovod", "Horovod"),
            )
        )
        or "<p>No framework metrics.</p>",
        "<h2>Rules</h2>",
    ]
    rows = []
    for name, rule in sorted(by_name.items(), key=lambda one: (-one[1].report["RuleTriggered"], one[0])):
        report = rule.report
        mark = ' class="fired"' if report["RuleTriggered"] else ""
        rows.append(
            f"<tr><td{mark}>{escape(name)}</td><td>{escape(rule.description)}</td>"
            f"<td>{escape(rule.recommendation)}</td>"
            f'<td class="n">{report["RuleTriggered"]}</td><td class="n">{report["Datapoints"]:,}</td>'
            f"<td><pre>{escape(report['RuleParameters'])}</pre></td></tr>"
        )
    heads = "".join(
        f'<th scope="col">{one}</th>'
        for one in ("rule", "description", "recommendation", "times triggered", "data points", "parameters")
    )
    parts.append(f"<table><tr>{heads}</tr>{''.join(rows)}</table>")
    parts += [f"<p>{escape(name)} failed: {escape(error)}</p>" for name, error in failed.items()]
    parts.append("<h2>Details</h2>")
    for node, names in details["StepOutlier"].get("step_details", {}).items():
        for name, one in names.items():
            stats = one["step_stats"]
            title = f"{node}, {name}: seconds of a step; {one['number_of_outliers']} outliers"
            parts.append(_table(title, tuple(stats), [tuple(stats.values())]))
            parts.append(
                _histogram(
                    one["probs"],
                    f"Steps that are no outliers, from {one['binedges'][0]:.4g} s to {one['binedges'][-1]:.4g} s",
                )
            )
    parts.append(_boxes("Use of GPUs", details["LowGPUUtilization"]))
    for node, found in details["BatchSize"].items():
        rows_of = [
            (kind, gpu, *one.values()) for kind in ("gpu", "gpu_memory") for gpu, one in found[kind].items()
        ]
        rows_of.insert(0, ("cpu", "", *found["cpu"].values()))
        parts.append(
            _table(f"Batch size, {node}", ("", "", "p25", "p50", "p75", "p95", "upper", "lower"), rows_of)
        )
    for name in ("CPUBottleneck", "IOBottleneck"):
        report = by_name[name].report
        text = (
            f"{name}: {report['Violations']:,} of {report['Datapoints']:,} ticks; a GPU had little to do at "
            f"{report['Details']['low_gpu_utilization']:,}"
        )
        parts.append(f"<p>{escape(text)}</p>")
        for kind, shares in report["Details"].get("framework", {}).items():
            parts.append(_shares(f"{name}: what went on then ({kind})", shares))
    for node, found in details["LoadBalancing"].items():
        pairs = [(a, b, d) for a, others in found["distances"].items() for b, d in others.items()]
        parts.append(_table(f"Load balancing, {node}", ("GPU", "GPU", "distance"), pairs))
        parts += [
            _histogram(counts, f"{node} {gpu}: use in steps of 2 %")
            for gpu, counts in found["workloads"].items()
        ]
    parts.append(_boxes("GPU memory that grew", details["GPUMemoryIncrease"]))
    loader = details["Dataloader"]
    if loader:
        known = [(key, value) for key, value in loader.items() if not isinstance(value, dict)]
        parts.append(_table("Data loaders", ("", ""), known))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Profiler report</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )
