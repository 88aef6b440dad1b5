"""`luff explain`, `luff report`, `luff rules`: findings for human readers."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.report import Report, skip_without_page

from .conftest import Command, train


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose loss is NaN from step 5 on, with a name that must be escaped."""
    run = tmp_path_factory.mktemp("findings") / "a <run> & more"
    train(run, steps=30, nan_at=5)
    return run


@pytest.fixture(scope="module")
def ids(luff: Command, judged: Path) -> list[dict[str, object]]:
    """Findings of the run, stored in it."""
    found = [json.loads(line) for line in luff("check", judged, "--json").out.splitlines()]
    folder = judged / "rules" / "luff"
    folder.mkdir(parents=True)
    (folder / "findings.jsonl").write_text("".join(json.dumps(f) + "\n" for f in found))
    assert found, "a NaN loss gives no finding"
    return found


def test_explain_lists_findings_and_tells_one_by_rule_id_and_first_letters(
    luff: Command, judged: Path, ids: list[dict[str, object]]
) -> None:
    first = ids[0]
    listed = luff("explain", "--run", judged)
    assert listed.code == 0
    assert str(first["id"]) in listed.out
    for name in (first["rule"], first["id"], str(first["id"])[:6]):
        told = luff("explain", name, "--run", judged)
        assert told.code == 0, told.err
        assert f"id      {first['id']}" in told.out
        assert "to do" in told.out
    as_json = luff("explain", first["id"], "--run", judged, "--json")
    assert json.loads(as_json.out)["id"] == first["id"]


def test_charts_of_findings_begin_before_the_onset(
    luff: Command, judged: Path, ids: list[dict[str, object]]
) -> None:
    since = ids[0]["since_step"]
    told = luff("explain", ids[0]["id"], "--run", judged).out
    shown = re.search(r"series  (\S+)  steps (\d+) to (\d+)", told)
    assert shown, told
    assert int(shown[2]) < int(str(since)) < int(shown[3])
    assert "x" in shown[1]
    assert "x" not in shown[1][: int(str(since)) - int(shown[2])], "the healthy level is seen"
    below = told.splitlines()[
        [line.startswith("luff:   series") for line in told.splitlines()].index(True) + 1
    ]
    assert below.index("▲") == len("luff:   series  ") + int(str(since)) - int(shown[2])
    assert luff("plot", judged).out.count("▲") >= 1


def test_the_step_of_a_finding_can_be_typed_into_every_verb(
    luff: Command, judged: Path, ids: list[dict[str, object]], tmp_path: Path
) -> None:
    seen = 0
    for finding in ids:
        for step in (finding["since_step"], finding["step"]):
            given = () if finding["mode"] == "TRAIN" else ("--mode", finding["mode"])
            listed = luff("tensors", judged, "--step", step, *given, "--json").out
            for tensor in json.loads(listed):
                drawn = luff("plot", judged, tensor["name"], *given)
                assert drawn.code == 0, drawn.err
                told = luff("summary", judged, tensor["name"], *given).out.splitlines()
                assert told[0].split()[:2] == [finding["mode"], "step"]
                assert str(step) in [line.split()[0] for line in told]
                value = luff("value", judged, tensor["name"], step, *given)
                assert value.code == 0 or "was not saved" in value.err, value.err
                seen += value.code == 0
            out = tmp_path / f"{finding['id']}-{step}.safetensors"
            written = luff("export", judged, out, "--to", "safetensors", "--step", step, "--force", *given)
            assert written.code == 0, written.err
            with out.open("rb") as file:
                header = json.loads(file.read(int.from_bytes(file.read(8), "little")))["__metadata__"]
            assert (header["mode"], header["mode_step"]) == (finding["mode"], str(step))
    assert seen


def test_explain_takes_the_run_as_the_other_verbs_do(
    luff: Command, judged: Path, ids: list[dict[str, object]]
) -> None:
    listed = luff("explain", judged)
    assert listed == luff("explain", "--run", judged)
    assert f"since step {ids[0]['since_step']}: " in listed.out
    told = luff("explain", judged, ids[0]["rule"])
    assert told.code == 0, told.err
    assert told == luff("explain", ids[0]["rule"], "--run", judged)
    twice = luff("explain", judged, ids[0]["rule"], "--run", judged)
    assert (twice.code, twice.out) == (2, "")


