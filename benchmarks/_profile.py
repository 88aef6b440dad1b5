"""The cost of profiling: `./dev bench profile [--only sampler,level0,...] [--models mlp,gpt] [--json FILE]`.

sampler: `_profile_sampler`.

level0: one model trains with `profile` on and off, in blocks of steps that alternate in one process with one torch
thread. A block with it runs between two without and is compared with their mean. CPU time of the process, and the
sampler's share of a core for the block's wall time, count together.

level1: the same with `profile` "full" and "basic", where every step is timed. When a training runs, one step in 67
is, so the gate is on the mean over 67.

trace, and instructions (steps after traces under callgrind): `_profile_trace`; place: `_profile_place`;
disk and large: `_profile_size`.

Exit code: 0 if all gates hold, 1 if one does not.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import _profile_place
import _profile_sampler
import _profile_size
import _profile_trace
from _gates import Measured, finish, gate, luff_command, measured, say

PARTS = ("sampler", "disk", "large", "place", "level0", "level1", "trace", "instructions")


def _samples(run: Path) -> dict[str, Any]:
    """Returns what `luff profile` says of the machine."""
    done = subprocess.run(
        [luff_command(), "profile", str(run), "--json"], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)["machines"][0]  # type: ignore[no-any-return]


def _blocks(
    model: str, pairs: int, steps: int, folder: Path, without: str, having: str
) -> list[tuple[Any, Any]]:
    """Trains with two settings of `profile` in turns; returns each block with the mean of those around it."""
    from capture import Luff, Runner, middle

    off = Runner(model, lambda w: Luff(str(folder / "off"), {"profile": without}, w))
    on = Runner(model, lambda w: Luff(str(folder / "on"), {"profile": having}, w))
    off.block(5)
    on.block(5)
    on.share_memory(off)
    time.sleep(2.5)  # samplers start
    blocks = []
    before = off.block(steps)
    for _ in range(pairs):
        own, after = on.block(steps), off.block(steps)
        blocks.append((own, middle(before, after)))
        before = after
    off.system.close()
    on.system.close()
    return blocks


def level0(model: str, pairs: int, steps: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Measures a training with and without level 0."""
    folder = Path(tempfile.mkdtemp(prefix="luff-bench-"))
    os.environ["LUFF_EXECUTABLE"] = luff_command()
    try:
        blocks = _blocks(model, pairs, steps, folder, "off", "basic")
        _wait_for_sampler(folder / "on")
        machine = _samples(folder / "on")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    share = float(machine["sampler"]["cores"])
    ratios = measured([(own.cpu_s + share * own.wall_s) / bare.cpu_s for own, bare in blocks])
    print(
        f"level 0 on over off, {model}: {ratios.median:.4f} [{ratios.low:.4f}, {ratios.high:.4f}], a step of "
        f"{1e3 * blocks[0][1].cpu_s:.1f} ms; the sampler took {100 * share:.3f} % of a core"
    )
    held = gate(f"level 0 on over off, {model}", ratios, 1.010)
    print(f"  {say(held['ok'])}")
    return {"part": "level0", "model": model, "ratio": ratios.median, "sampler": share}, held


def level1(model: str, pairs: int, steps: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Measures steps in which modules are timed beside steps in which they are not."""
    from luff.torch.capture import _module_times

    usual = _module_times.FIRST, _module_times.EVERY
    _module_times.FIRST, _module_times.EVERY = 0, 1
    folder = Path(tempfile.mkdtemp(prefix="luff-bench-"))
    os.environ["LUFF_EXECUTABLE"] = luff_command()
    try:
        blocks = _blocks(model, pairs, steps, folder, "basic", "full")
        shown = subprocess.run(
            [luff_command(), "profile", str(folder / "on"), "--json"],
            capture_output=True,
            text=True,
            check=True,
        )
        timed = json.loads(shown.stdout)["modules"]
    finally:
        _module_times.FIRST, _module_times.EVERY = usual
        shutil.rmtree(folder, ignore_errors=True)
    assert timed["steps"] >= pairs * steps, timed
    one = measured([own.cpu_s / bare.cpu_s for own, bare in blocks])
    mean = Measured(*(1 + (ratio - 1) / usual[1] for ratio in (one.median, one.low, one.high)))
    print(
        f"level 1 on over off, {model}: a timed step {one.median:.4f} [{one.low:.4f}, {one.high:.4f}], in the mean "
        f"over {usual[1]} {mean.median:.5f}; {timed['modules']} modules, a step of {1e3 * blocks[0][1].cpu_s:.1f} ms"
    )
    held = gate(f"level 1 averaged, {model}", mean, 1.003)
    print(f"  {say(held['ok'])}")
    return {"part": "level1", "model": model, "timed_step": one.median, "ratio": mean.median}, held


def _wait_for_sampler(run: Path) -> None:
    """Waits until the sampler has written its end; it does so two seconds after the training's."""
    for _ in range(200):
        try:
            if _samples(run)["sampler"]["ended"]:
                return
        except (LookupError, subprocess.CalledProcessError):
            pass
        time.sleep(0.1)


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--models", default="mlp,resnet18,gpt")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--million", type=int, default=1_000_000, help="steps of `large`")
    args = parser.parse_args()
    chosen = args.only.split(",")
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"--only: {', '.join(sorted(unknown))}: expected some of {', '.join(PARTS)}")
    results: list[dict[str, Any]] = []
    gates: list[dict[str, Any]] = []

    def add(measured_part: tuple[list[dict[str, Any]], list[dict[str, Any]]]) -> None:
        results.extend(measured_part[0])
        gates.extend(measured_part[1])

    if "sampler" in chosen:
        add(_profile_sampler.sampler())
    if "disk" in chosen:
        add(_profile_size.disk(15))
    if "large" in chosen:
        add(_profile_size.large(args.million))
    if {"level0", "level1", "trace", "place"} & set(chosen):
        import torch

        torch.set_num_threads(1)
    if "place" in chosen:
        add(_profile_place.place(args.pairs, args.steps))
    for name, measure in (("level0", level0), ("level1", level1)):
        for model in args.models.split(",") if name in chosen else ():
            one, held_one = measure(model, args.pairs, args.steps)
            add(([one], [held_one]))
    for model in args.models.split(",") if "trace" in chosen else ():
        add(_profile_trace.trace(model, args.pairs, args.steps))
    if "instructions" in chosen and shutil.which("valgrind") is None:
        print("instructions skipped: valgrind is not installed")
        chosen.remove("instructions")
    if "instructions" in chosen:
        add(_profile_trace.instructions())
    return finish(results, gates, args.json)


if __name__ == "__main__":
    sys.exit(main())
