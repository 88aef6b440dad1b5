"""What machines are told of runs: the table of docs/spec/metrics.md, both texts, files, ports, and their truth."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

import luff as package
import pytest

from .conftest import LIMIT_S, Server, executable, record

ROOT = Path(__file__).resolve().parents[2]
STEPS = 40
# Weights shrink by a hundredth at each step, and the last loss is NaN.
SCRIPT = f"""
import json, sys
import luff.numpy
import numpy as np
random = np.random.default_rng(0)
weights = {{"a.weight": random.normal(size=(200, 200)), "b.weight": random.normal(size=30)}}
settings = {{"lr": 0.1}}
hook = luff.numpy.attach(weights, settings)
for i in range({STEPS}):
    with hook.step() as step:
        gradients = {{name: 0.1 * weight for name, weight in weights.items()}}
        norm = np.sqrt(sum(np.sum(g * g) for g in gradients.values()))
        step.loss(float("nan") if i == {STEPS - 1} else 1 / (i + 1))
        step.gradients(gradients)
        for name in weights:
            weights[name] = weights[name] - 0.1 * gradients[name]
for i in range(3):
    with hook.step("EVAL") as step:
        step.loss(2.0 + i)
hook.close()
json.dump({{"norm": float(norm)}}, open(sys.argv[1], "w"))
"""
CONFIG = """
[[action]]
kind = "command"
argv = ["true"]

