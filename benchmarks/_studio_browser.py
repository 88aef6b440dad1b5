"""The browser of the tests, with traces: CPU time of the page's main thread."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from typing import Any

from tests.browser import LIMIT_S, Browser


class TracingBrowser(Browser):
    """A browser that can say what its main thread has done."""

    _events: list[dict[str, Any]]

    def _event(self, method: str) -> dict[str, Any]:
        """Waits for an event; all others are dropped."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            while b"\0" in self._buffer:
                text, self._buffer = self._buffer.split(b"\0", 1)
                message = json.loads(text)
                if message.get("method") == method:
                    return dict(message["params"])
            try:
                self._buffer += os.read(self._out, 1 << 20)
            except BlockingIOError:
                time.sleep(0.01)
        raise AssertionError(f"no event {method}")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._call(method, parameters)

    def begin_trace(self) -> None:
        config = {
            "includedCategories": ["toplevel", "devtools.timeline"],
            "recordMode": "recordAsMuchAsPossible",
        }
        self._call("Tracing.start", {"transferMode": "ReturnAsStream", "traceConfig": config})

    def end_trace(self) -> list[float]:
        """Returns CPU milliseconds of each task of the page's main thread, ascending."""
        self._last += 1
        message = {"id": self._last, "method": "Tracing.end", "params": {}, "sessionId": self._session}
        os.write(self._in, json.dumps(message).encode() + b"\0")
        handle = self._event("Tracing.tracingComplete")["stream"]
        parts = []
        while True:
            piece = self._call("IO.read", {"handle": handle, "size": 1 << 20})
            parts.append(piece["data"])
            if piece["eof"]:
                break
        events = json.loads("".join(parts))["traceEvents"]
        main = {(e["pid"], e["tid"]) for e in events
                if e["name"] == "thread_name" and e["args"]["name"] == "CrRendererMain"}  # fmt: skip
        tasks = [
            e
            for e in events
            if e["name"].endswith("RunTask") and (e["pid"], e["tid"]) in main and "tdur" in e
        ]
        if not tasks:
            return []
        page = Counter(e["pid"] for e in tasks).most_common(1)[0][0]
        return sorted(e["tdur"] / 1e3 for e in tasks if e["pid"] == page)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self._call("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, **more})

    def heap_mb(self) -> float:
        self._call("HeapProfiler.enable")
        self._call("HeapProfiler.collectGarbage")
        return float(self._call("Runtime.getHeapUsage")["usedSize"]) / 1e6
