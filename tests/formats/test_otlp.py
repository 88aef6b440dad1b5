"""`--otlp`: what a collector on loopback receives, decoded by OpenTelemetry's own classes; and collectors that are
down, slow or busy.
"""

from __future__ import annotations

import contextlib
import http.server
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import luff as package
import pytest

from tests.cli.conftest import executable

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="pip install 'luff[otlp]'")
service = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")

LIMIT_S = 60
SCRIPT = """
import sys
import luff.numpy
hook = luff.numpy.attach({}, {"lr": 0.1})
for i in range(20):
    with hook.step() as step:
        step.loss(float("nan") if i == 19 else 1.0)
print("trained", flush=True)
"""


class Collector(http.server.ThreadingHTTPServer):
    """Keeps the requests that it was sent. `answer` gives status and headers for the n-th one, from 0 on."""

    daemon_threads = True

    def __init__(self, answer: Callable[[int], tuple[int, dict[str, str]]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.lock = threading.Lock()
        self.count = 0
        self.taken: list[Any] = []
        self.times: list[float] = []


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            number = self.server.count
            self.server.count += 1
            self.server.times.append(time.monotonic())
        status, headers = self.server.answer(number)
        if status == 200:
            request = service.ExportMetricsServiceRequest()
            request.ParseFromString(body)
            self.server.taken.append(request)
        with contextlib.suppress(OSError):  # it may have given up
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextlib.contextmanager
def collector(answer: Callable[[int], tuple[int, dict[str, str]]]) -> Iterator[Collector]:
    server = Collector(answer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def call(port: int, *words: object, **more: str) -> tuple[subprocess.CompletedProcess[str], float]:
    begin = time.monotonic()
    done = subprocess.run(
        [executable(), *map(str, words)], capture_output=True, text=True, timeout=LIMIT_S, check=False,
        env=os.environ | {"LUFF_PYTHON": sys.executable, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
                          "LUFF_BOOTSTRAP": str(Path(package.__file__).parent / "_bootstrap")} | more,
    )  # fmt: skip
    return done, time.monotonic() - begin


def train(port: int, folder: Path, **more: str) -> tuple[subprocess.CompletedProcess[str], float]:
    (folder / "train.py").write_text(SCRIPT)
    return call(
        port, "run", "--run", folder / "job", "--otlp", "--", sys.executable, folder / "train.py", **more
    )


def metrics(request: Any) -> dict[str, Any]:
    [resource] = request.resource_metrics
    [scope] = resource.scope_metrics
    return {metric.name: metric for metric in scope.metrics}


def test_a_collector_receives_the_run(tmp_path: Path) -> None:
    with collector(lambda _: (200, {})) as server:
        done, _ = train(server.server_port, tmp_path)
    assert done.returncode == 0 and done.stdout == "trained\n", done.stderr
    assert "otlp" not in done.stderr
    last = server.taken[-1]
    resource = {a.key: a.value.string_value for a in last.resource_metrics[0].resource.attributes}
    with package.open_trial(tmp_path / "job") as trial:
        assert len(trial.steps("TRAIN")) == 20
    assert resource["service.name"] == "luff"
    assert len(resource["service.instance.id"]) == 32
    assert resource["service.version"] == package.__version__
    assert resource["host.name"] == os.uname().nodename
    sent = metrics(last)
    steps = sent["luff.train.steps"]
    assert steps.unit == "{step}" and steps.sum.is_monotonic and steps.sum.aggregation_temporality == 2
    [point] = steps.sum.data_points
    assert point.as_double == 20
    assert {a.key: a.value.string_value for a in point.attributes} == {"luff.run": "job"}
    assert 0 < point.start_time_unix_nano < point.time_unix_nano
    [histogram] = sent["luff.step.duration"].histogram.data_points
    assert histogram.count == 20 == sum(histogram.bucket_counts) and len(histogram.bucket_counts) == 12
    assert sent["luff.step.duration"].unit == "s"
    [loss] = sent["luff.loss"].gauge.data_points
    assert math.isnan(loss.as_double)
    assert sent["luff.push.dropped"].sum.data_points[0].as_double == 0


def test_a_finished_run_is_pushed_once(tmp_path: Path) -> None:
    with collector(lambda _: (200, {})) as server:
        train(server.server_port, tmp_path)
        before = len(server.taken)
        done, _ = call(server.server_port, "metrics", tmp_path / "job", "--otlp")
    assert done.returncode == 0, done.stderr
    assert len(server.taken) == before + 1


def test_a_busy_collector_is_asked_again_when_it_says(tmp_path: Path) -> None:
    with collector(lambda n: (429, {"Retry-After": "1"}) if n == 0 else (200, {})) as server:
        done, _ = train(server.server_port, tmp_path)
    assert done.returncode == 0 and done.stdout == "trained\n"
    assert len(server.taken) >= 1
    assert server.times[1] - server.times[0] >= 0.9
    assert metrics(server.taken[-1])["luff.train.steps"].sum.data_points[0].as_double == 20


def test_without_a_collector_the_job_is_as_without_luff(tmp_path: Path) -> None:
    with collector(lambda _: (200, {})) as server:
        port = server.server_port
    done, took = train(port, tmp_path, OTEL_EXPORTER_OTLP_TIMEOUT="1")
    assert done.returncode == 0 and done.stdout == "trained\n"
    assert "the collector did not take them" in done.stderr
    assert "opentelemetry" not in done.stderr and "Traceback" not in done.stderr
    assert took < LIMIT_S


def test_a_collector_that_hangs_holds_nobody(tmp_path: Path) -> None:
    hang = threading.Event()
    with collector(lambda _: ((hang.wait(LIMIT_S) and 200) or 500, {})) as server:
        done, took = train(server.server_port, tmp_path)
        hang.set()
    assert done.returncode == 0 and done.stdout == "trained\n"
    assert "were not" in done.stderr
    assert took < LIMIT_S / 2


def test_samples_that_wait_are_bounded_and_counted(tmp_path: Path) -> None:
    from luff._verbs import otlp

    go = threading.Event()
    with pytest.MonkeyPatch.context() as patch:
        sent: list[int] = []

        class Slow:
            def export(self, data: tuple[int, int]) -> Any:
                go.wait(LIMIT_S)
                sent.append(data[0])
                return otlp.MetricExportResult.SUCCESS

        patch.setattr(otlp, "OTLPMetricExporter", Slow)
        patch.setattr(otlp, "_data", lambda sample, dropped: (sample["n"], dropped))
        pusher = otlp._Pusher()
        pusher.take({"n": 0})
        while pusher._waiting:
            time.sleep(0.01)
        for n in range(1, 101):
            pusher.take({"n": n})
        assert len(pusher._waiting) == otlp._WAITING
        assert pusher.dropped == 100 - otlp._WAITING
        go.set()
        assert not pusher.end()
        assert sent == [0, *range(101 - otlp._WAITING, 101)]


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    plain = Path(__file__).parents[2] / ".venv" / "bin" / "python"
    if (
        not plain.exists()
        or subprocess.run([plain, "-c", "import opentelemetry"], capture_output=True).returncode == 0
    ):
        pytest.skip("no environment without OpenTelemetry")
    done, _ = train(1, tmp_path, LUFF_PYTHON=str(plain))
    assert done.returncode == 0 and done.stdout == "trained\n"
    assert "pip install 'luff[otlp]'" in done.stderr
