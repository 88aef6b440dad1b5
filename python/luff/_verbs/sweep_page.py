"""``luff compare --sweep NAME --html FILE``: the comparison of a sweep as one page.

The page has no scripts and asks for nothing: its policy allows the one style sheet that it holds, by hash. Everything
that a run said is text in it.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import html
import json
import math
import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from luff._verbs.made_file import make_file, whole_file

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_ROWS = 2000
_MOST_BARS = 120
_MOST_COLUMNS = 8
_MOST_CHARTS = 6
_WIDE = 30.0  # numbers that reach over more than this are drawn on a logarithmic axis
_MAX_TEXT = 2000

STYLE = """
:root{color-scheme:light dark;--paper:#fbfbfa;--card:#fff;--ink:#1d2125;--soft:#59636e;--line:#dfe2e5;--good:#1f5fa8;
--bad:#b3261e;--band:#b3261e1f}
@media(prefers-color-scheme:dark){:root{--paper:#16181b;--card:#1c1f23;--ink:#e6e8ea;--soft:#a2abb5;--line:#33383e;
--good:#86b6ee;--bad:#ff8a80;--band:#ff8a8029}}
body{margin:0 auto;max-width:1180px;padding:24px 20px 60px;background:var(--paper);color:var(--ink);
font:14px/1.5 system-ui,sans-serif}
h1{font-size:22px;margin:0 0 2px;overflow-wrap:anywhere}h2{font-size:16px;margin:30px 0 8px}
p{margin:4px 0}.soft{color:var(--soft)}.bad{color:var(--bad)}ul{margin:0;padding-left:20px}
li{margin:3px 0;overflow-wrap:anywhere}
.tiles{display:flex;flex-wrap:wrap;gap:10px;margin:16px 0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:6px;padding:9px 14px;min-width:130px}
.tile b{display:block;font-size:20px;font-weight:600}
.charts{display:flex;flex-wrap:wrap;gap:14px}figure{margin:0;background:var(--card);border:1px solid var(--line);
border-radius:6px;padding:8px 10px;max-width:100%;width:fit-content;
box-sizing:border-box}figcaption{font-weight:600;overflow-wrap:anywhere;max-width:340px}
svg{display:block;max-width:100%;height:auto}svg text{fill:var(--soft);font:11px system-ui,sans-serif}
.axis{stroke:var(--line)}.dot{fill:var(--good);fill-opacity:.75}.cross{stroke:var(--bad);stroke-width:2;fill:none}
.band{fill:var(--band)}.edge{stroke:var(--bad);stroke-dasharray:4 3}.bar{fill:var(--good)}.barbad{fill:var(--bad)}
.median{stroke:var(--ink);stroke-dasharray:4 3}
.table{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:6px}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:5px 12px;border-bottom:1px solid var(--line);
vertical-align:top;white-space:nowrap}tr:last-child td{border-bottom:0}th{color:var(--soft);font-weight:500}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}td.what{white-space:normal;min-width:220px}
details{max-width:520px}summary{cursor:pointer}
@media print{body{max-width:none}}
"""


def shown(value: object) -> str:
    """A text for HTML. What moves a cursor or turns the direction of writing is shown, not sent."""
    text = str(value)
    text = text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "…"
    return html.escape("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text))


def _number(value: object) -> float | None:
    """A finite number, or None. JSON names the others."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:  # of a whole number with hundreds of digits
        return None
    return number if math.isfinite(number) else None


def _value(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.6g}" if isinstance(value, float) else shown(value)


def _took(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _count(number: int, one: str) -> str:
    return f"{number} {one}{'' if number == 1 else 's'}"


class Axis(NamedTuple):
    """Maps numbers to places between two ends."""

    low: float
    high: float
    log: bool
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        at = math.log(max(value, self.low)) if self.log else value
        part = 0.5 if high == low else (at - low) / (high - low)
        return self.begin + min(max(part, 0.0), 1.0) * (self.end - self.begin)


def axis_of(values: Sequence[float], begin: float, end: float) -> Axis:
    """An axis for at least one number; logarithmic where they are positive and reach far."""
    low, high = min(values), max(values)
    return Axis(low, high, low > 0 and high / low > _WIDE, begin, end)


# ---- Parts of the page ----


def _columns(told: dict[str, Any], by: str) -> list[str]:
    """Parameters to show: those asked for, else those that separate and those that differ."""
    if by:
        return by.split(",")
    values: dict[str, set[str]] = {}
    trials = told["trials"]
    for trial in trials:
        for name, value in trial["parameters"].items():
            values.setdefault(name, set()).add(json.dumps(value))
    found = [one["parameter"] for one in told["shared"]["parameters"]]
    for name, different in sorted(values.items()):
        everywhere = all(name in trial["parameters"] for trial in trials)
        if name not in found and (len(different) > 1 or not everywhere):
            found.append(name)
    return found[:_MOST_COLUMNS]


def _tiles(told: dict[str, Any]) -> str:
    trials, saved = told["trials"], told["saved"]
    bad = sum(trial["bad"] for trial in trials)
    losses = [
        (loss, trial)
        for trial in trials
        if not trial["bad"] and (loss := _number(trial["best_loss"])) is not None
    ]
    tiles = [("trials", str(len(trials)), ""), ("bad", str(bad), "bad" if bad else "")]
    running = sum(trial["outcome"] == "running" for trial in trials)
    if running:
        tiles.append(("running", str(running), ""))
    hours, share = _number(saved["device_hours"]), _number(saved["steps_share"])
    if saved["stopped"] and hours is not None and share is not None:
        tiles.append(("device time saved, estimate", _took(hours * 3600), ""))
        tiles.append(("of the steps not made", f"{100 * share:.0f} %", ""))
    if losses:
        loss, best = min(losses, key=lambda one: one[0])
        tiles.append((f"best loss in training: {shown(best['trial'])}", f"{loss:.4g}", ""))
    return "".join(
        f'<div class="tile"><b class="{kind}">{number}</b><span class="soft">{what}</span></div>'
        for what, number, kind in tiles
    )


def _scatter(told: dict[str, Any], name: str) -> str:
    """Trials over a parameter: dots by their best loss, crosses of bad ones above. "" if it is no number in two."""
    points = [
        (x, _number(trial["best_loss"]), trial)
        for trial in told["trials"]
        if (x := _number(trial["parameters"].get(name))) is not None
    ]
    if len({x for x, _, _ in points}) < 2:
        return ""
    width, height, left, top, bottom = 340, 200, 46, 34, 170
    across = axis_of([x for x, _, _ in points], left + 8, width - 12)
    losses = [y for _, y, trial in points if y is not None and not trial["bad"]]
    up = axis_of(losses, bottom - 6, top + 6) if losses else None
    drawn = [f'<path class="axis" fill="none" d="M{left} {top}V{bottom}H{width - 4}"/>']
    for one in told["shared"]["parameters"]:
        limit = _number(one["value"])
        if one["parameter"] != name or limit is None or one["op"] not in (">=", "<="):
            continue
        at = across(limit)
        begin, end = (at, width - 4) if one["op"] == ">=" else (left, at)
        drawn.append(
            f'<rect class="band" x="{begin:.1f}" y="4" width="{max(0.0, end - begin):.1f}" height="{bottom - 4}"/>'
        )
        drawn.append(f'<path class="edge" d="M{at:.1f} 4V{bottom}"/>')
    for x, y, trial in points:
        at, title = across(x), f"<title>{shown(trial['trial'])}: {_value(x)}, best loss {_value(y)}</title>"
        if trial["bad"]:
            drawn.append(f'<path class="cross" d="M{at - 4:.1f} 14l8 8m0-8l-8 8">{title}</path>')
        elif y is not None and up is not None:
            drawn.append(f'<circle class="dot" cx="{at:.1f}" cy="{up(y):.1f}" r="4">{title}</circle>')
    drawn += [
        f'<text x="{left - 5}" y="22" text-anchor="end">bad</text>',
        f'<text x="{left + 4}" y="{bottom + 15}">{across.low:.4g}</text>',
        f'<text x="{width - 6}" y="{bottom + 15}" text-anchor="end">{across.high:.4g}</text>',
    ]
    if across.log:
        drawn.append(
            f'<text x="{(left + width) / 2}" y="{bottom + 15}" text-anchor="middle">logarithmic</text>'
        )
    if up is not None:
        drawn.append(f'<text x="{left - 5}" y="{bottom - 3}" text-anchor="end">{up.low:.3g}</text>')
        drawn.append(f'<text x="{left - 5}" y="{top + 12}" text-anchor="end">{up.high:.3g}</text>')
    label = f"Best loss of each trial over {shown(name)}; bad trials are crosses above"
    return (
        f'<figure><figcaption>{shown(name)}</figcaption><svg width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="{label}">{"".join(drawn)}</svg>'
        '<span class="soft">best loss upwards; bad trials above</span></figure>'
    )


def _bars(told: dict[str, Any]) -> str:
    """How many steps each trial made, in the order in which they began."""
    trials = told["trials"][:_MOST_BARS]
    most = max((trial["steps"] for trial in trials), default=0)
    if most == 0:
        return ""
    width, height, bottom = 700, 130, 110
    each = (width - 60) / len(trials)
    drawn = [f'<path class="axis" d="M50 {bottom}H{width - 6}"/>']
    for number, trial in enumerate(trials):
        tall = (bottom - 12) * trial["steps"] / most
        drawn.append(
            f'<rect class="{"barbad" if trial["bad"] else "bar"}" x="{50 + number * each:.1f}" y="{bottom - tall:.1f}" '
            f'width="{max(1.0, each * 0.8):.1f}" height="{tall:.1f}"><title>{shown(trial["trial"])}: '
            f"{_count(trial['steps'], 'step')}</title></rect>"
        )
    median = told["saved"]["median_steps"]
    if told["saved"]["completed"] and 0 < median <= most:
        at = bottom - (bottom - 12) * median / most
        drawn.append(f'<path class="median" d="M50 {at:.1f}H{width - 6}"/>')
    drawn.append(
        f'<text x="45" y="18" text-anchor="end">{most}</text><text x="45" y="{bottom}" text-anchor="end">0</text>'
    )
    note = f"; the first {_MOST_BARS} of {len(told['trials'])}" if len(told["trials"]) > _MOST_BARS else ""
    return (
        f'<figure><svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="Steps of each trial">{"".join(drawn)}</svg><span class="soft">TRAIN steps of each trial, in the '
        f"order in which they began{note}; bad ones are red; the dashed line is the middle one of those that completed"
        "</span></figure>"
    )


def _names(told: dict[str, Any], which: Sequence[int]) -> str:
    names = [shown(told["trials"][i]["trial"]) for i in which[:6]]
    return ", ".join(names) + (f" and {len(which) - 6} more" if len(which) > 6 else "")


def _same(told: dict[str, Any]) -> list[str]:
    return [
        f"{_names(told, one['trials'])}: bit for bit the same in all {one['steps']} TRAIN steps that they share"
        + (f", though they differ in {', '.join(map(shown, one['differ']))}." if one["differ"] else ".")
        for one in told["same"]
    ]


def _finding(trial: dict[str, Any]) -> str:
    finding = trial["finding"]
    if finding is None:
        return shown(trial["why"])
    step = (
        f"{finding['mode']} step {finding['since_step']}"
        if finding["mode"] != "TRAIN"
        else f"step {finding['since_step']}"
    )
    tensor = f" · {shown(finding['tensor'])}" if finding["tensor"] else ""
    return (
        f"<details><summary>{shown(finding['rule'])} since {shown(step)}</summary>{shown(finding['what'])}"
        f'<span class="soft">{tensor}</span></details>'
    )


def _table(trials: Sequence[dict[str, Any]], columns: Sequence[str], bad: bool) -> str:
    heads = [
        "trial",
        "verdict",
        *(["finding"] if bad else []),
        "steps",
        "took",
        *([] if bad else ["last loss", "best"]),
    ]
    numbers = {"steps", "took", "last loss", "best"}
    rows = []
    for trial in trials[:_MOST_ROWS]:
        run = shown(trial["run"])
        cells = [f'<td title="{run}">{shown(trial["trial"])}</td>', f"<td>{shown(trial['verdict'])}</td>"]
        if bad:
            cells.append(f'<td class="what">{_finding(trial)}</td>')
        cells += [f'<td class="n">{trial["steps"]}</td>', f'<td class="n">{_took(trial["took_s"])}</td>']
        if not bad:
            cells += [f'<td class="n">{_value(trial[name])}</td>' for name in ("loss", "best_loss")]
        for name in columns:
            value = trial["parameters"].get(name)
            kind = ' class="n"' if _number(value) is not None else ""
            cells.append(f"<td{kind}>{_value(value)}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    head = "".join(f"<th{' class=n' if name in numbers else ''}>{name}</th>" for name in heads)
    for name in columns:
        known = [trial["parameters"][name] for trial in trials if name in trial["parameters"]]
        kind = ' class="n"' if all(_number(value) is not None for value in known) else ""
        head += f"<th{kind}>{shown(name)}</th>"
    more = (
        f'<p class="soft">and {len(trials) - _MOST_ROWS} more (--json)</p>'
        if len(trials) > _MOST_ROWS
        else ""
    )
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>{more}'


def _list(title: str, sentences: Sequence[str]) -> str:
    """Sentences are HTML already."""
    if not sentences:
        return ""
    return f"<h2>{title}</h2><ul>{''.join(f'<li>{one}</li>' for one in sentences)}</ul>"


def page(told: dict[str, Any], by: str = "") -> str:
    """The page of what ``luff compare --sweep --json`` tells (docs/spec/catalog.md, section 6)."""
    columns = _columns(told, by)
    bad = [trial for trial in told["trials"] if trial["bad"]]
    others = [trial for trial in told["trials"] if not trial["bad"]]
    others.sort(key=lambda trial: best if (best := _number(trial["best_loss"])) is not None else math.inf)
    charts = [chart for chart in (_scatter(told, name) for name in columns) if chart][:_MOST_CHARTS]
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    name = shown(told["sweep"])
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-{digest}'; "
        "form-action 'none'; base-uri 'none'\">",
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="referrer" content="no-referrer">',
        f"<title>{name} · sweep</title><style>{STYLE}</style></head><body>",
        f'<h1>{name}</h1><p class="soft">a sweep of {_count(len(told["trials"]), "trial")} · ',
        f"{shown(told['folder'])}</p>",
        f'<div class="tiles">{_tiles(told)}</div>',
        _list("What the bad ones share", [shown(one) for one in told["shared"]["sentences"]]),
        f'<h2>Parameters</h2><div class="charts">{"".join(charts)}</div>' if charts else "",
        f"<h2>How far they came</h2>{bars}" if (bars := _bars(told)) else "",
        "<h2>Bad</h2><p class=soft>stopped by a finding, failed, or a finding of severity stop stands</p>"
        + _table(bad, columns, True)
        if bad
        else "",
        "<h2>The others, that with the best loss first</h2>" + _table(others, columns, False)
        if others
        else "",
        _list("The same numbers", _same(told)),
        f"<h2>Device time</h2><p>{shown(told['saved']['basis'])}</p>",
        _list("Not looked at", [shown(one) for one in told["notes"]]),
        "</body></html>\n",
    ]
    return "\n".join(part for part in parts if part)


def _write(path: str, text: str) -> None:
    """Writes a file whole or not at all; devices are written into."""
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return
    with whole_file(path) as whole:
        whole.write(text.encode())


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="luff compare")
    parser.add_argument("--html", required=True)
    parser.add_argument("--sweep", required=True)
    parser.add_argument("--by", default="")
    parser.add_argument("folder", nargs="?", default="")
    arguments = parser.parse_args(words)
    name = [f"--sweep={arguments.sweep}"] if arguments.sweep else ["--sweep", ""]
    command = ["compare", *name, "--json"]
    command += [f"--by={arguments.by}"] if arguments.by else []
    command += ["--", arguments.folder] if arguments.folder else []

    def write(printed: bytes) -> str:
        _write(arguments.html, page(json.loads(printed), arguments.by))
        return ""

    return make_file(arguments.html, "page", command, write)


if __name__ == "__main__":
    sys.exit(main())
