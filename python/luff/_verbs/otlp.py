"""Pushes a run's metrics to an OpenTelemetry collector; started by ``luff metrics --otlp``, never in a training.

Standard input: one JSON object a line (``luff metrics --format json``, docs/spec/metrics.md). The last samples are kept
while the collector does not take them, at most `_WAITING`; what is left out is counted and told with the next sample.
The official SDK's exporter sends them and obeys ``OTEL_EXPORTER_OTLP_*``.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

try:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        Histogram,
        HistogramDataPoint,
        Metric,
        MetricExportResult,
        MetricsData,
        NumberDataPoint,
        ResourceMetrics,
        ScopeMetrics,
        Sum,
    )
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
except ImportError as error:
    sys.exit(f"luff: --otlp needs OpenTelemetry's SDK: pip install 'luff[otlp]' ({error})")

_WAITING = 64  # samples
_LAST_S = 5.0  # for what is left when the job has ended
_NUMBERS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def _number(value: float | str) -> float:
    return _NUMBERS[value] if isinstance(value, str) else value


def _points(metric: dict[str, Any], sample: dict[str, Any], begun_ns: int) -> Iterable[Any]:
    now = int(sample["unix_ns"])
    for point in metric["points"]:
        attributes = {f"luff.{key}" if key == "run" else key: value for key, value in point["labels"].items()}
        if metric["type"] == "histogram":
            yield HistogramDataPoint(
                attributes=attributes,
                start_time_unix_nano=begun_ns,
                time_unix_nano=now,
                count=sum(point["counts"]),
                sum=point["sum"],
                bucket_counts=point["counts"],
                explicit_bounds=sample["bounds"],
                min=float("nan"),
                max=float("nan"),
            )
        else:
            yield NumberDataPoint(attributes, begun_ns, now, _number(point["value"]))


def _data(sample: dict[str, Any], dropped: int) -> MetricsData:
    """One sample in the form that the SDK's exporters take."""
    metrics = {metric["name"]: metric for metric in sample["metrics"]}
    info = metrics["luff.run.info"]["points"][0]["labels"]
    begun_ns = int(_number(metrics["luff.run.begun.timestamp"]["points"][0]["value"]) * 1e9)
    metrics["luff.push.dropped"]["points"][0]["value"] += dropped
    resource = Resource.create(
        {
            "service.name": os.environ.get("OTEL_SERVICE_NAME", "luff"),
            "service.instance.id": info["run_id"],
            "service.version": sample["version"],
            "host.name": info["host"],
        }
    )
    made = []
    for name, metric in metrics.items():
        points = list(_points(metric, sample, begun_ns))
        data: Gauge | Sum | Histogram
        if metric["type"] == "counter":
            data = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
        elif metric["type"] == "histogram":
            data = Histogram(points, AggregationTemporality.CUMULATIVE)
        else:
            data = Gauge(points)
        made.append(Metric(name, metric["help"], metric["unit"], data))
    scope = ScopeMetrics(InstrumentationScope("luff", sample["version"]), made, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


class _Pusher:
    """Takes samples without waiting, and sends them one after the other in a thread."""

    def __init__(self) -> None:
        self._exporter = OTLPMetricExporter()
        self._waiting: deque[dict[str, Any]] = deque()
        self._news = threading.Condition()
        self._ended = False
        self.dropped = 0
        self.refused = 0
        self.sent = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def take(self, sample: dict[str, Any]) -> None:
        with self._news:
            if len(self._waiting) == _WAITING:
                self._waiting.popleft()
                self.dropped += 1
            self._waiting.append(sample)
            self._news.notify()

    def end(self) -> bool:
        """Gives what is left `_LAST_S` seconds. Returns whether all was sent."""
        with self._news:
            self._ended = True
            self._news.notify()
        self._thread.join(_LAST_S)
        return not self._thread.is_alive() and self.dropped == 0

    def _run(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._waiting or self._ended)
                if not self._waiting:
                    return
                sample = self._waiting.popleft()
                dropped = self.dropped
            try:
                result = self._exporter.export(_data(sample, dropped))
            except Exception as problem:  # e.g. a certificate that is not there
                print(f"luff: --otlp: {problem}", file=sys.stderr)
                result = MetricExportResult.FAILURE
            if result is MetricExportResult.SUCCESS:
                self.sent += 1
            else:
                with self._news:
                    self.dropped += 1
                time.sleep(0 if self._ended else 0.1)


def main() -> None:
    """Reads samples until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--beside-job", action="store_true")
    parser.parse_args()
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # the terminal is the training's
    pusher = _Pusher()
    for line in sys.stdin:
        pusher.take(json.loads(line))
    if pusher.end():
        os._exit(0)
    print(
        f"luff: --otlp: {pusher.sent} samples were pushed, {pusher.dropped} were not, the collector did not take them",
        file=sys.stderr,
    )
    sys.stderr.flush()
    os._exit(1)  # the exporter may still wait for a collector


if __name__ == "__main__":
    main()
