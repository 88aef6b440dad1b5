"""TraceML on the programs of perfbench, by its own command; its marks stand around each step."""

from __future__ import annotations

import importlib.util
import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from _perf_runs import environment, script
from perfbench.programs import PROGRAMS

__all__ = ["beside", "missing"]

COMMAND = Path(sys.executable).with_name("traceml")
#: What TraceML can say of a rule's cause, by its description of diagnoses (0.5.0). Nothing: it knows no such trouble.
KINDS = {
    "InputBound": ("INPUT_BOUND",),
    "WorkersRestart": ("INPUT_BOUND",),
    "StorageBound": ("INPUT_BOUND",),
    "LoggingStalls": ("RESIDUAL_HEAVY",),
    "CheckpointStalls": ("RESIDUAL_HEAVY",),
    "EvalShare": ("RESIDUAL_HEAVY",),
    "GcPauses": ("RESIDUAL_HEAVY",),
    "CpuOversubscribed": ("HIGH_PROCESS_CPU",),
    "MemoryGrowth": ("HIGH_PROCESS_RSS",),
    "Straggler": ("STRAGGLER", "INPUT_STRAGGLER", "COMPUTE_STRAGGLER"),
}
_LIMIT_S = 400
_PORTS = ("--aggregator-port", "--master-port")


def missing() -> str:
    """Returns why TraceML cannot run; "" if it can."""
    if not COMMAND.exists() or importlib.util.find_spec("traceml_ai") is None:
        return "it is not installed beside this Python"
    return ""


def _free_ports() -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in _PORTS]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _summary(program: str, seed: int, fixed: bool, steps: int, folder: Path) -> dict[str, Any] | str:
    """Returns TraceML's summary of a program, or why there is none."""
    shutil.rmtree(folder / "traceml", ignore_errors=True)
    ports = _free_ports()
    words = [
        str(COMMAND),
        "run",
        "--mode",
        "summary",
        "--logs-dir",
        str(folder / "traceml"),
        "--run-name",
        "one",
    ]
    for option, port in zip(_PORTS, ports, strict=True):
        words += [option, str(port)]
    words += ["--nproc-per-node", str(PROGRAMS[program].processes)]
    words += [
        str(Path(__file__).parent / "perfbench" / "run.py"),
        "--args",
        *script(program, seed, fixed, steps),
    ]
    try:
        done = subprocess.run(
            words,
            env={**environment(), "LUFF_PERFBENCH_PEER": "traceml"},
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return "TraceML did not end"
    found = sorted((folder / "traceml").rglob("final_summary.json"))
    if not found:
        return f"TraceML has no summary (exit code {done.returncode})"
    return dict(json.loads(found[0].read_text(encoding="utf-8")))


def beside(program: str, seed: int, fixed: bool, steps: int, folder: Path, peer: dict[str, Any]) -> None:
    """Trains a program under TraceML and adds what it says to `peer`."""
    folder.mkdir(exist_ok=True)
    summary = _summary(program, seed, fixed, steps, folder)
    if isinstance(summary, str):
        peer["failed"] = summary
        return
    peer["runs"] += 1
    about = PROGRAMS[program]
    if about.rule and not fixed:
        sections = [one for one in summary.values() if isinstance(one, dict)]
        said = {issue["kind"] for section in sections for issue in section.get("issues", [])}
        peer["judged"] += 1
        peer["named"] += bool(said & set(KINDS.get(about.rule, ())))
        peer["told"] += sorted(said)
    else:  # its verdict, not what stands in its sections
        verdict = summary["primary_diagnosis"]
        peer["alarms"] += verdict["severity"] in ("warn", "crit")
        peer["told"].append(f"{verdict['kind']} ({verdict['severity']})")
