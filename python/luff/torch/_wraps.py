"""The wraps: functions of torch replaced once, at run time, by ones that also tell the hooks.

Each wrap leaves at once while torch compiles or traces, calls the original outside of any guard, and restores its
state in `finally`. No wrap computes with torch.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_compiling
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from luff import _codes as codes
from luff._codes import EventKind, GapReason
from luff.torch import _dynamo, _names
from luff.torch._hooks import Hook, hooks
from luff.torch._memory import read_scalar

__all__ = ["busy", "install", "local"]

_current_graph_task: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)
_tracing_state: Callable[[], Any] = torch._C._get_tracing_state
_installed = False


class _Local(threading.local):
    inside = 0  # 1: within a model's call; 2: and its modules are captured
    capture: Any = None
    scheduling = False
    loading = False
    updates = 0  # optimizer steps seen by this thread
    through: tuple[Any, ...] = ()  # modules whose next calls only lead to a framework's own function
    in_loss = False  # a loss is being computed; what it calls is a part of it


local = _Local()


def install() -> None:
    """Installs every wrap; once per process."""
    global _installed
    if _installed:
        return
    _installed = True
    _names.install()
    _wrap_optimizers()
    _wrap_backward()
    _wrap_zero_grad()
    _wrap_schedulers()
    _wrap_scaler()
    _wrap_clipping()
    _wrap_load_state_dict()
    _wrap_saved_hooks()
    os.register_at_fork(after_in_child=_after_fork)
    _wrap_module_call()
    _dynamo.leave_out()


def busy() -> bool:
    """True where nothing may be recorded: compiling, tracing, or recomputing inside a backward pass."""
    return is_compiling() or _current_graph_task() != -1 or _tracing_state() is not None


def _after_fork() -> None:
    local.__dict__.clear()


def _awake(hook: Hook) -> bool:
    """False for children that only load data."""
    if hook.asleep:
        if torch.utils.data.get_worker_info() is not None:
            return False
        hook.wake()
    return hook.live


# Module calls ------------------------------------------------------------------------------------------------------


def _wrap_module_call() -> None:
    original = torch.nn.Module.__call__

    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(self, *args, **kwargs)
        inside = local.inside
        if inside == 1:
            return original(self, *args, **kwargs)
        if inside:
            return _inner_call(original, self, args, kwargs)
        return _outer_call(original, self, args, kwargs)

    torch.nn.Module.__call__ = __call__  # type: ignore[method-assign]


def _outer_call(
    original: Callable[..., Any], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if not hooks.living or _current_graph_task() != -1 or _tracing_state() is not None:
        return original(module, *args, **kwargs)
    if local.through and local.through[0] is module:
        local.through = local.through[1:]
        return original(module, *args, **kwargs)
    if "compile_subgraph_reason" in module.__dict__:  # a compiler's own graph
        return original(module, *args, **kwargs)
    hook = hooks.of_module(module)
    if hook is None:
        return _loss_call(original, module, args, kwargs)
    if not hook.live or hook.asleep:
        return original(module, *args, **kwargs)
    capture = hook.guarded("forward", hook.machine.forward_begins, module, args, kwargs)
    if capture is False:
        return _loss_call(original, module, args, kwargs)
    hooks.last = hook
    if hook.machine.stop >= 2:
        hook.leave_if_stopped()
    local.inside = 1 if capture is None else 2
    local.capture = (hook, capture)
    try:
        if capture is None:
            return original(module, *args, **kwargs)
        hook.guarded("input", capture.before, module, args, kwargs)
        output = original(module, *args, **kwargs)
        hook.guarded("output", capture.after, module, output)
        return output
    finally:
        local.inside = 0
        local.capture = None


def _inner_call(
    original: Callable[..., Any], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if _current_graph_task() != -1 or _tracing_state() is not None:
        return original(module, *args, **kwargs)
    hook, capture = local.capture
    hook.guarded("input", capture.before, module, args, kwargs)
    output = original(module, *args, **kwargs)
    hook.guarded("output", capture.after, module, output)
    if isinstance(module, torch.jit.ScriptModule):
        hook.guarded("scripted", hook.machine.hidden, GapReason.SCRIPTED)
    elif type(module).__name__ == "OptimizedModule" or module.__dict__.get("_compiled_call_impl") is not None:
        hook.guarded("compiled", hook.machine.hidden, GapReason.COMPILED_GRAPH)
    return output


def _loss_call(
    original: Callable[..., Any], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A module without parameters, called by no other: a loss, a metric, an activation."""
    hook = hooks.current()
    if hook is None or not hook.live or hook.asleep:
        return original(module, *args, **kwargs)
    local.inside, local.in_loss = 1, True
    try:
        output = original(module, *args, **kwargs)
    finally:
        local.inside, local.in_loss = 0, False
    hook.guarded("loss", hook.machine.losses.module_returned, module, args, kwargs, output)
    return output


