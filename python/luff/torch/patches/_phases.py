"""What only the phases of a step need: waits for data, checkpoints, compilations, traces.

Waits count in the thread that waits; in the processes that load data nothing is recorded.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from luff._codes import Phase
from luff._core import enter_phase, enter_wait, leave_phase
from luff._patch import Method, once, unseen, wrap
from luff._phases import during
from luff._weak import Identities
from luff.torch.evidence._batches import Batches
from luff.torch.loop._trace import Profilers
from luff.torch.patches._registry import hooks

__all__ = ["install", "install_late"]

_DATA_WAIT, _DATA_START, _COMPILE = (
    int(phase) for phase in (Phase.DATA_WAIT, Phase.DATA_START, Phase.COMPILE)
)
_UNKNOWN = 0xFFFF_FFFF
#: Iterators of loaders, and the loaders' numbers in the document "loaders".
_numbers: Identities[int] = Identities()


@once
def install() -> None:
    """Wraps PyTorch's loaders, `torch.save`, and the profiler of torch; once per process."""
    from torch.utils.data import dataloader

    wrap(dataloader._BaseDataLoaderIter, "__next__", _waiting)
    wrap(dataloader.DataLoader, "__iter__", _starting)
    wrap(torch.serialization, "save", during(Phase.CHECKPOINT, hooks), also=(torch,))
    _wrap_all("torch.profiler.profiler", "_KinetoProfile", _TRACES, Phase.TRACE)
    profiler = torch.autograd.profiler
    for name, make in (
        ("_prepare_profiler", _profiler_begins),
        ("_enable_profiler", _profiler_begins),
        ("_disable_profiler", _profiler_ends),
    ):
        if hasattr(profiler, name):
            wrap(profiler, name, make)
    install_late()


# Modules that are imported when they are needed ---------------------------------------------------------------------

_TRACES = ("prepare_trace", "start_trace", "stop_trace", "export_chrome_trace")


def install_late() -> None:
    """Wraps what is in modules that a training may import at any time, in those that it has imported."""
    for name in [name for name in _late if name in sys.modules]:
        if not getattr(getattr(sys.modules[name], "__spec__", None), "_initializing", False):
            _late.pop(name, lambda: None)()


def _wrap_all(module: str, owner: str, names: tuple[str, ...], phase: Phase) -> None:
    """Wraps functions of a module, or of a class in it; those that it does not have are left out."""
    place = sys.modules.get(module)
    place = getattr(place, owner, None) if owner else place
    for name in names:
        if place is not None and hasattr(place, name):
            wrap(place, name, during(phase, hooks))


def _distributed() -> None:
    saver = sys.modules.get("torch.distributed.checkpoint.state_dict_saver")
    for name in ("save", "async_save"):
        if hasattr(saver, name):
            also = (sys.modules["torch.distributed.checkpoint"],)
            wrap(saver, name, during(Phase.CHECKPOINT, hooks), also=also)


def _compiler() -> None:
    # Its own list of call-backs is emptied by `torch._dynamo.reset`.
    handler = getattr(sys.modules["torch._dynamo.callback"], "CompilationCallbackHandler", None)
    if hasattr(handler, "run_start_callbacks") and hasattr(handler, "run_end_callbacks"):
        wrap(handler, "run_start_callbacks", _compiling)
        wrap(handler, "run_end_callbacks", _compiled)


_late: dict[str, Callable[[], None]] = {
    "torch._dynamo.callback": _compiler,
    "torch.distributed.checkpoint": _distributed,
    "safetensors.torch": lambda: _wrap_all(
        "safetensors.torch", "", ("save_file", "save_model", "serialize_file"), Phase.CHECKPOINT
    ),
}


def _compiling(original: Method) -> Method:
    def run_start_callbacks(*args: Any, **kwargs: Any) -> Any:
        if hooks:
            if Profilers.tracing is not None:
                for hook in hooks.living:
                    hook.compiles()
            enter_phase(_COMPILE)
        return original(*args, **kwargs)

    return run_start_callbacks


def _compiled(original: Method) -> Method:
    def run_end_callbacks(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        finally:
            leave_phase(_COMPILE)

    return run_end_callbacks


def _profiler_begins(original: Method) -> Method:
    def begins(*args: Any, **kwargs: Any) -> Any:
        if not Profilers.ours():
            for hook in hooks.living:
                hook.gives_way()
            Profilers.others.add(threading.get_ident())
        return original(*args, **kwargs)

    return begins


def _profiler_ends(original: Method) -> Method:
    def ends(*args: Any, **kwargs: Any) -> Any:
        if not Profilers.ours():
            Profilers.others.discard(threading.get_ident())
        return original(*args, **kwargs)

    return ends


# Loaders ------------------------------------------------------------------------------------------------------------


def _waiting(original: Method) -> Method:
    def __next__(self: Any) -> Any:
        if not hooks:
            return original(self)
        number = _numbers.get(self)
        if number is not None and not getattr(self, "_num_yielded", 1):
            hook = hooks.current()
            if hook is not None and hook.live and not hook.asleep:
                hook.guarded("loader", hook.machine.loaders.first_batch, number, sys._getframe().f_back)
        try:
            enter_wait(_UNKNOWN if number is None else number, *_awaited(self))
        except Exception:  # an iterator of the user's own, with other attributes
            enter_phase(_DATA_WAIT)
        try:
            batch = original(self)
        finally:
            leave_phase(_DATA_WAIT)
        if Batches.on and (hook := hooks.current()) is not None and hook.live and not hook.asleep:
            hook.guarded("batch", hook.machine.evidence.answers.batches.given, batch, self)
        return batch

    return __next__


def _awaited(iterator: Any) -> tuple[int, int]:
    """Returns which worker makes the batch that is asked for, and how many batches are there already.

    Reads a semaphore in memory, and nothing of the workers. Unknown where batches come in any order.
    """
    tasks = getattr(iterator, "_task_info", None)
    if tasks is None:
        return _UNKNOWN, _UNKNOWN
    ready = iterator._data_queue.qsize()
    for task in tasks.values():
        ready += len(task) == 2  # came before its turn
    if not getattr(iterator, "_in_order", True):
        return _UNKNOWN, ready
    task = tasks.get(iterator._rcvd_idx)
    return (_UNKNOWN if task is None else task[0]), ready


def _starting(original: Method) -> Method:
    def __iter__(self: Any) -> Any:
        if not hooks:
            return original(self)
        enter_phase(_DATA_START)
        try:
            iterator = original(self)
        finally:
            leave_phase(_DATA_START)
        hook = hooks.current()
        if hook is not None and hook.live and not hook.asleep:
            number = hook.guarded("loader", hook.machine.loaders.started, self, iterator)
            if number is not None:
                hook.guarded("loader", _numbers.__setitem__, iterator, number)
                evidence = hook.machine.evidence
                hook.guarded("loader", evidence.answers.batches.started, self, iterator, number)
                hook.guarded("loader", evidence.loader_started, iterator)
            hook.guarded("late", install_late)
        return iterator

    return __iter__


unseen(globals())