def test_explain_lists_first_what_the_verdict_names(
    luff: Command, judged: Path, ids: list[dict[str, object]], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(judged, run)
    lead = next(one for one in ids if one["severity"] == "stop")

    def finding(number: int, **members: object) -> dict[str, object]:
        return lead | {"id": f"{number:016x}", "leader": "", "healed": False} | members

    written = [
        finding(1, rule="DeadRelu", severity="warn", since_step=0, healed=True),
        finding(2, rule="ExplodingTensor", severity="warn", since_step=1),
        finding(3),
        finding(4, rule="LossNotDecreasing", severity="warn", leader=f"{3:016x}"),
    ]
    (run / "rules" / "luff" / "findings.jsonl").write_text("".join(json.dumps(one) + "\n" for one in written))
    listed = luff("explain", run)
    assert listed.code == 0, listed.err
    numbers = [int(one) for one in re.findall(r"^(?:  because of it: )?(\d{16}) ", listed.out, re.MULTILINE)]
    assert numbers == [3, 4, 1, 2]
    assert "(healed)" in listed.out.splitlines()[2]
    as_json = json.loads(luff("explain", run, "--json").out)
    assert [int(one["id"]) for one in as_json] == numbers


def test_explain_of_a_rule_names_its_other_findings(
    luff: Command, judged: Path, ids: list[dict[str, object]], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(judged, run)
    written = [
        ids[0] | {"id": f"{n:016x}", "rule": "LossUp", "since_step": n, "leader": ""} for n in (1, 2, 3)
    ]
    (run / "rules" / "luff" / "findings.jsonl").write_text("".join(json.dumps(one) + "\n" for one in written))
    told = " ".join(luff("explain", run, "LossUp").out.split())
    assert f"id {1:016x}" in told
    assert f"2 of LossUp, by their ids: {2:016x}" in told
    assert f"{3:016x}" in told
    assert "others" not in luff("explain", run, f"{2:016x}").out


def test_explain_names_what_there_is(luff: Command, judged: Path, ids: list[dict[str, object]]) -> None:
    wrong = luff("explain", "NoSuchRule", "--run", judged)
    assert wrong.code == 2
    assert str(ids[0]["id"]) in wrong.err


def test_report_is_one_file_that_needs_nothing_else(
    luff: Command, judged: Path, ids: list[dict[str, object]], tmp_path: Path
) -> None:
    out = tmp_path / "report.html"
    done = luff("report", judged, "-o", out)
    skip_without_page(done.err)
    assert (done.code, done.out) == (0, f"{out}\n")
    page = out.read_text()
    assert not re.search(r'(?:src|href)="(?!data:)', page.split('<script type="module">')[0])
    assert str(judged.name) not in page, "names stand in the archive alone"
    report = Report(page)
    assert [finding["id"] for finding in report.json("findings")["findings"]].count(ids[0]["id"]) == 1
    assert report.json("")["card"]["place"] == judged.name
    for finding in report.json("findings")["findings"]:
        tensors = [
            tensor for tensor in report.json("tensors")["tensors"] if tensor["name"] == finding["tensor"]
        ]
        for tensor in tensors:
            assert report.answer(f"columns?tensor={tensor['id']}&stat=auto")
        assert report.answer(f"at/{finding['global_step']}")
    assert luff("report", judged, "-o", out, "--max-bytes", "no").code == 2


def test_rules_explain_prints_the_page_and_finds_aliases(luff: Command) -> None:
    page = (Path(__file__).parents[2] / "docs/rules/dead_relu.md").read_text()
    assert page in luff("rules", "explain", "DeadRelu").out
    assert luff("rules", "explain", "UpdateTooSmall").out.startswith("# WeightUpdateRatio")


def test_cost_says_what_each_rule_needs(luff: Command, run: Path) -> None:
    text = luff("rules", "--cost").out
    assert "WeightUpdateRatio" in text
    assert "difference of weights" in text
    priced = json.loads(luff("rules", "--cost", "--run", run, "--json").out)
    assert len(priced) == len(json.loads(luff("rules", "--json").out))
    assert all(rule["adds_read_bytes_per_step"] >= 0 for rule in priced)
    assert {"samples"} <= {c["name"] for c in json.loads(luff("rules", "--capture").out)["collections"]}