# Backward ----------------------------------------------------------------------------------------------------------


def _wrap_backward() -> None:
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not hooks.living or _current_graph_task() != -1:
            return original(tensors, *args, **kwargs)
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors) if _listed(tensors) else []
        given = args[0] if args else kwargs.get("grad_tensors")
        for hook in (told := [hook for hook in hooks.of_backward() if _awake(hook)]):
            hook.machine.evidence.accumulated.weighted = given is not None
            hook.guarded("backward", hook.machine.backward_begins, roots)
        del roots
        result = original(tensors, *args, **kwargs)
        for hook in told:
            hook.guarded("backward end", hook.machine.backward_ended)
        return result

    torch.autograd.backward = backward


def _listed(tensors: Any) -> bool:
    return isinstance(tensors, list | tuple)


def _wrap_saved_hooks() -> None:
    cls = getattr(torch.autograd.graph, "saved_tensors_hooks", None)
    if cls is None:
        return
    original_enter, original_exit = cls.__enter__, cls.__exit__

    @functools.wraps(original_enter)
    def __enter__(self: Any) -> Any:
        result = original_enter(self)
        if not is_compiling():
            for hook in hooks.living:
                hook.machine.saved_hooks = True
                hook.machine.saving += 1
        return result

    @functools.wraps(original_exit)
    def __exit__(self: Any, *args: object) -> Any:
        if not is_compiling():
            for hook in hooks.living:
                hook.machine.saving = max(hook.machine.saving - 1, 0)
        return original_exit(self, *args)

    cls.__enter__, cls.__exit__ = __enter__, __exit__


# Optimizers --------------------------------------------------------------------------------------------------------


def _wrap_optimizers() -> None:
    original = torch.optim.Optimizer.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if not is_compiling() and hooks.living:
            hook = hooks.of_optimizer(self)
            if hook is not None:
                hook.guarded("optimizer", hook.machine.optimizer_made, self)

    torch.optim.Optimizer.__init__ = __init__  # type: ignore[method-assign]
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)


