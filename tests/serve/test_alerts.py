"""The shipped rules and dashboards: unit tests by promtool, every expression in a real Prometheus over real runs,
and an alert of a faulty run that goes through a real Alertmanager and is resolved.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import luff as package
import pytest

from .conftest import LIMIT_S, Server, executable, record

SHARE = Path(__file__).resolve().parents[2] / "share" / "luff"
#: Expressions that have no value where nothing is wrong, or nothing was asked for.
EMPTY = ("luff_run_series_dropped > 0", "luff_tensor_", "luff_actions_total", "luff_gaps_total", "luff_update_ratio",
         "luff_learning_rate")  # fmt: skip


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name}; install prometheus and prometheus-alertmanager")
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return json.load(answer)


def until(what: str, ask: Any) -> Any:
    end = time.monotonic() + LIMIT_S
    while True:
        with contextlib.suppress(OSError, urllib.error.URLError):
            if found := ask():
                return found
        assert time.monotonic() < end, what
        time.sleep(0.2)


@contextlib.contextmanager
def process(*words: object) -> Iterator[None]:
    started = subprocess.Popen([*map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        started.terminate()
        started.wait(timeout=LIMIT_S)


def configuration(folder: Path, server: Server, alertmanager: int = 0) -> Path:
    """The shipped configuration with this server's port and token, and faster."""
    shutil.copy(SHARE / "prometheus" / "alerts.yml", folder / "alerts.yml")
    (folder / "token").write_text(server.token)
    text = (SHARE / "prometheus" / "scrape.yml").read_text()
    text = text.replace("127.0.0.1:6006", f"127.0.0.1:{server.port}").replace("15s", "1s")
    text = text.replace("/etc/prometheus/luff.token", f"{folder}/token")
    text = text.replace("/etc/prometheus/luff-jobs.token", f"{folder}/token")
    text = "global: { evaluation_interval: 1s }\n" + text
    if alertmanager:
        target = f'{{ targets: ["127.0.0.1:{alertmanager}"] }}'
        text += f"alerting: {{ alertmanagers: [ {{ static_configs: [ {target} ] }} ] }}\n"
    (folder / "prometheus.yml").write_text(text)
    return folder / "prometheus.yml"