[capture]
save_interval = 1
max_bytes = 3000000
collections = [{ name = "weights", forms = ["summary", "raw"] }]
"""


class Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


class Rich(NamedTuple):
    run: Path
    home: Path
    norm: float


_LINE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def parse(text: str) -> list[Sample]:
    samples = []
    for line in text.splitlines():
        if not line.startswith("#"):
            found = _LINE.match(line)
            assert found, line
            samples.append(Sample(found[1], dict(_LABEL.findall(found[2] or "")), float(found[3])))
    return samples


def luff(*words: object, home: Path, code: int = 0) -> str:
    done = subprocess.run(
        [executable(), *map(str, words)], capture_output=True, text=True, timeout=LIMIT_S, check=False,
        env=os.environ | {"LUFF_HOME": str(home), "LUFF_PYTHON": sys.executable,
                          "LUFF_BOOTSTRAP": str(Path(package.__file__).parent / "_bootstrap")},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Rich:
    """A run with something of everything."""
    folder = tmp_path_factory.mktemp("rich")
    (folder / "train.py").write_text(SCRIPT)
    (folder / "luff.toml").write_text(CONFIG)
    luff("run", "--run", folder / "rich", "--config", folder / "luff.toml", "--", sys.executable,
         folder / "train.py", folder / "truth.json", home=folder)  # fmt: skip
    with package.open_trial(folder / "rich") as trial:
        muted = next(finding for finding in trial.findings() if not finding["leader"])
    luff("mark", folder / "rich", muted["id"], "mute", home=folder)
    return Rich(folder / "rich", folder, json.loads((folder / "truth.json").read_text())["norm"])


@pytest.fixture(scope="module")
def samples(rich: Rich) -> list[Sample]:
    return parse(luff("metrics", rich.run, "--metrics-tensors", "^gradient/", home=rich.home))


def values(samples: list[Sample], name: str) -> dict[tuple[str, ...], float]:
    """The samples of a metric: by the values of their labels beside `run`."""
    return {
        tuple(value for label, value in sample.labels.items() if label != "run"): sample.value
        for sample in samples
        if sample.name == name
    }


def test_the_samples_are_true(rich: Rich, samples: list[Sample]) -> None:
    with package.open_trial(rich.run) as trial:
        gaps: dict[tuple[str, ...], float] = {}
        for gap in trial.gaps():
            gaps[(gap["reason"],)] = gaps.get((gap["reason"],), 0) + gap["count"]
        durations = len(trial.steps("TRAIN"))
        findings = trial.findings()
    assert gaps and values(samples, "luff_gaps_total") == gaps
    [ratio] = values(samples, "luff_capture_ratio").values()
    assert 0 < ratio < 1
    assert f"recording {float(f'{100 * ratio:.2g}'):g} %" in luff("show", rich.run, home=rich.home)
    assert values(samples, "luff_train_steps_total") == {(): STEPS} == {(): durations}
    buckets = values(samples, "luff_step_duration_seconds_bucket")
    assert len(buckets) == 12 and buckets[("+Inf",)] == STEPS
    assert list(buckets.values()) == sorted(buckets.values())
    assert values(samples, "luff_step_duration_seconds_count") == {(): STEPS}
    assert values(samples, "luff_run_state") == {
        (state,): float(state == "completed")
        for state in ("running", "completed", "stopped", "failed", "lost")
    }
    assert values(samples, "luff_workers") == {("alive",): 0, ("ended",): 1, ("lost",): 0}
    assert values(samples, "luff_updates_skipped_total") == {(): 0}
    losses = {
        labels[-1]: value for labels, value in values(samples, "luff_loss").items() if "loss" in labels[0]
    }
    assert math.isnan(losses["TRAIN"]) and losses["EVAL"] == 3.0  # the mean of the evaluation
    bad = {
        labels[-1]: value
        for labels, value in values(samples, "luff_loss_nonfinite").items()
        if "loss" in labels[0]
    }
    assert bad == {"TRAIN": 1, "EVAL": 0}
    [norm] = values(samples, "luff_gradient_norm").items()
    assert norm[0][0].endswith(".group0") and norm[1] == pytest.approx(rich.norm)
    [rate] = values(samples, "luff_learning_rate").items()
    assert rate == (norm[0], 0.1)
    for name in ("luff_update_ratio_max", "luff_update_ratio_min"):
        # Under luff run weights are compared with those of eight updates before.
        assert values(samples, name) == {norm[0]: pytest.approx((1 - 0.99**8) / 8)}
    assert values(samples, "luff_nonfinite_tensors")[("weight",)] == 0
    l2 = values(samples, "luff_tensor_l2")
    assert set(l2) == {("gradient/a.weight",), ("gradient/b.weight",)}
    assert math.hypot(*l2.values()) == pytest.approx(rich.norm)
    standing = [finding for finding in findings if not finding["healed"]]
    open_findings = values(samples, "luff_findings")
    assert sum(open_findings.values()) == len(standing)
    assert sum(value for labels, value in open_findings.items() if labels[-1] == "true") == 1
    assert sum(values(samples, "luff_findings_seen_total").values()) == len(findings)
    assert values(samples, "luff_rule_lag_steps") == {(): 0}
    assert values(samples, "luff_rules_failed") == {(): 0}
    actions = values(samples, "luff_actions_total")
    assert actions[("command", "dry_run")] >= 1
    size = sum(file.stat().st_blocks * 512 for file in rich.run.glob("w*/*"))
    assert values(samples, "luff_run_size_bytes") == {(): size}
    free = os.statvfs(rich.run)
    assert values(samples, "luff_disk_free_bytes")[()] == pytest.approx(
        free.f_bavail * free.f_frsize, rel=0.2
    )


def test_the_table_is_what_is_exported(rich: Rich, samples: list[Sample], tmp_path: Path) -> None:
    rows = {}
    for line in (ROOT / "docs" / "spec" / "metrics.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `luff_"):
            for name in re.findall(r"`(\w+)`", cells[0]):
                rows[name] = cells
    (tmp_path / "root").mkdir()
    record(tmp_path / "root" / "one", 3)
    server = Server(tmp_path, tmp_path / "root")
    try:
        text = server.ask("GET", "/metrics").body.decode()
    finally:
        server.end()
    alive = record(tmp_path / "alive", 2, close=False)  # a worker that has not ended has a heartbeat
    text += luff("metrics", tmp_path / "alive", home=rich.home)
    alive.close()
    everything = samples + parse(text)
    types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.M))
    sampled: dict[str, set[str]] = {}
    for sample in everything:
        family = (
            re.sub("_(bucket|sum|count)$", "", sample.name) if "_seconds_" in sample.name else sample.name
        )
        family = family if family in rows else sample.name
        sampled.setdefault(family, set()).update(sample.labels)
    assert set(sampled) == set(rows) - {"luff_push_dropped_total"}
    for name, labels in sampled.items():
        assert types.get(name, rows[name][1]) == rows[name][1], name
        told = set(re.findall(r"`(\w+)`", rows[name][2]))
        assert labels - {"run", "le"} <= told, name
        assert told - labels <= {"page"}, name
    exported = json.loads(luff("metrics", rich.run, "--format", "json", home=rich.home))
    names = {cells[3].strip("`"): cells for cells in rows.values()}
    for metric in exported["metrics"]:
        assert metric["unit"] == names[metric["name"]][4].strip("`"), metric["name"]
        assert metric["type"] == names[metric["name"]][1]


def test_a_run_has_at_most_eighty_series(tmp_path: Path) -> None:
    import luff.numpy

    hook = luff.numpy.attach({}, run=tmp_path / "many")
    with hook.step() as step:
        step.loss(1.0)
        for i in range(60):
            luff.numpy.save_scalar(f"metric/{i}", i)
    hook.close()
    text = subprocess.run(
        [executable(), "metrics", str(tmp_path / "many")], capture_output=True, text=True, check=True
    ).stdout
    assert len(parse(text)) <= 80


def test_the_server_chooses_the_format(rich: Rich) -> None:
    server = Server(rich.home, rich.run)
    try:
        plain = server.ask("GET", "/metrics")
        opened = server.ask(
            "GET", "/metrics", {"Accept": "application/openmetrics-text;version=1.0.0,*/*;q=0.1"}
        )
    finally:
        server.end()
    assert plain.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert opened.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert opened.body.endswith(b"# EOF\n")
    parser = pytest.importorskip(
        "prometheus_client.openmetrics.parser", reason="pip install prometheus-client"
    )
    families = {family.name: family for family in parser.text_string_to_metric_families(opened.body.decode())}
    assert families["luff_train_steps"].type == "counter"
    assert families["luff_step_duration_seconds"].type == "histogram"


def test_the_file_for_the_textfile_collector_is_replaced_as_a_whole(rich: Rich, tmp_path: Path) -> None:
    out = tmp_path / "luff.prom"
    out.write_text("old")
    luff("metrics", rich.run, "-o", out, "--public-url", "https://luff.example", home=rich.home)
    info = next(sample for sample in parse(out.read_text()) if sample.name == "luff_run_info")
    assert info.labels["page"] == f"https://luff.example/#/run/{info.labels['run_id']}"
    assert info.labels["run"] == "rich" and info.labels["framework"] == "numpy"
    assert [path.name for path in tmp_path.iterdir()] == ["luff.prom"]


def test_mistakes_are_named(rich: Rich, tmp_path: Path) -> None:
    assert "--metrics-tensors" in luff("metrics", rich.run, "--metrics-tensors", "(", home=rich.home, code=2)
    assert "which run" in luff("metrics", home=rich.home, code=2)
    assert "-o" in luff("metrics", rich.run, "--follow", home=rich.home, code=2)
    (tmp_path / "metrics.token").write_text("x" * 43)
    (tmp_path / "metrics.token").chmod(0o644)
    assert "chmod 600" in luff("metrics", rich.run, "--listen", "127.0.0.1:0", home=tmp_path, code=2)
    (tmp_path / "metrics.token").chmod(0o600)
    assert "other machines" in luff("metrics", rich.run, "--listen", "0.0.0.0:0", home=tmp_path, code=2)


def test_a_job_answers_scrapers_while_it_runs(tmp_path: Path) -> None:
    script = """
