from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
NEEDS_TORCH = ("test_pytorch_hook.py", "test_hook_methods.py", "test_json_config.py", "test_alias.py")
collect_ignore = [] if importlib.util.find_spec("torch") is not None else list(NEEDS_TORCH)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and item.path.name in NEEDS_TORCH:
            item.add_marker(pytest.mark.framework)


@pytest.fixture(autouse=True)
def _nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test starts without a hook, and with the error agent on."""
    from luff.compat.smdebug.core import singleton
    from luff.compat.smdebug.core.config_validator import reset_config_validator
    from luff.compat.smdebug.core.error_handling_agent import error_handling_agent

    for name in (
        "SMDEBUG_CONFIG_FILE_PATH",
        "TRAINING_JOB_NAME",
        "USE_SMDEBUG",
        "CHECKPOINT_CONFIG_FILE_PATH",
    ):
        monkeypatch.delenv(name, raising=False)
    yield
    if singleton._hook is not None:
        singleton._hook._cleanup()
    singleton.del_hook()
    reset_config_validator()
    error_handling_agent.disable_smdebug = False
    error_handling_agent.hook = None


class Folder:
    """Writes the folder of a profiler."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._system: dict[tuple[int, str], list[dict[str, Any]]] = {}
        self._events: list[dict[str, Any]] = []
        self._last = 0

    def value(
        self, at: float, dimension: str, value: float, name: str = "gpu0", node: str = "algo-1"
    ) -> None:
        kind = {"CPUUtilization": "cpu", "I/OWaitPercentage": "i/o"}.get(dimension, "gpu")
        row = {
            "Type": kind, "Name": name, "Dimension": dimension, "Value": value, "NodeId": node, "Timestamp": at,
        }  # fmt: skip
        self._system.setdefault((int(at // 60) * 60, node), []).append(row)

    def event(self, phase: str, begin: float, took: float, name: str = "", **args: Any) -> None:
        begin_us, took_us = round(begin * 1e6), round(took * 1e6)
        self._events.append(
            {"name": name or phase, "ph": "X", "phase": phase, "ts": begin_us, "dur": took_us, "args": args}
        )
        self._last = max(self._last, begin_us + took_us)

    def write(self, ended: bool = True) -> str:
        for (minute, node), rows in self._system.items():
            file = self.path / "system" / "incremental" / "2020091312" / f"{minute}.{node}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        if self._events:
            phases = sorted({event["phase"] for event in self._events})
            head = [
                {"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": 0}}
            ]
            head += [
                {"name": "process_name", "ph": "M", "pid": number, "args": {"name": phase}}
                for number, phase in enumerate(phases, 1)
            ]
            rows = [{**event, "pid": phases.index(event["phase"]) + 1} for event in self._events]
            file = self.path / "framework/pevents/2020091312" / f"{self._last}_0-algo-1_pythontimeline.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("[\n" + ",\n".join(json.dumps(row) for row in head + rows) + "\n]")
        if ended:
            (self.path / "system").mkdir(parents=True, exist_ok=True)
            (self.path / "system" / "training_job_end.ts").touch()
        return str(self.path)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "profiler")
