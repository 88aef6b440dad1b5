"""What only a machine with a GPU can show, run by `./dev gpu` with that machine's Python and torch.

Prints one JSON object a line for each check: part, check, status (passed, failed, skipped), detail, and for gates the
value and its limit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
Row = dict[str, Any]


def row(check: str, good: bool | None, detail: str = "", **more: Any) -> Row:
    """Returns the outcome of a check; `good` None: it was skipped."""
    status = "skipped" if good is None else "passed" if good else "failed"
    return {"check": check, "status": status, "detail": detail, **more}


def values(_: Path) -> Iterator[Row]:
    """Statistics of every dtype against float64 on the CPU; the same bits in two runs."""
    import luff.torch
    import torch

    class Holder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
                name = str(dtype).removeprefix("torch.")
                for kind, count in (("large", 3_000_017), ("small", 7)):
                    data = torch.randn(count, dtype=torch.float64).to(dtype)
                    data[: count // 5] = 0
                    if kind == "large":
                        data[5], data[6], data[7] = float("nan"), float("inf"), -float("inf")
                    setattr(self, f"{name}_{kind}", torch.nn.Parameter(data.cuda()))
                turned = torch.randn(300, 500, dtype=torch.float64).to(dtype).cuda().t()
                setattr(self, f"{name}_turned", torch.nn.Parameter(turned))

    found: list[dict[str, Any]] = []
    for _again in range(2):
        with tempfile.TemporaryDirectory() as folder:
            model = Holder()
            hook = luff.torch.attach(model, run=f"{folder}/run", accelerators=True)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
            sum(p.double().nansum() for p in model.parameters()).backward()
            optimizer.step()
            hook.close()
            trial = luff.open_trial(f"{folder}/run")
            known = {name.split("_", 1)[1]: name for name in trial.tensors() if name.startswith("Holder_")}
            found.append({n: trial.tensor(full).summary(0) for n, full in known.items()})
    for name, parameter in model.named_parameters():
        host = parameter.detach().cpu().double()
        finite = host[torch.isfinite(host)]
        summary = found[0].get(name)
        if summary is None:
            yield row(name, False, "was not recorded")
            continue
        scale = float(finite.abs().sum())
        good = (
            abs(summary["sum"] - float(finite.sum())) <= 1e-6 * scale
            and abs(summary["sum_sq"] - float((finite * finite).sum()))
            <= 1e-6 * float((finite * finite).sum())
            and summary["min"] == float(finite.min())
            and summary["max"] == float(finite.max())
            and summary["zero_count"] == int((host == 0).sum())
            and summary["nan_count"] == int(host.isnan().sum())
            and summary["inf_count"] == int(host.isinf().sum())
        )
        yield row(name, good, str(summary))
        yield row(f"{name}, twice", repr(summary) == repr(found[1][name]))


def identical(folder: Path) -> Iterator[Row]:
    """Trainings with and without Luff: the same bits, the same memory, no synchronisation."""
    tests = HERE.parents[1] / "python/tests/torch/test_cuda_harm.py"
    try:
        import pytest  # noqa: F401
    except ImportError:
        yield row(tests.name, None, "this Python has no pytest")
        return
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    last = (done.stdout.strip().splitlines() or [done.stderr[-300:]])[-1]
    yield row(tests.name, done.returncode == 0, last)


def cost(folder: Path) -> Iterator[Row]:
    """A step with statistics of weights and gradients at every step over one without, interleaved in one process."""
    import luff.torch
    import torch

    def trainer(watched: bool) -> Any:
        torch.manual_seed(0)
        layers = [torch.nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True) for _ in range(12)]
        model = torch.nn.Sequential(*layers).cuda()
        hook = luff.torch.attach(model, run=str(folder / "cost"), accelerators=True) if watched else None
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        x = torch.randn(8, 512, 768, device="cuda")

        def step() -> None:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(x).square().mean()
            loss.backward()
            optimizer.step()

        return step, hook

    (bare, _), (watched, hook) = trainer(False), trainer(True)
    times: dict[str, list[float]] = {"bare": [], "watched": []}
    host: dict[str, list[float]] = {"bare": [], "watched": []}
    for turn in range(40):
        for name, step in (("bare", bare), ("watched", watched)):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            begin.record()
            start = time.perf_counter()
            step()
            host[name].append(time.perf_counter() - start)
            end.record()
            torch.cuda.synchronize()
            if turn >= 10:
                times[name].append(begin.elapsed_time(end))
    hook.close()
    ratio = statistics.median(times["watched"]) / statistics.median(times["bare"])
    yield row("step, 85 M parameters, w+g every step", ratio <= 1.02, value=ratio, gate=1.02)
    extra = (statistics.median(host["watched"][10:]) - statistics.median(host["bare"][10:])) * 1e6
    yield row(
        "host time a step, us", None, "measured, without a gate: the loop is not 300 tensors", value=extra
    )


PARTS = {"values": values, "identical": identical, "cost": cost}


def main() -> None:
    """Runs the parts that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    for name in parser.parse_args().parts:
        with tempfile.TemporaryDirectory() as folder:
            try:
                for outcome in PARTS[name](Path(folder)):
                    print(json.dumps({"part": name, **outcome}), flush=True)
            except Exception as error:  # a part that breaks is a failed check, and the others go on
                print(json.dumps({"part": name, **row("the part itself", False, repr(error))}), flush=True)


if __name__ == "__main__":
    main()
