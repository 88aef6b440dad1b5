"""Ways to train on a GPU, each bare or watched: `trainings.py DEVICE [--watch FOLDER] [--rank N --world N] NAME...`

Prints a JSON object a line for each: a digest of weights, losses and generators, the most memory that the framework
took, and, of a bare training, losses and sums of weights and gradients before each update, copied to the host. The
environment's LUFF_TRAININGS_ACCELERATORS=0 lets Luff read the CPU only, as it does by default.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import importlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 8
#: Where the optimizer is outside of what is compiled or captured, its weights and gradients are recorded.
VALUES, WEIGHTS, NOTHING = "losses and weights", "weights", "nothing"


class Training:
    """One training: what it computes on, and what is to be known of it afterwards."""

    def __init__(self, name: str, device: str, folder: str | None) -> None:
        self.name, self.device, self.folder = name, device, folder
        self.losses: list[Any] = []
        self.answers: list[Any] = []  # computed, and not recorded by default
        self.sums: dict[str, list[float]] = {}
        self._net: nn.Module = nn.Identity()
        self._hook: Any = None

    def watch(self, net: nn.Module) -> nn.Module:
        """Watches the model, unless the training is bare."""
        self._net = net
        if self.folder is not None:
            import luff.torch

            run = os.path.join(self.folder, self.name)
            on_gpu = os.environ.get("LUFF_TRAININGS_ACCELERATORS", "1") == "1"
            self._hook = luff.torch.attach(net, run=run, accelerators=on_gpu)
        return net

    def updates_by(self, optimizer: Any) -> Any:
        """Notes sums of weights and gradients before each update of the optimizer, of a bare training."""
        if self.folder is None:
            optimizer.register_step_pre_hook(lambda of, *_: self._note(getattr(of, "grad_scale", None)))
        return optimizer

    def _note(self, scale: Any) -> None:
        for name, parameter in self._net.named_parameters():
            if parameter.grad is None:
                continue
            divisor = 1.0 if scale is None else float(scale)
            for prefix, tensor, by in (("", parameter, 1.0), ("gradient/", parameter.grad, divisor)):
                # On the host: no memory of the device is taken that a watched training would not take.
                value = float(_local(tensor).detach().cpu().double().sum()) / by
                self.sums.setdefault(prefix + _plain(name), []).append(value)

    def outcome(self) -> dict[str, Any]:
        """Ends the training; returns what came of it."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        losses = [float(loss) for loss in self.losses]
        sha = hashlib.sha256(repr((losses, [float(answer) for answer in self.answers])).encode())
        for parameter in self._net.parameters():
            sha.update(_local(parameter).detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        sha.update(torch.get_rng_state().numpy().tobytes())
        peak = 0
        if self.device == "cuda":
            sha.update(torch.cuda.get_rng_state().numpy().tobytes())
            peak = torch.cuda.max_memory_allocated()
        found = {"name": self.name, "digest": sha.hexdigest(), "peak": peak}
        if self._hook is not None:
            health = self._hook.health()
            found["errors"] = health["first_error"] or "".join(map(str, health["hook_error_places"].items()))
            self._hook.close()
        else:
            found |= {"losses": losses, "sums": self.sums}
        return found


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _plain(name: str) -> str:
    for prefix in ("_orig_mod.", "module."):
        name = name.removeprefix(prefix)
    return name


Case = Callable[[Training], None]
CASES: dict[str, Case] = {}
#: What is recorded of each, besides its losses.
RECORDED: dict[str, str] = {}
ONLY_CUDA: set[str] = set()
#: Trained in a process of its own, or in several.
ALONE: dict[str, int] = {}
COMPILED: set[str] = set()


def case(
    recorded: str = VALUES, only_cuda: bool = False, alone: int = 0, compiled: bool = False
) -> Callable[[Case], Case]:
    def add(function: Case) -> Case:
        name = function.__name__
        CASES[name], RECORDED[name] = function, recorded
        if only_cuda:
            ONLY_CUDA.add(name)
        if alone:
            ALONE[name] = alone
        if compiled:
            COMPILED.add(name)
        return function

    return add


def net(device: str) -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)


