"""Trains programs of perfbench under ``luff run``, until the machine lets them be judged."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from _gates import luff_command
from perfbench.programs import PROGRAMS

__all__ = ["Failed", "environment", "judged", "missing", "script", "step_seconds"]

LUFF = luff_command()
TRACE_AT = (
    100  # steps, after which a program whose rule needs a trace asks for one; half of all, if those are fewer
)
CONTENDED, REPEATS = 0.25, 3
PRIORITY: int | None = None


class Failed(Exception):
    """A program that did not train to its end."""


def missing(program: str) -> str:
    """Returns what a program lacks here; "" if nothing."""
    needs = PROGRAMS[program].needs
    if "compiler" in needs and shutil.which("g++") is None:
        return "no C++ compiler"
    if "gpu" in needs and not torch.cuda.is_available():
        return "no GPU"
    if "swap" in needs:
        if len(Path("/proc/swaps").read_text(encoding="utf-8").splitlines()) < 2:
            return "no swap"
        if not os.access("/sys/fs/cgroup/cgroup.subtree_control", os.W_OK):
            return "no right to make a control group (version 2)"
    return ""


def environment() -> dict[str, str]:
    """Returns the environment of a program: one thread, unless it sets more."""
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}


def script(program: str, seed: int, fixed: bool, steps: int) -> list[str]:
    """Returns the arguments of `perfbench.run`."""
    words = [program, "--seed", str(seed), "--steps", str(steps), *(["--fixed"] if fixed else [])]
    return words if PRIORITY is None else [*words, "--priority", str(PRIORITY)]


def asking(program: str, steps: int) -> list[str]:
    """Returns the arguments by which it asks for the trace that its rule needs."""
    wanted = PROGRAMS[program].trace
    if not wanted:
        return []
    return [
        "--trace-at",
        str(max(min(TRACE_AT, steps // 2), 1)),
        *(["--stacks"] if wanted == "stacks" else []),
    ]


def trained(program: str, seed: int, fixed: bool, steps: int, folder: Path) -> dict[str, Any]:
    """Trains one program and returns what was found, each finding in its newest form, and its profile."""
    about = PROGRAMS[program]
    run = folder / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    python = [sys.executable]
    if about.processes > 1:
        python += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={about.processes}"]
    command = [LUFF, "run", "--run", str(run)]
    if about.parameters:
        command += ["--rules", about.parameters]
    if about.settings:
        (folder / "luff.toml").write_text(f"[capture]\n{about.settings}\n", encoding="utf-8")
        command += ["--config", str(folder / "luff.toml")]
    words = [*script(program, seed, fixed, steps), *asking(program, steps)]
    done = subprocess.run(
        [*command, "--", *python, "-m", "perfbench.run", *words],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise Failed(f"exit code {done.returncode}: {done.stderr[-2000:]}")
    shown = subprocess.run(
        [LUFF, "profile", str(run), "--json"], capture_output=True, text=True, check=True
    ).stdout
    profile = json.loads(shown)
    if about.trace and not any(trace["file"] for trace in profile["traces"]):
        raise Failed(f"no trace was made: {[trace['refused'] for trace in profile['traces']]}")
    newest: dict[str, dict[str, Any]] = {}
    for file in sorted(run.glob("rules/*/findings.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            told = json.loads(line)
            newest[told["id"]] = {**newest.get(told["id"], {}), **told}
    return {"profile": profile, "findings": list(newest.values())}


def contended(program: str, profile: dict[str, Any]) -> bool:
    """Returns whether others took too much of the time: the training thread lacked a core, or, where it does so by its
    own fault, they used too many of the cores.
    """
    thread = profile["thread"]
    if PROGRAMS[program].contends:
        machine = profile["machines"][0] if profile["machines"] else None
        if machine is None:
            return True
        return float(machine["cores_busy"] - machine["cores_job"]) > CONTENDED * machine["cores"]
    return thread is None or thread["run_queue"] > CONTENDED * thread["seconds"]


def judged(program: str, seed: int, fixed: bool, steps: int, folder: Path) -> tuple[dict[str, Any], bool]:
    """Trains until the machine let it. False: it never did, and the last result is not to be judged."""
    for _ in range(REPEATS):
        result = trained(program, seed, fixed, steps, folder)
        if not contended(program, result["profile"]):
            return result, True
    return result, False


def step_seconds(program: str, profile: dict[str, Any]) -> float:
    """Returns the time of the run for each TRAIN step, without what it lost to others.

    Where it lacks cores by its own fault, that is what was planted, and what the twin saves.
    """
    seconds = (profile["seconds"] + profile["evaluation"]["seconds"]) / profile["steps"]
    if PROGRAMS[program].contends:
        return float(seconds)
    thread = profile["thread"]
    return float(seconds * (1 - thread["run_queue"] / thread["seconds"]))