def _before_step(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if is_compiling() or not hooks.living:
        return None
    hook = hooks.of_optimizer(optimizer)
    if hook is None or not _awake(hook):
        return None
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    hook.guarded("update", hook.machine.update_begins, optimizer, callable(closure))
    if not callable(closure):
        return None
    wrapped = _wrap_closure(hook, optimizer, closure)
    if len(args) > 1:
        return (args[0], wrapped, *args[2:]), kwargs
    return args, {**kwargs, "closure": wrapped}


def _wrap_closure(hook: Hook, optimizer: Any, closure: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(closure, updated=())
    def evaluate(*args: Any, **kwargs: Any) -> Any:
        hook.machine.closure_depth += 1
        try:
            result = closure(*args, **kwargs)
        finally:
            hook.machine.closure_depth -= 1
        hook.guarded("closure", hook.machine.closure_returned, optimizer)
        return result

    return evaluate


def _after_step(optimizer: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    if is_compiling() or not hooks.living:
        return
    hook = hooks.of_optimizer(optimizer)
    if hook is None or not hook.live or hook.asleep:
        return
    local.updates += 1
    hook.guarded("update end", hook.machine.update_ended, optimizer, _current_graph_task() != -1)
    if hook.machine.stop >= 2:
        hook.leave_if_stopped()


def _wrap_zero_grad() -> None:
    original_optimizer = torch.optim.Optimizer.zero_grad
    original_module = torch.nn.Module.zero_grad

    @functools.wraps(original_optimizer)
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_compiling() and hooks.living:
            hook = hooks.of_optimizer(self)
            if hook is not None and hook.live and not hook.asleep:
                hook.guarded("zero_grad", hook.machine.cleared, self)
        return original_optimizer(self, *args, **kwargs)

    @functools.wraps(original_module)
    def module_zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_compiling() and hooks.living:
            hook = hooks.of_module(self)
            if hook is not None and hook.live and not hook.asleep:
                hook.guarded("zero_grad", hook.machine.event, int(EventKind.ZERO_GRAD), codes.NO_ID, 1)
        return original_module(self, *args, **kwargs)

    torch.optim.Optimizer.zero_grad = zero_grad  # type: ignore[method-assign]
    torch.nn.Module.zero_grad = module_zero_grad  # type: ignore[method-assign]


def _wrap_schedulers() -> None:
    module = torch.optim.lr_scheduler
    base = getattr(module, "LRScheduler", None) or module._LRScheduler
    for cls in {c for c in vars(module).values() if isinstance(c, type)}:
        if "step" in cls.__dict__ and (issubclass(cls, base) or cls.__name__ == "ReduceLROnPlateau"):
            cls.step = _scheduler_step(cls.step)  # type: ignore[attr-defined]


def _scheduler_step(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not hooks.living or local.scheduling:
            return original(self, *args, **kwargs)
        local.scheduling = True
        try:
            result = original(self, *args, **kwargs)
        finally:
            local.scheduling = False
        if getattr(self, "last_epoch", 1) > 0:  # its first step is part of making it
            optimizer = getattr(self, "optimizer", None)
            hook = hooks.default if optimizer is None else hooks.of_optimizer(optimizer)
            if hook is not None and hook.live and not hook.asleep:
                hook.guarded("scheduler", hook.machine.scheduler_stepped, self)
        return result

    return step


# Mixed precision, clipping -----------------------------------------------------------------------------------------


def _wrap_scaler() -> None:
    try:
        from torch.amp.grad_scaler import GradScaler
    except ImportError:  # torch before 2.3
        try:
            from torch.cuda.amp.grad_scaler import GradScaler  # type: ignore[assignment]
        except ImportError:
            return
    original_scale, original_step = GradScaler.scale, GradScaler.step

    @functools.wraps(original_scale)
    def scale(self: Any, outputs: Any) -> Any:
        result = original_scale(self, outputs)
        if (
            not is_compiling()
            and hooks.living
            and isinstance(outputs, torch.Tensor)
            and result is not outputs
        ):
            for hook in hooks.of_backward():
                if hook.live and not hook.asleep:
                    hook.guarded("scale", _scaled, hook, self, outputs, result)
        return result

    @functools.wraps(original_step)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = local.updates
        result = original_step(self, optimizer, *args, **kwargs)
        if not is_compiling() and hooks.living and local.updates == before:
            hook = hooks.of_optimizer(optimizer)
            if hook is not None and hook.live and not hook.asleep:
                hook.guarded("skip", hook.machine.update_skipped, optimizer)
                hook.leave_if_stopped()
        return result

    GradScaler.scale, GradScaler.step = scale, step  # type: ignore[method-assign]


def _scaled(hook: Hook, scaler: Any, outputs: Any, result: Any) -> None:
    factor = getattr(scaler, "_scale", None)
    hook.machine.losses.scaled(result, read_scalar(outputs), None if factor is None else read_scalar(factor))


def _wrap_clipping() -> None:
    import torch.nn.utils.clip_grad as module

    for name in ("clip_grad_norm_", "clip_grad_value_"):
        original = getattr(module, name, None)
        if original is None:
            continue
        wrapped = _clipping(original)
        setattr(module, name, wrapped)
        if getattr(torch.nn.utils, name, None) is original:
            setattr(torch.nn.utils, name, wrapped)


def _clipping(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def clip(parameters: Any, limit: Any = None, *args: Any, **kwargs: Any) -> Any:
        given = kwargs if limit is None else {**kwargs}
        result = (
            original(parameters, *args, **given)
            if limit is None
            else original(parameters, limit, *args, **given)
        )
        if not is_compiling() and hooks.living:
            hook = hooks.current()
            if hook is not None and hook.live and not hook.asleep:
                value = limit if limit is not None else kwargs.get("max_norm", kwargs.get("clip_value"))
                hook.guarded("clip", hook.machine.evidence.clipped, value, result)
        return result

    return clip


# Checkpoints -------------------------------------------------------------------------------------------------------


def _wrap_load_state_dict() -> None:
    original = torch.nn.Module.load_state_dict

    @functools.wraps(original)
    def load_state_dict(self: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not hooks.living or local.loading:
            return original(self, state_dict, *args, **kwargs)
        local.loading = True
        try:
            result = original(self, state_dict, *args, **kwargs)
        finally:
            local.loading = False
        hook = hooks.of_module(self)
        if hook is not None and hook.live and not hook.asleep:
            strict = args[0] if args else kwargs.get("strict", True)
            hook.guarded("load", hook.machine.evidence.loads.loaded, self, state_dict, strict, result)
        return result

    torch.nn.Module.load_state_dict = load_state_dict  # type: ignore[method-assign]