def batch(device: str) -> tuple[Any, Any]:
    return torch.randn(32, 64, device=device), torch.randint(0, 10, (32,), device=device)


def loop(
    of: Training,
    model: Any,
    optimizer: Any,
    autocast: Any = None,
    scaler: Any = None,
    accumulate: int = 1,
    data: Callable[[], tuple[Any, Any]] | None = None,
    before_update: Callable[[], Any] | None = None,
    after_step: Callable[[int], Any] | None = None,
    around: Callable[[int], Any] = lambda step: nullcontext(),
    steps: int = STEPS,
) -> None:
    """The loop that most scripts have."""
    for step in range(steps):
        with around(step):
            x, y = (data or (lambda: batch(of.device)))()
            with torch.autocast(of.device, dtype=autocast) if autocast else nullcontext():
                loss = F.cross_entropy(model(x), y)
            (scaler.scale(loss) if scaler else loss).backward()
            if (step + 1) % accumulate == 0:
                if before_update:
                    before_update()
                if scaler:
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    optimizer.step()
                optimizer.zero_grad()
            of.losses.append(loss.detach())
        if after_step:
            after_step(step)


@case()
def sgd(of: Training) -> None:
    model = of.watch(net(of.device))
    loop(of, model, of.updates_by(torch.optim.SGD(model.parameters(), lr=0.1)))


def _adamw(of: Training, model: nn.Module, **how: Any) -> Any:
    return of.updates_by(torch.optim.AdamW(model.parameters(), lr=1e-2, **how))


@case()
def foreach(of: Training) -> None:
    model = of.watch(net(of.device))
    loop(of, model, _adamw(of, model, foreach=True))


@case()
def fused(of: Training) -> None:
    model = of.watch(net(of.device))
    loop(of, model, _adamw(of, model, fused=True))


@case(only_cuda=True)
def capturable(of: Training) -> None:
    model = of.watch(net(of.device))
    loop(of, model, _adamw(of, model, capturable=True))


@case()
def accumulation(of: Training) -> None:
    model = of.watch(net(of.device))
    loop(of, model, _adamw(of, model), accumulate=2)


@case()
def autocast_bfloat16(of: Training) -> None:
    model = of.watch(net(of.device))
    loop(of, model, _adamw(of, model), autocast=torch.bfloat16)


@case()
def grad_scaler(of: Training) -> None:
    model = of.watch(net(of.device))
    half = torch.float16 if of.device == "cuda" else torch.bfloat16
    loop(
        of, model, _adamw(of, model), autocast=half, scaler=torch.amp.GradScaler(of.device, init_scale=128.0)
    )


@case()
def grad_scaler_fused(of: Training) -> None:
    model = of.watch(net(of.device))
    half = torch.float16 if of.device == "cuda" else torch.bfloat16
    scaler = torch.amp.GradScaler(of.device, init_scale=128.0)
    loop(of, model, _adamw(of, model, fused=True), autocast=half, scaler=scaler)


@case()
def clipping(of: Training) -> None:
    model = of.watch(net(of.device))
    loop(
        of, model, _adamw(of, model),
        before_update=lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5),
    )  # fmt: skip


class Checkpointed(nn.Module):
    """A model whose first half is evaluated again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(64, 128), nn.Dropout(0.1), nn.ReLU())
        self.last = nn.Linear(128, 10)

    def forward(self, x: Any) -> Any:
        from torch.utils.checkpoint import checkpoint

        return self.last(checkpoint(self.first, x, use_reentrant=False))


@case()
def checkpointing(of: Training) -> None:
    model = of.watch(Checkpointed().to(of.device))
    loop(of, model, _adamw(of, model))


@case()
def data_parallel(of: Training) -> None:
    model = of.watch(nn.DataParallel(net(of.device)))
    loop(of, model, _adamw(of, model))


@case()
def evaluated(of: Training) -> None:
    model = of.watch(net(of.device))

    def evaluate(step: int) -> None:
        if step % 3 != 2:
            return
        model.eval()
        with torch.inference_mode():
            x, y = batch(of.device)
            of.answers.append(F.cross_entropy(model(x), y).clone())
        model.train()

    loop(of, model, _adamw(of, model), after_step=evaluate)


@case()
def cache_given_back(of: Training) -> None:
    model = of.watch(net(of.device))
    give_back = torch.cuda.empty_cache if of.device == "cuda" else lambda: None
    loop(of, model, _adamw(of, model), after_step=lambda step: give_back())


@case(only_cuda=True)
def side_stream(of: Training) -> None:
    """The whole loop in a stream that is not the default one."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        model = of.watch(net(of.device))
        loop(of, model, _adamw(of, model))
    torch.cuda.current_stream().wait_stream(stream)


