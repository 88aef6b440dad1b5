"""The page of a sweep: whole, without scripts, and nothing in it is what a run made of it."""

from __future__ import annotations

import base64
import copy
import hashlib
import re
from html.parser import HTMLParser

import pytest
from luff._verbs import made_file, sweep_page
from luff._verbs.sweep_page import axis_of, page

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\u202e\x1b[2J</style>"


def trial(number, bad, **more):
    finding = {
        "rule": "NonFinite", "cause": "overflow", "severity": "stop", "mode": "TRAIN", "tensor": "loss",
        "since_step": 3, "what": "The loss is NaN.",
    }  # fmt: skip
    return {
        "trial": f"trial-{number}", "run": f"/runs/{number}", "bad": bad, "ended": True, "stopped": bad,
        "wrong_stop": False, "outcome": "stopped" if bad else "completed",
        "verdict": "stopped" if bad else "ok", "why": "",
        "parameters": {"lr": 5.0 if bad else 0.001 * (1 + number), "kind": "mlp", "deep": number % 2 == 0},
        "steps": 10 if bad else 600, "workers": 1, "took_s": 3.0, "device_hours": 0.1, "loss": "NaN" if bad else 0.5,
        "best_loss": "NaN" if bad else 0.5 / (1 + number), "finding": finding if bad else None, "findings": [],
        "nearest": None, **more,
    }  # fmt: skip


def sweep(trials, **more):
    return {
        "sweep": "digits", "folder": "/runs", "trials": trials,
        "shared": {
            "findings": [], "sentences": ["lr >= 5: 3 of 3 are bad."],
            "parameters": [{"parameter": "lr", "op": ">=", "value": 5.0, "p": 1e-4, "bad_inside": 3, "inside": 3,
                            "bad_outside": 0, "outside": 6}],
        },
        "same": [{"trials": [0, 1], "steps": 600, "differ": ["deep"]}],
        "saved": {"stopped": 3, "completed": 6, "wrong_stops": 0, "median_s": 3.0, "median_steps": 600,
                  "device_hours": 0.5, "steps_share": 0.32, "spent_device_hours": 1.0, "basis": "About half an hour."},
        "notes": [], **more,
    }  # fmt: skip


TOLD = sweep([trial(n, n % 3 == 1) for n in range(9)])


class Read(HTMLParser):
    """What a browser sees: tags with attributes, and text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self._open = [], "", []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "path", "rect", "circle"):
            self._open.append(tag)

    def handle_endtag(self, tag):
        if tag not in ("path", "rect", "circle"):
            assert self._open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_it_tells_what_the_command_tells():
    read = Read(page(TOLD))
    for text in (
        "digits",
        "lr >= 5: 3 of 3 are bad.",
        "About half an hour.",
        "NonFinite since step 3",
        "The loss is NaN.",
    ):
        assert text in read.text
    assert (
        "trial-0, trial-1: bit for bit the same in all 600 TRAIN steps that they share, though they differ in deep."
        in read.text
    )
    assert "32 %" in read.text
    assert [
        name for tag, attributes in read.tags for name in [attributes.get("class")] if name == "cross"
    ] == ["cross"] * 3
    rows = [tag for tag, _ in read.tags].count("tr")
    assert rows == 9 + 2
    assert read.text.index("trial-8") < read.text.rindex("trial-0")  # of the others the best first


def test_its_policy_allows_its_own_style_and_nothing_else():
    text = page(TOLD)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', text)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; form-action 'none'; base-uri 'none'"
    for tag, attributes in Read(text).tags:
        assert tag not in ("script", "img", "iframe", "object", "embed", "link", "form", "a", "base")
        assert not any(name.startswith("on") or name in ("style", "href", "src") for name in attributes)


def test_what_runs_say_is_text():
    told = copy.deepcopy(TOLD)
    told["sweep"] = told["folder"] = HOSTILE
    told["notes"] = told["shared"]["sentences"] = [HOSTILE]
    told["saved"]["basis"] = HOSTILE
    told["same"][0]["differ"] = [HOSTILE]
    told["shared"]["parameters"][0]["parameter"] = HOSTILE
    for number, one in enumerate(told["trials"]):
        one |= {"trial": HOSTILE, "run": HOSTILE, "verdict": HOSTILE, "why": HOSTILE}
        one["parameters"] = {
            HOSTILE: number if number % 2 else HOSTILE,
            "x": 10**400 if number == 3 else number,
        }
        if one["finding"]:
            one["finding"] |= dict.fromkeys(("rule", "what", "tensor", "mode"), HOSTILE)
    read = Read(page(told))
    assert {tag for tag, _ in read.tags} <= {
        "html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "div", "b", "span", "ul", "li", "figure",
        "figcaption", "svg", "path", "circle", "rect", "text", "table", "thead", "tbody", "tr", "th", "td", "details",
        "summary",
    }  # fmt: skip
    assert not any(name.startswith("on") for _, attributes in read.tags for name in attributes)
    assert "\u202e" not in read.text
    assert "\x1b" not in read.text
    assert "<script>" in read.text


@pytest.mark.parametrize(
    "trials", [[], [trial(0, False)], [trial(0, True)], [trial(n, True) for n in range(3)]]
)
def test_small_sweeps_have_pages(trials):
    told = sweep(trials, same=[])
    told["shared"]["parameters"] = []
    told["saved"] |= {
        "stopped": 0,
        "completed": 0,
        "device_hours": None,
        "steps_share": None,
        "median_steps": 0,
    }
    Read(page(told))
    Read(page(told, by="lr,kind"))


def test_large_sweeps_are_bounded():
    text = page(sweep([trial(n, n % 3 == 0) for n in range(9000)]))
    assert "and 4000 more (--json)" in text
    assert len(text) < 6_000_000


def test_axes_reach_from_end_to_end():
    assert axis_of([1, 3], 0, 100)(2) == 50
    assert axis_of([5, 5], 0, 100)(5) == 50
    wide = axis_of([0.001, 10], 0, 100)
    assert wide.log
    assert wide(0.1) == pytest.approx(50)
    assert wide(-1) == 0
    assert not axis_of([0, 10], 0, 100).log


def test_a_file_is_written_whole_or_not_at_all(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(made_file, "luff_command", lambda: "/bin/false")
    assert sweep_page.main(["--html", str(tmp_path / "page.html"), "--sweep", "digits"]) == 1
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "told").write_text("#!/bin/sh\ncat <<'EOF'\n" + __import__("json").dumps(TOLD) + "\nEOF\n")
    (tmp_path / "told").chmod(0o755)
    monkeypatch.setattr(made_file, "luff_command", lambda: str(tmp_path / "told"))
    assert sweep_page.main(["--html", str(tmp_path / "page.html"), "--sweep", "digits"]) == 0
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert sweep_page.main(["--html", str(tmp_path / "no/page.html"), "--sweep", "digits"]) == 2
    assert "the page cannot be written" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["page.html", "told"]
