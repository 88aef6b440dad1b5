"""`/metrics`, read by the real Prometheus."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from .conftest import LIMIT_S, Server, record


@pytest.fixture(scope="module")
def prometheus() -> str:
    found = shutil.which("prometheus")
    if found is None or shutil.which("promtool") is None:
        pytest.skip("no prometheus; install it")
    return found


def test_promtool_accepts_the_text(prometheus: str, tmp_path: Path) -> None:
    record(tmp_path / "runs" / 'a "run"\\', 5)
    server = Server(tmp_path, tmp_path / "runs")
    try:
        text = server.ask("GET", "/metrics").body
    finally:
        server.end()
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert b'run="a \\"run\\"\\\\"' in text


def test_prometheus_scrapes_a_live_run(prometheus: str, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    root.mkdir()
    hook = record(root / "mine", 7, close=False)
    server = Server(tmp_path, root)
    (tmp_path / "token").write_text(server.token)
    configuration = {
        "scrape_configs": [
            {
                "job_name": "luff",
                "scrape_interval": "1s",
                "authorization": {"credentials_file": str(tmp_path / "token")},
                "static_configs": [{"targets": [f"127.0.0.1:{server.port}"]}],
            }
        ]
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(configuration))
    port = server.port % 20000 + 30000
    process = subprocess.Popen(
        [prometheus, f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
         f"--web.listen-address=127.0.0.1:{port}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def value(query: str) -> float | None:
        url = f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(query)}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                found = json.load(answer)["data"]["result"]
        except OSError:
            return None
        return float(found[0]["value"][1]) if found else None

    def until(query: str, expected: float) -> None:
        end = time.monotonic() + LIMIT_S
        while value(query) != expected:
            assert time.monotonic() < end, f"{query} is {value(query)}, not {expected}"
            time.sleep(0.2)

    try:
        until('luff_train_steps_total{run="mine"}', 7)
        until('luff_run_state{run="mine",state="running"}', 1)
        with hook.step() as step:
            step.loss(float("nan"))
        until('max(luff_loss_nonfinite{run="mine"})', 1)
        hook.close()
        until('luff_run_state{run="mine",state="completed"}', 1)
    finally:
        process.terminate()
        process.wait(timeout=LIMIT_S)
        server.end()
        hook.close()
