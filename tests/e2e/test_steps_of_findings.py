"""A step that a finding names means the same in every verb, whatever the loop is like."""

from __future__ import annotations

import json
import re

import pytest

from .conftest import Luff

_CONFIG = """
[capture]
save = {save_interval = 1}
collections = [{name = "kept", include = ["weight$", "_output_0$"], forms = ["raw", "summary"]}]
"""
_RULES = "NonFinite,TensorVariance:tensor_regex=^2_output_0$:max_threshold=10000"


@pytest.mark.parametrize("kind", ["gan", "accumulation", "evaluation", "trainer"])
def test_the_step_of_a_finding_is_a_step_of_the_loop_in_every_verb(luff: Luff, kind: str) -> None:
    config = luff.tmp / "luff.toml"
    config.write_text(_CONFIG)
    job = luff.run("loops.py", "--rules", _RULES, "--config", str(config), arguments=(kind,))
    assert job.code == 0, job.stderr
    mode, step, update = job.stdout.split()
    found = job.findings[0]
    assert (found["mode"], str(found["since_step"])) == (mode, step), found
    assert found["rule"] == ("NonFinite" if mode == "TRAIN" else "TensorVariance")
    run, tensor = str(job.run), found["tensor"]
    given = () if mode == "TRAIN" else ("--mode", mode)

    def told(*arguments: str) -> str:
        code, out, err = luff(*arguments)
        assert code == 0, err
        return out

    assert f"{mode} step {step}" in told("value", run, tensor, step, *given)
    head, *rows = (line.split() for line in told("summary", run, tensor, *given).splitlines())
    assert head[:3] == [mode, "step", "update"]
    assert [step, update] in [row[:2] for row in rows]
    shown = [line.split() for line in told("tail", run, "-n", "1000").splitlines()]
    assert [mode, step, update] in [row[:3] for row in shown]
    listed = json.loads(told("tensors", run, "--step", step, *given, "--json"))
    assert tensor in [one["name"] for one in listed]
    drawn = told("plot", run, tensor, *given)
    if mode == "TRAIN":
        assert told("value", run, tensor, step).split()[-1].lower() == "nan"
        assert re.search(rf"NaN or Inf at \d+ of \d+ steps, the first is {step}\n", drawn)
    out = luff.tmp / "step.safetensors"
    told("export", run, str(out), "--to", "safetensors", "--step", step, *given)
    with out.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))["__metadata__"]
    assert (header["mode"], header["mode_step"]) == (mode, step)