import luff.numpy, sys
hook = luff.numpy.attach({}, {"lr": 0.1})
for i in range(5):
    with hook.step() as step:
        step.loss(1.0)
print("five", flush=True)
sys.stdin.read()
hook.close()
"""
    (tmp_path / "train.py").write_text(script)
    job = subprocess.Popen(
        [executable(), "run", "--run", str(tmp_path / "job"), "--metrics", "127.0.0.1:0", "--rules", "none", "--",
         sys.executable, str(tmp_path / "train.py")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"LUFF_HOME": str(tmp_path), "LUFF_PYTHON": sys.executable,
                          "LUFF_BOOTSTRAP": str(Path(package.__file__).parent / "_bootstrap")},
    )  # fmt: skip
    try:
        assert job.stdout and job.stderr and job.stdin
        place = ""
        while not place:
            line = job.stderr.readline()
            assert line, "it said nothing of metrics"
            place = line.partition("metrics: ")[2].strip()
        assert job.stdout.readline() == "five\n"
        token = (tmp_path / "metrics.token").read_text().strip()
        assert (tmp_path / "metrics.token").stat().st_mode & 0o777 == 0o600

        def ask(address: str, bearer: str) -> tuple[int, str]:
            request = urllib.request.Request(address, headers={"Authorization": f"Bearer {bearer}"})
            try:
                with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, ""

        end = time.monotonic() + LIMIT_S
        text = ""
        while values(parse(text), "luff_train_steps_total") != {(): 5}:
            assert time.monotonic() < end, text
            status, text = ask(place, token)
            assert status == 200
        assert values(parse(text), "luff_run_state")[("running",)] == 1
        assert ask(place, "wrong" * 9)[0] == 401
        assert ask(place.replace("/metrics", "/api/v1/runs"), token)[0] == 403
    finally:
        job.communicate("", timeout=LIMIT_S)
    assert job.returncode == 0
    with pytest.raises(urllib.error.URLError):  # it ends with the job
        urllib.request.urlopen(place, timeout=5)


def test_the_files_are_installed() -> None:
    folder = Path(luff("metrics", "--files", home=ROOT).strip())
    assert {path.name for path in folder.rglob("*.*")} >= {
        "alerts.yml",
        "scrape.yml",
        "runs.json",
        "run.json",
    }