@case(only_cuda=True)
def two_streams(of: Training) -> None:
    """Steps in one stream and in another in turn, each behind the other's work."""
    model = of.watch(net(of.device))
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()

    class In:
        def __init__(self, step: int) -> None:
            self.now, before = streams[step % 2], streams[(step + 1) % 2]
            self.now.wait_stream(before)
            self.context = torch.cuda.stream(self.now)

        def __enter__(self) -> None:
            self.context.__enter__()

        def __exit__(self, *failure: Any) -> None:
            self.context.__exit__(*failure)

    optimizer = _adamw(of, model)
    # Memory of one stream is used in the other: the framework must not give it away in between.
    kept: list[Any] = []

    def data() -> tuple[Any, Any]:
        kept.append(batch(of.device))
        return kept[-1]

    loop(of, model, optimizer, data=data, around=In)
    torch.cuda.synchronize()


@case()
def pinned_batches(of: Training) -> None:
    model = of.watch(net(of.device))

    def data() -> tuple[Any, Any]:
        x, y = batch("cpu")
        if of.device == "cuda":
            x, y = x.pin_memory(), y.pin_memory()
        return x.to(of.device, non_blocking=True), y.to(of.device, non_blocking=True)

    loop(of, model, _adamw(of, model), data=data)


class Halves(nn.Module):
    """A model of which one half is on the CPU."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 128), nn.Linear(128, 10).to(device)
        self.device = device

    def forward(self, x: Any) -> Any:
        return self.last(self.first(x).relu().to(self.device))


@case()
def two_halves(of: Training) -> None:
    model = of.watch(Halves(of.device))

    def data() -> tuple[Any, Any]:
        x, y = batch("cpu")
        return x, y.to(of.device)

    loop(of, model, _adamw(of, model, foreach=False), data=data)


@case()
def saved_on_the_cpu(of: Training) -> None:
    model = of.watch(net(of.device))
    on_cpu = torch.autograd.graph.save_on_cpu
    loop(of, model, _adamw(of, model), around=lambda step: on_cpu(pin_memory=of.device == "cuda"))


@case()
def replaced_data(of: Training) -> None:
    """Weights move to other memory between steps."""
    model = of.watch(net(of.device))

    def move(step: int) -> None:
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()

    loop(of, model, _adamw(of, model), after_step=move)


def _graph_warmed_up(model: Any, work: Callable[[], Any], optimizer: Any) -> None:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            work()
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)


@case(recorded=NOTHING, only_cuda=True)
def captured_step(of: Training) -> None:
    """A whole step in a graph: nothing of Luff's may get into it."""
    model = of.watch(net(of.device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, capturable=True)
    x, y = batch(of.device)

    def work() -> Any:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    _graph_warmed_up(model, work, optimizer)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = work()
    for _ in range(STEPS):
        x.copy_(torch.randn(32, 64, device=of.device))
        graph.replay()
        of.losses.append(loss.detach().clone())


@case(recorded=WEIGHTS, only_cuda=True)
def captured_passes(of: Training) -> None:
    """Both passes in a graph, and the optimizer outside, which is where weights and gradients are read."""
    model = of.watch(net(of.device))
    optimizer = _adamw(of, model)
    x, y = batch(of.device)

    def work() -> Any:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    _graph_warmed_up(model, work, optimizer)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = work()
    for _ in range(STEPS):
        x.copy_(torch.randn(32, 64, device=of.device))
        graph.replay()
        optimizer.step()
        of.losses.append(loss.detach().clone())


@case(compiled=True)
def compiled(of: Training) -> None:
    model = of.watch(net(of.device))
    fast = torch.compile(model, backend="inductor" if of.device == "cuda" else "aot_eager")
    loop(of, fast, _adamw(of, model))


@case(only_cuda=True, compiled=True)
def reduce_overhead(of: Training) -> None:
    model = of.watch(net(of.device))
    loop(of, torch.compile(model, mode="reduce-overhead"), _adamw(of, model))


@case(recorded=NOTHING, compiled=True)
def compiled_optimizer(of: Training) -> None:
    model = of.watch(net(of.device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = torch.compile(optimizer.step, backend="inductor" if of.device == "cuda" else "eager")
    for _ in range(STEPS):
        x, y = batch(of.device)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        step()
        optimizer.zero_grad()
        of.losses.append(loss.detach())


# ---- Several processes, or one that is a group ----


def _fsdp() -> Any:
    """The module of FSDP2: public from torch 2.6 on."""
    import torch.distributed.fsdp as module

    if hasattr(module, "fully_shard"):
        return module
    return importlib.import_module("torch.distributed._composable.fsdp")


def _sharded(of: Training, **how: Any) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    fully_shard = _fsdp().fully_shard
    model = net(of.device)
    mesh = init_device_mesh(of.device, (torch.distributed.get_world_size(),))
    for layer in (model[0], model[2]):  # type: ignore[index]
        fully_shard(layer, mesh=mesh, **how)
    fully_shard(model, mesh=mesh, **how)
    of.watch(model)
    loop(of, model, _adamw(of, model))


@case(alone=1)
def fsdp(of: Training) -> None:
    _sharded(of)


@case(alone=1, only_cuda=True)
def fsdp_offloaded(of: Training) -> None:
    _sharded(of, offload_policy=_fsdp().CPUOffloadPolicy())


@case(alone=1)
def ddp(of: Training) -> None:
    model = nn.parallel.DistributedDataParallel(net(of.device))
    of.watch(model)
    loop(of, model, _adamw(of, model))


@case(alone=2)
def ddp_of_two(of: Training) -> None:
    """Two processes on one GPU, by gloo."""
    model = nn.parallel.DistributedDataParallel(net(of.device), gradient_as_bucket_view=True)
    of.watch(model)
    torch.manual_seed(torch.distributed.get_rank())
    loop(of, model, _adamw(of, model))


def trained(names: list[str], device: str, folder: str | None) -> Iterator[dict[str, Any]]:
    """Trains each, one after the other."""
    for name in names:
        torch.manual_seed(0)
        gc.collect()  # what the one before has left counts for none
        if device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        of = Training(name, device, folder)
        try:
            CASES[name](of)
            yield of.outcome()
        except Exception as error:  # the others go on
            yield {"name": name, "error": repr(error)[:300]}
        if name in COMPILED:
            torch._dynamo.reset()


def main() -> None:
    """Trains what is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device", choices=("cpu", "cuda"))
    parser.add_argument("--watch", metavar="FOLDER")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world", type=int, default=0, help="processes; 0: no group")
    parser.add_argument("--store", help="a file that processes of a group share")
    parser.add_argument("names", nargs="+", choices=CASES)
    args = parser.parse_args()
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    if args.world:
        os.environ |= {"RANK": str(args.rank), "WORLD_SIZE": str(args.world), "LOCAL_RANK": str(args.rank)}
        for one in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(one, "lo")
        backend = "nccl" if args.device == "cuda" and args.world == 1 else "gloo"
        store = args.store or os.path.join(tempfile.mkdtemp(), "store")
        torch.distributed.init_process_group(
            backend, init_method=f"file://{store}", rank=args.rank, world_size=args.world
        )
    for found in trained(args.names, args.device, args.watch):
        print(json.dumps(found), flush=True)
    if args.world:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