def test_the_rules_do_what_their_tests_say() -> None:
    done = subprocess.run(
        [tool("promtool"), "test", "rules", "alerts_test.yml"], cwd=SHARE / "prometheus", capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def expressions() -> set[str]:
    found = set()
    for board in (SHARE / "grafana").glob("*.json"):
        for panel in json.loads(board.read_text())["panels"]:
            found |= {target["expr"] for target in panel["targets"]}
    for line in re.findall(r"expr: ([^|\n].*)", (SHARE / "prometheus" / "alerts.yml").read_text()):
        found.add(line)
    return found


def test_every_expression_has_data_in_a_real_prometheus(tmp_path: Path) -> None:
    prometheus = tool("prometheus")
    script = """
import luff.numpy, numpy as np, sys
weights, settings = {"a.weight": np.ones((40, 40))}, {"lr": 0.1}
hook = luff.numpy.attach(weights, settings)
for i in range(30):
    for mode in ("TRAIN", "EVAL") if i % 10 == 9 else ("TRAIN",):
        with hook.step(mode) as step:
            step.loss(float("nan") if i > 20 else 1.0)
            if mode == "TRAIN":
                step.gradients({"a.weight": 0.1 * weights["a.weight"]})
                weights["a.weight"] = 0.99 * weights["a.weight"]
print("ready", flush=True)
sys.stdin.read()
"""
    (tmp_path / "train.py").write_text(script)
    job = subprocess.Popen(
        [executable(), "run", "--run", str(tmp_path / "root" / "mine"), "--", sys.executable,
         str(tmp_path / "train.py")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env=os.environ | {"LUFF_HOME": str(tmp_path),
                          "LUFF_BOOTSTRAP": str(Path(package.__file__).parent / "_bootstrap")},
    )  # fmt: skip
    try:
        assert job.stdout and job.stdout.readline() == "ready\n"
        server = Server(tmp_path, tmp_path / "root")
        port = free_port()
        try:
            with process(prometheus, f"--config.file={configuration(tmp_path, server)}",
                         f"--storage.tsdb.path={tmp_path}/data", f"--web.listen-address=127.0.0.1:{port}"):  # fmt: skip
                base = f"http://127.0.0.1:{port}/api/v1"

                def value(expression: str) -> list[Any]:
                    query = expression.replace("$run", "mine").replace("$__rate_interval", "1m")
                    answer = get(f"{base}/query?query={urllib.parse.quote(query)}")
                    assert answer["status"] == "success", expression
                    return list(answer["data"]["result"])

                until("no finding", lambda: value('luff_findings{run="mine",severity="stop"}'))
                until("no rate", lambda: value("rate(luff_serve_requests_total[1m])"))
                asked = expressions()
                assert len(asked) > 30
                alerts = get(f"{base}/rules")["data"]["groups"][0]["rules"]
                assert len(alerts) == 8 and {rule["health"] for rule in alerts} == {"ok"}
                quiet = {rule["query"] for rule in alerts}
                for expression in sorted(asked):
                    if expression in quiet or any(part in expression for part in EMPTY):
                        value(expression)
                    else:
                        until(f"no data: {expression}", lambda e=expression: value(e))
        finally:
            server.end()
    finally:
        job.communicate("", timeout=LIMIT_S)


class _Receiver(http.server.BaseHTTPRequestHandler):
    """Takes what Alertmanager sends."""

    taken: list[Any]

    def do_POST(self) -> None:
        self.taken.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def test_a_loss_that_turns_nan_pages_and_is_resolved(tmp_path: Path) -> None:
    prometheus, alertmanager = tool("prometheus"), tool("prometheus-alertmanager")
    (tmp_path / "root").mkdir()
    hook = record(tmp_path / "root" / "mine", 5, close=False)
    server = Server(tmp_path, tmp_path / "root")
    taken: list[Any] = []
    receiver = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Here", (_Receiver,), {"taken": taken}))
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    ports = free_port(), free_port()
    (tmp_path / "alertmanager.yml").write_text(
        "route: { receiver: here, group_wait: 0s, group_interval: 1s, group_by: ['...'] }\n"
        f'receivers: [ {{ name: here, webhook_configs: [ {{ url: "http://127.0.0.1:{receiver.server_port}/" }} ] }} ]\n'
    )

    def told(status: str) -> Any:
        return next(
            (alert for message in list(taken) for alert in message["alerts"]
             if alert["status"] == status and alert["labels"]["alertname"] == "LuffNonFinite"), None
        )  # fmt: skip

    try:
        with process(alertmanager, f"--config.file={tmp_path}/alertmanager.yml", f"--storage.path={tmp_path}/am",
                     f"--web.listen-address=127.0.0.1:{ports[0]}", "--cluster.listen-address="), \
             process(prometheus, f"--config.file={configuration(tmp_path, server, ports[0])}",
                     f"--storage.tsdb.path={tmp_path}/data", f"--web.listen-address=127.0.0.1:{ports[1]}"):  # fmt: skip
            base = f"http://127.0.0.1:{ports[1]}/api/v1"
            until("not scraped", lambda: get(f"{base}/query?query=luff_loss_nonfinite==0")["data"]["result"])
            assert told("firing") is None
            with hook.step() as step:
                step.loss(float("nan"))
            alert = until("no page", lambda: told("firing"))
            assert alert["labels"]["run"] == "mine" and alert["labels"]["severity"] == "critical"
            assert alert["annotations"]["summary"].startswith("mine: loss")
            with hook.step() as step:
                step.loss(1.0)
            until("not resolved", lambda: told("resolved"))
    finally:
        hook.close()
        server.end()
        receiver.shutdown()
        receiver.server_close()
