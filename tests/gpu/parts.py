"""What only a machine with a GPU can show, run by `./dev gpu` with that machine's Python and torch.

Prints one JSON object a line for each check: part, check, status (passed, failed, skipped), detail, and for gates the
value and its limit.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


def _dense(low: Any, counts: Any) -> dict[float, int]:
    return dict(zip([float(edge) for edge in low], [int(count) for count in counts], strict=True))


def forms(folder: Path) -> Iterator[Row]:
    """Raw values, histograms and other forms at several steps, against a training of the same values on the CPU."""
    import luff.torch
    import numpy as np
    import torch

    shapes = {
        "matrix": (300, 500),
        "image": (8, 3, 40, 50),
        "large": (2_100_000, 1),  # two parts
        "odd": (1001,),
        "one": (1,),
    }
    form_names = ["summary", "raw", "histogram", "hash", "units", "difference", "extra"]
    collections = {"everything": {"roles": ["weight"], "forms": form_names, "save": {"save_interval": 1}}}

    class Holder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            for name, shape in shapes.items():
                setattr(self, name, torch.nn.Parameter(torch.randn(shape)))
            self.turned = torch.nn.Parameter(torch.randn(70, 90).t())

    trials = {}
    for place in ("cpu", "cuda"):
        model = Holder()
        model = model.cuda() if place == "cuda" else model
        hook = luff.torch.attach(
            model, run=str(folder / place), collections=collections, accelerators=place == "cuda"
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
        for _ in range(3):
            optimizer.zero_grad()
            for parameter in model.parameters():  # the same on both
                parameter.grad = torch.ones_like(parameter)
            sum(p.sum() for p in model.parameters()).backward()
            optimizer.step()
        hook.close()
        trials[place] = luff.open_trial(folder / place)
    names = [n for n in trials["cpu"].tensors() if n.startswith("Holder")]
    for name in names:
        host, device = (trials[place].tensor(name) for place in trials)
        same = host.value_steps() == device.value_steps() and len(host.value_steps()) == 3
        same = same and all(np.array_equal(host.value(i), device.value(i)) for i in host.value_steps())
        yield row(f"{name}: values", same, f"{host.value_steps()} and {device.value_steps()}")
        bins = [[_dense(t.histogram(i)[0], t.histogram(i)[2]) for i in t.steps()] for t in (host, device)]
        yield row(f"{name}: histograms", bins[0] == bins[1])
        reductions = [[t.reduction(i, "prod") for i in t.steps()] for t in (host, device)]
        yield row(f"{name}: extra", reductions[0] == reductions[1])
    gaps = [
        g for g in trials["cuda"].gaps() if g["reason"] not in {h["reason"] for h in trials["cpu"].gaps()}
    ]
    yield row("no gap that the CPU has not", not gaps, str(gaps[:3]))


def samples(folder: Path) -> Iterator[Row]:
    """First rows of inputs and of what a loss gets, and hashes of batches, in training and evaluation."""
    import luff.torch
    import numpy as np
    import torch

    wanted = {"samples": {"roles": ["sample"], "forms": ["summary", "raw"], "save": {"save_interval": 1}}}
    torch.manual_seed(0)
    model, loss_of = torch.nn.Linear(3000, 5).cuda(), torch.nn.CrossEntropyLoss()
    hook = luff.torch.attach(model, run=str(folder / "run"), collections=wanted, accelerators=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = [torch.randn(16, 3000).cuda() for _ in range(3)]
    labels = torch.randint(0, 5, (16,)).cuda()
    for x in (*inputs, inputs[0], inputs[1].clone()):
        optimizer.zero_grad()
        loss_of(model(x), labels).backward()
        optimizer.step()
    hook.close()
    trial = luff.open_trial(folder / "run")
    for name, expected in (
        ("sample/Linear_input_0", [x[:5].cpu().numpy() for x in inputs]),
        ("sample/CrossEntropyLoss_input_1", [labels.cpu().numpy()] * 3),
    ):
        tensor = trial.tensor(name)
        found = [tensor.value(step) for step in tensor.value_steps()][:3]
        good = len(found) == 3 and all(map(np.array_equal, found, expected))
        yield row(name, good, f"steps {tensor.value_steps()}")
    hashes = [e["argument"] for e in trial.events() if e["kind"] == "batch"]
    good = len(hashes) == 5 and len(set(hashes)) == 3 and hashes[3] == hashes[0] and hashes[4] == hashes[1]
    yield row("hashes of batches", good, str(hashes))


def memory(folder: Path) -> Iterator[Row]:
    """Raw values of all weights: device memory beyond the budget, what is given back, a device that is full."""
    import luff.torch
    import torch

    budget, tables = 512 << 20, 64 << 20

    def left() -> int:
        """What the framework can have: free, or its own."""
        return int(torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved())

    def trained(name: str, steps: int) -> tuple[int, list[str], Any]:
        """Returns the most that was gone beside the framework's own; gaps; the run. Bare without a name."""
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(8))).cuda()
        before = least = left()
        everything = {"w": {"roles": ["weight"], "forms": ["raw", "summary"], "save": {"save_interval": 1}}}
        hook = None
        if name:
            hook = luff.torch.attach(
                model, run=str(folder / name), collections=everything, accelerators=True, max_overhead=0.0
            )
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(4, 2048).cuda()).square().mean().backward()
            optimizer.step()
            least = min(least, left())
        if hook is None:
            return before - least, [], None
        hook.close()
        trial = luff.open_trial(folder / name)
        return before - least, sorted({g["reason"] for g in trial.gaps()}), trial

    def values_of(trial: Any) -> tuple[int, int]:
        weight = trial.tensor(next(n for n in trial.tensors() if n.endswith("0.weight")))
        return len(weight.steps()), len(weight.value_steps())

    trained("", 3)  # loads libraries and kernels, which take memory beside the framework's
    torch.cuda.reset_peak_memory_stats()
    beside, _, _ = trained("", 20)
    needed = torch.cuda.max_memory_reserved()
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    used, lost, trial = trained("free", 20)
    used -= beside
    yield row(
        "device memory of Luff, bytes", used <= budget + tables, value=float(used), gate=budget + tables
    )
    yield row("values came", values_of(trial)[1] > 0, f"{values_of(trial)[1]} steps, gaps {lost}")
    torch.cuda.empty_cache()
    gone = torch.cuda.mem_get_info()[0]
    check = "memory is given back when the run ends, bytes that are not"
    yield row(check, free - gone <= tables, value=float(free - gone), gate=tables)
    total = torch.cuda.mem_get_info()[1]
    for name, spared in (("at 95 % of memory", total // 20), ("with 256 MiB to spare", needed + (256 << 20))):
        torch.cuda.empty_cache()
        held = torch.empty(max(torch.cuda.mem_get_info()[0] - spared, 1), dtype=torch.uint8, device="cuda")
        check = f"{name} the training goes on"
        try:
            trained("", 10)
        except torch.cuda.OutOfMemoryError:
            yield row(check, None, "it does not go on without Luff, either")
            del held
            continue
        try:
            _, lost, trial = trained(name.replace(" ", "_").replace("%", "percent"), 10)
            yield row(check, values_of(trial)[0] > 0, f"gaps {lost}")
        except torch.cuda.OutOfMemoryError as error:
            yield row(check, False, repr(error))
        del held


def cost(folder: Path) -> Iterator[Row]:
    """Steps with Luff over steps without, interleaved in one process."""

    def summaries(interval: int) -> dict[str, Any]:
        save = {"save_interval": interval}
        return {
            name: {"roles": [role], "forms": ["summary"], "save": save}
            for name, role in (("w", "weight"), ("b", "bias"), ("g", "gradient"))
        }

    every_ten = {"save_interval": 10}
    weights = {"w": {"roles": ["weight", "bias"], "forms": ["summary"], "save": every_ten}}
    values = {"w": {"roles": ["weight", "bias", "gradient"], "forms": ["summary", "raw"], "save": every_ten}}
    slow = {"pool_max_bytes": 32 << 20}  # of 85 M parameters: most of what comes has to be left out
    for check, collections, gate, options in (
        ("w+g every step", summaries(1), 1.02, {}),
        ("weights every 10 steps", weights, 1.02, {}),
        ("w+g every 100 steps", summaries(100), 1.005, {}),
        ("all tensors every 10 steps", values, 1.15, {}),
        ("all tensors every 10 steps, slow sink", values, 1.10, slow),
        ("default collections", None, 1.03, {}),
    ):
        yield from _compared(folder / check.replace(" ", "_"), check, collections, gate, options)
    yield from _host_time(folder)


def _compared(
    folder: Path, check: str, collections: Any, gate: float, options: dict[str, Any]
) -> Iterator[Row]:
    """A step of 85 M parameters in bfloat16, watched and bare."""
    import luff.torch
    import torch

    def trainer(watched: bool) -> Any:
        torch.manual_seed(0)
        layers = [torch.nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True) for _ in range(12)]
        model = torch.nn.Sequential(*layers).cuda()
        hook = None
        if watched:
            hook = luff.torch.attach(
                model, run=str(folder), collections=collections, accelerators=True, **options
            )
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
    for turn in range(8):
        for name, step in (("bare", bare), ("watched", watched)):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            begin.record()
            for _ in range(10):  # so that all intervals fall due
                step()
            end.record()
            torch.cuda.synchronize()
            if turn >= 2:
                times[name].append(begin.elapsed_time(end))
    health = hook.health()
    hook.close()
    ratio = statistics.median(times["watched"]) / statistics.median(times["bare"])
    device_ms = health["counters"]["device_ns"] / 1e6 / 80
    yield row(
        f"step, 85 M parameters, {check}",
        ratio <= gate,
        f"{device_ms:.3f} ms of device a step",
        value=ratio,
        gate=gate,
    )


def _host_time(folder: Path) -> Iterator[Row]:
    """Host time that Luff adds to a step of 300 small tensors whose addresses do not change."""
    import luff.torch
    import torch

    host: dict[str, list[float]] = {"bare": [], "watched": []}
    steps, hooks = {}, []
    for name in host:
        model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(75))).cuda()  # w and g: 300
        if name == "watched":
            hooks.append(luff.torch.attach(model, run=str(folder / "host"), accelerators=True))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=True)
        x = torch.ones(4, 8).cuda()

        def step(model: Any = model, optimizer: Any = optimizer, x: Any = x) -> None:
            optimizer.zero_grad(set_to_none=False)
            model(x).square().mean().backward()
            optimizer.step()

        steps[name] = step
    for turn in range(200):
        for name, step in steps.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            step()
            if turn >= 50:
                host[name].append(time.perf_counter() - begin)
    hooks[0].close()
    extra = (statistics.median(host["watched"]) - statistics.median(host["bare"])) * 1e6
    yield row("host time a step, 300 tensors, us", extra <= 60, value=extra, gate=60)


def _of(module: str, name: str) -> Callable[[Path], Iterator[Row]]:
    """A part of another file, which is imported when it runs."""

    def part(folder: Path) -> Iterator[Row]:
        found: Iterator[Row] = getattr(importlib.import_module(module), name)(folder)
        return found

    return part


PARTS: dict[str, Callable[[Path], Iterator[Row]]] = {
    "values": values,
    "forms": forms,
    "samples": samples,
    "identical": _of("identical", "identical"),
    "harm": _of("harm", "harm"),
    "frameworks": _of("frameworks", "frameworks"),
    "memory": memory,
    "cost": cost,
    "models": _of("models", "models"),
    "peers": _of("peers", "peers"),
    "faults": _of("jobs", "faults"),
    "stop": _of("jobs", "stop"),
    "sanitizer": _of("jobs", "sanitizer"),
}


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
