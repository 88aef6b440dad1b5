"""Wrappers: functions of torch replaced once, at run time, by functions that also call the hooks.

Each wrapper does nothing while torch compiles or traces, calls the original outside of any guard, and restores its
state in `finally`. No wrapper computes with torch.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from luff import _after_stop
from luff import _codes as codes
from luff._codes import EventKind, GapReason, Phase
from luff._core import enter_phase, forget_phases, leave_phase
from luff._patch import Method, once, unseen, wrap
from luff.torch.capture import _names
from luff.torch.capture._device import is_divisor, scalar_of
from luff.torch.capture._memory import read_scalar
from luff.torch.capture._module_times import ModuleTimes
from luff.torch.evidence._adversaries import looking
from luff.torch.evidence._answers import compares
from luff.torch.loop._hook import Hook
from luff.torch.patches import _dynamo, _phases
from luff.torch.patches._registry import hooks

__all__ = ["busy", "install", "local"]

_ZERO_GRAD, _FORWARD, _LOSS, _BACKWARD = (
    int(phase) for phase in (Phase.ZERO_GRAD, Phase.FORWARD, Phase.LOSS, Phase.BACKWARD)
)
_OPTIMIZER, _SCHEDULER, _CLIP = int(Phase.OPTIMIZER), int(Phase.SCHEDULER), int(Phase.CLIP)

_current_graph_task: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)
_tracing_state: Callable[[], Any] = torch._C._get_tracing_state
_FRAMES = 64  # around a step that are looked at
_wrap_step: Any = torch.optim.Optimizer.profile_hook_step
_step_code = _wrap_step(len).__code__  # of each step that torch has wrapped


class _Now:
    """What a thread is doing."""

    __slots__ = (
        "capture",
        "entered",
        "in_loss",
        "inside",
        "loading",
        "scheduling",
        "through",
        "updates",
        "updating",
        "within",
    )

    def __init__(self) -> None:
        self.inside = 0  # 1: within a model's call; 2: and its modules are captured
        self.capture: Any = None
        self.entered: Any = None  # weak reference to the hook that worked last
        self.scheduling = self.loading = False
        self.updates = 0  # optimizer steps seen by this thread
        self.updating = 0  # identity of the optimizer whose step began last; 0: it has ended
        self.within = 0  # steps of its own base class that this step is in
        self.through: tuple[Any, ...] = ()  # modules whose next calls only lead to a framework's own function
        self.in_loss = False  # a loss is being computed; its inner calls belong to it


class _Local(threading.local):
    """Looked up at each access: who asks several times asks for `now` once."""

    def __init__(self) -> None:
        self.now = _Now()


local = _Local()


@once
def install() -> None:
    """Installs every wrapper; once per process."""
    _names.install()
    wrap(torch.optim.Optimizer, "__init__", _making_optimizer)
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)
    wrap(torch.autograd, "backward", _telling_backward)
    wrap(torch.optim.Optimizer, "zero_grad", _clearing_optimizer)
    wrap(torch.nn.Module, "zero_grad", _clearing_module)
    _wrap_schedulers()
    _wrap_scaler()
    _wrap_clipping()
    wrap(torch.nn.Module, "load_state_dict", _loading)
    wrap(torch.autograd.graph.saved_tensors_hooks, "__enter__", _entering_saved_hooks)
    wrap(torch.autograd.graph.saved_tensors_hooks, "__exit__", _leaving_saved_hooks)
    os.register_at_fork(after_in_child=_after_fork)
    for name in ("__eq__", "__ne__", "eq", "ne"):
        wrap(torch.Tensor, name, _comparing)
    wrap(torch.nn.Module, "__call__", _telling_call)
    _phases.install()
    _dynamo.leave_out()


def busy() -> bool:
    """Returns whether nothing may be recorded: compiling, tracing, or recomputing inside a backward pass."""
    return is_compiling() or _current_graph_task() != -1 or _tracing_state() is not None


def _after_fork() -> None:
    local.now = _Now()
    forget_phases()


def _listens(hook: Hook | None) -> TypeGuard[Hook]:
    """Returns whether the hook records in this process."""
    return hook is not None and hook.live and not hook.asleep


def _awake(hook: Hook) -> bool:
    """Wakes a hook in a forked child that trains. Returns False in children that only load data."""
    if hook.asleep:
        if torch.utils.data.get_worker_info() is not None:
            return False
        hook.wake()
    return hook.live


# Module calls ------------------------------------------------------------------------------------------------------


def _telling_call(original: Method) -> Method:
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        # `self` has this name: torch's profiler takes it from the frame of what stands at `Module.__call__`, and
        # crashes where it is not there. Calls within a model's are the many.
        if is_dynamo_compiling() or (inside := local.now.inside) == 1:
            return original(self, *args, **kwargs) if kwargs else original(self, *args)
        if is_compiling():
            return original(self, *args, **kwargs)
        return (_inner_call if inside else _outermost)(original, self, args, kwargs)

    return __call__


def _outer_call(
    original: Callable[..., Any], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if (not hooks.heard and not hooks) or _tracing_state() is not None:
        return original(module, *args, **kwargs)
    if _current_graph_task() != -1:
        for living in hooks.living:
            modules = living.machine.modules
            times = None if modules is None else modules.times  # another thread may end the step meanwhile
            if times is not None:
                times.recomputed(module)
        return original(module, *args, **kwargs)
    now = local.now
    if now.through and now.through[0] is module:
        now.through = now.through[1:]
        return original(module, *args, **kwargs)
    if "compile_subgraph_reason" in module.__dict__:  # a graph made by a compiler
        return original(module, *args, **kwargs)
    hook = hooks.of_module(module)
    if hook is None:
        return _loss_call(original, module, args, kwargs)
    if hook.asleep:
        return original(module, *args, **kwargs)
    machine = hook.machine
    if machine.next_training is not None and machine.next_training.made:
        hook.guarded("training", hook.leave_for, module)
        machine = hook.machine
    told = hook.guarded("forward", machine.forward_begins, module, args, kwargs)
    if told is False:
        return _loss_call(original, module, args, kwargs)
    if now.entered is not hook.reference:
        now.entered = hook.reference
        hooks.enter(hook)
    trains = told is not None
    capture = None if told is True else told
    if machine.stop >= 2 and trains:
        hook.leave_if_stopped()
    now.inside = 1 if capture is None else 2
    now.capture = (hook, capture)
    if trains:
        machine.calling = module
    try:
        if capture is not None:
            hook.told("input", capture.before, module, args, kwargs, True)
            if (times := capture.times) is not None:
                original = functools.partial(times.call, original)
        enter_phase(_FORWARD)
        output = original(module, *args, **kwargs)
        if capture is not None:
            hook.told("output", capture.after, module, output)
        if trains and (step := machine.step) is not None and step.samples:
            hook.told("answers", machine.evidence.answers.model_returned, module, output)
        return output
    finally:
        leave_phase(_FORWARD)
        now.inside = 0
        now.capture = None
        if trains:
            machine.calling = None


def _looked_at_call(
    original: Callable[..., Any], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Makes an outermost call while adversaries are looked for."""
    output = _outer_call(original, module, args, kwargs)
    if not busy():
        hook = hooks.of_module(module)
        if _listens(hook) and hook.machine.turn.here():
            hook.told("adversaries", hook.machine.evidence.model_returned, module, args, output)
    return output


_outermost = _outer_call  # makes outermost calls: replaced while adversaries are looked for, so that others pay nothing


def _look(on: bool) -> None:
    global _outermost
    _outermost = _looked_at_call if on else _outer_call


looking.changed = _look


def _inner_call(
    original: Callable[..., Any], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if _current_graph_task() != -1 or _tracing_state() is not None:
        return original(module, *args, **kwargs)
    hook, capture = local.now.capture
    if (times := capture.times) is not None:
        return _timed_call(times, original, module, args, kwargs)
    hook.told("input", capture.before, module, args, kwargs)
    output = original(module, *args, **kwargs)
    hook.told("output", capture.after, module, output)
    _tell_hidden(hook, capture, module)
    return output


def _timed_call(
    times: ModuleTimes,
    original: Callable[..., Any],
    module: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Calls a module inside a model whose modules are timed; what Luff does beside it counts for none of them."""
    hook, capture = local.now.capture
    times.timer.pause()
    try:
        if capture.captures:
            hook.told("input", capture.before, module, args, kwargs)
        output = times.call(original, module, *args, **kwargs)
        if capture.captures:
            hook.told("output", capture.after, module, output)
        _tell_hidden(hook, capture, module)
        return output
    finally:
        times.timer.resume()


def _tell_hidden(hook: Hook, capture: Any, module: Any) -> None:
    if isinstance(module, torch.jit.ScriptModule):
        hook.guarded("scripted", capture.hidden, GapReason.SCRIPTED)
    elif _names.is_compiled_model(module) or module.__dict__.get("_compiled_call_impl") is not None:
        hook.guarded("compiled", capture.hidden, GapReason.COMPILED_GRAPH)


def _loss_call(
    original: Callable[..., Any], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Calls a module without parameters that no other module calls: a loss, a metric, an activation."""
    hook = hooks.current()
    if not _listens(hook):
        return original(module, *args, **kwargs)
    now = local.now
    now.inside, now.in_loss = 1, True
    enter_phase(_LOSS)
    try:
        output = original(module, *args, **kwargs)
    finally:
        leave_phase(_LOSS)
        now.inside, now.in_loss = 0, False
    hook.told("loss", hook.machine.losses.module_returned, module, args, kwargs, output)
    return output


def _comparing(original: Method) -> Method:
    def compare(self: Any, other: Any) -> Any:
        if compares.on and hooks and not busy():
            hook = hooks.current()
            # A call of another thread, which may compare anything, would count as training, and take the turn.
            if _listens(hook) and hook.machine.turn.here():
                frame = sys._getframe(1)
                hook.told("answers", hook.machine.evidence.answers.compared, self, other, frame)
        return original(self, other)

    return compare


# Backward ----------------------------------------------------------------------------------------------------------


def _telling_backward(original: Method) -> Method:
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or (not hooks.heard and not hooks) or _current_graph_task() != -1:
            return original(tensors, *args, **kwargs)
        if isinstance(tensors, torch.Tensor):
            roots = [tensors]
        else:
            roots = list(tensors) if isinstance(tensors, list | tuple) else []
        gradients = args[0] if args else kwargs.get("grad_tensors")
        called = [hook for hook in hooks.of_backward() if not hook.asleep or _awake(hook)]
        for hook in called:
            hook.told("backward", hook.machine.backward_begins, roots, gradients is not None)
            if hook.machine.stop >= 2 and hook.machine.turn.here():  # it has ended a step (`Machine.is_over`)
                hook.leave_if_stopped()
        del roots
        enter_phase(_BACKWARD)
        try:
            result = original(tensors, *args, **kwargs)
        except BaseException:
            leave_phase(_BACKWARD)
            for hook in called:
                hook.told("backward left", hook.machine.backward_left)
            raise
        leave_phase(_BACKWARD)
        for hook in called:
            hook.told("backward end", hook.machine.backward_ended)
        return result

    return backward


def _entering_saved_hooks(original: Method) -> Method:
    def __enter__(self: Any) -> Any:
        result = original(self)
        if not is_compiling() and hooks:
            for hook in hooks.living:
                hook.machine.saved_hooks_entered()
        return result

    return __enter__


def _leaving_saved_hooks(original: Method) -> Method:
    def __exit__(self: Any, *args: object) -> Any:
        if not is_compiling() and hooks:
            for hook in hooks.living:
                hook.machine.saved_hooks_left()
        return original(self, *args)

    return __exit__


# Optimizers --------------------------------------------------------------------------------------------------------


def _making_optimizer(original: Method) -> Method:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if not is_compiling() and hooks:
            hook = hooks.of_optimizer(self)
            if hook is not None:
                hook.guarded("optimizer", hook.machine.optimizer_made, self)
                hook.guarded("late", _phases.install_late)

    return __init__


def _before_step(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if is_compiling() or (not hooks.heard and not hooks):
        return None
    now = local.now
    if now.updating == id(optimizer) and _is_in_own_step(optimizer):
        now.within += 1
        return None
    now.updating, now.within = id(optimizer), 0
    hook = hooks.of_optimizer(optimizer)
    if hook is None or (hook.asleep and not _awake(hook)):
        return None
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    tell = hook.told if _current_graph_task() == -1 else hook.guarded  # autograd may have a thread of its own
    tell("update", hook.machine.update_begins, optimizer, callable(closure))
    enter_phase(_OPTIMIZER)  # left by `_after_step`
    if not callable(closure):
        return None
    wrapped = _wrap_closure(hook, optimizer, closure)
    if len(args) > 1:
        return (args[0], wrapped, *args[2:]), kwargs
    return args, {**kwargs, "closure": wrapped}


def _is_in_own_step(optimizer: Any) -> bool:
    """Whether a step is one of the optimizer's base class, which its own step calls: torch has wrapped both.

    Asked only if its step began and has not ended, which may also be since it raised.
    """
    frame, steps = sys._getframe(2), 0
    for _ in range(_FRAMES):
        if frame.f_code is _step_code:
            steps += frame.f_locals.get("self") is optimizer
        if steps >= 2 or frame.f_back is None:
            break
        frame = frame.f_back
    return steps >= 2


def _wrap_closure(hook: Hook, optimizer: Any, closure: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(closure, updated=())
    def evaluate(*args: Any, **kwargs: Any) -> Any:
        hook.machine.closure_depth += 1
        try:
            result = closure(*args, **kwargs)
        finally:
            hook.machine.closure_depth -= 1
        hook.told("closure", hook.machine.closure_returned, optimizer)
        return result

    return evaluate


def _after_step(optimizer: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    if is_compiling():
        return
    now = local.now
    if now.within and now.updating == id(optimizer):
        now.within -= 1
        return
    now.updating = 0
    leave_phase(_OPTIMIZER)
    hook = hooks.of_optimizer(optimizer) if hooks.heard or hooks else None
    if hook is None or hook.asleep:
        _after_stop.update(optimizer)
        return
    now.updates += 1
    machine, in_backward = hook.machine, _current_graph_task() != -1
    tell = hook.guarded if in_backward else hook.told
    tell("update end", machine.update_ended, optimizer, in_backward)
    if machine.stop >= 2 and machine.turn.here():
        hook.leave_if_stopped()


def _clearing_optimizer(original: Method) -> Method:
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or (not hooks.heard and not hooks):
            return original(self, *args, **kwargs)
        hook = hooks.of_optimizer(self)
        if hook is not None and not hook.asleep:
            hook.told("zero_grad", hook.machine.cleared, self)
        enter_phase(_ZERO_GRAD)
        try:
            return original(self, *args, **kwargs)
        finally:
            leave_phase(_ZERO_GRAD)

    return zero_grad


def _clearing_module(original: Method) -> Method:
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not hooks:
            return original(self, *args, **kwargs)
        hook = hooks.of_module(self)
        if _listens(hook):
            hook.told("zero_grad", hook.machine.event, int(EventKind.ZERO_GRAD), codes.NO_ID, 1)
        enter_phase(_ZERO_GRAD)
        try:
            return original(self, *args, **kwargs)
        finally:
            leave_phase(_ZERO_GRAD)

    return zero_grad


def _wrap_schedulers() -> None:
    module = torch.optim.lr_scheduler
    base = getattr(module, "LRScheduler", None) or module._LRScheduler
    for cls in {c for c in vars(module).values() if isinstance(c, type)}:
        if "step" in cls.__dict__ and (issubclass(cls, base) or cls.__name__ == "ReduceLROnPlateau"):
            wrap(cls, "step", _scheduler_step)


def _scheduler_step(original: Method) -> Method:
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not hooks or (now := local.now).scheduling:
            return original(self, *args, **kwargs)
        now.scheduling = True
        enter_phase(_SCHEDULER)
        try:
            result = original(self, *args, **kwargs)
        finally:
            leave_phase(_SCHEDULER)
            now.scheduling = False
        if getattr(self, "last_epoch", 1) > 0:  # its first step belongs to its construction
            optimizer = getattr(self, "optimizer", None)
            hook = hooks.default if optimizer is None else hooks.of_optimizer(optimizer)
            if _listens(hook):
                metric = None
                if hasattr(self, "num_bad_epochs"):  # ReduceLROnPlateau
                    metric = args[0] if args else kwargs.get("metrics")
                hook.told("scheduler", hook.machine.scheduler_stepped, self, metric)
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
    wrap(GradScaler, "scale", _scaling)
    wrap(GradScaler, "step", _stepping)


def _scaling(original: Method) -> Method:
    def scale(self: Any, outputs: Any) -> Any:
        result = original(self, outputs)
        if not is_compiling() and hooks and isinstance(outputs, torch.Tensor) and result is not outputs:
            for hook in hooks.of_backward():
                if _listens(hook):
                    hook.told("scale", _scaled, hook, self, outputs, result)
        return result

    return scale


def _stepping(original: Method) -> Method:
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = local.now.updates
        result = original(self, optimizer, *args, **kwargs)
        if not is_compiling() and hooks and local.now.updates == before:
            hook = hooks.of_optimizer(optimizer)
            if _listens(hook):
                hook.told("skip", hook.machine.update_skipped, optimizer)
                if hook.machine.turn.here():
                    hook.leave_if_stopped()
        return result

    return step


def _scaled(hook: Hook, scaler: Any, outputs: Any, result: Any) -> None:
    factor = getattr(scaler, "_scale", None)
    scale = None if factor is None else read_scalar(factor)
    hook.machine.losses.scaled(result, scalar_of(outputs), scale, factor if is_divisor(factor) else None)


def _wrap_clipping() -> None:
    import torch.nn.utils.clip_grad as module

    for name in ("clip_grad_norm_", "clip_grad_value_"):
        if hasattr(module, name):
            wrap(module, name, _clipping, also=(torch.nn.utils,))


def _clipping(original: Method) -> Method:
    def clip(parameters: Any, limit: Any = None, *args: Any, **kwargs: Any) -> Any:
        limits = () if limit is None else (limit,)
        if is_compiling() or not hooks:
            return original(parameters, *limits, *args, **kwargs)
        enter_phase(_CLIP)
        try:
            result = original(parameters, *limits, *args, **kwargs)
        finally:
            leave_phase(_CLIP)
        hook = hooks.current()
        if _listens(hook):
            value = limit if limit is not None else kwargs.get("max_norm", kwargs.get("clip_value"))
            hook.told("clip", hook.machine.evidence.clipped, value, result)
        return result

    return clip


# Checkpoints -------------------------------------------------------------------------------------------------------


def _loading(original: Method) -> Method:
    def load_state_dict(self: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not hooks or (now := local.now).loading:
            return original(self, state_dict, *args, **kwargs)
        now.loading = True
        try:
            result = original(self, state_dict, *args, **kwargs)
        finally:
            now.loading = False
        hook = hooks.of_module(self)
        if _listens(hook):
            strict = args[0] if args else kwargs.get("strict", True)
            assigned = bool(args[1] if len(args) > 1 else kwargs.get("assign", False))
            loaded = hook.machine.evidence.loads.loaded
            hook.guarded("load", loaded, self, state_dict, strict, result, assigned)
        return result

    return load_state_dict


unseen(globals())
