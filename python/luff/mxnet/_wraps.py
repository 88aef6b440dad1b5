"""Wrappers around the calls of MXNet that show what a training does: blocks, backward passes, trainers.

They are installed once and stay. Without a hook, each costs one test. `Hook` implements what they call.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from mxnet import autograd, gluon
from mxnet.ndarray import NDArray

from luff._base_hook import BaseHook
from luff._codes import Phase
from luff._core import enter_phase, leave_phase
from luff._patch import Method, once, wrap
from luff._registry import Registry
from luff._weak import Identities
from luff.mxnet._hook import Hook

__all__ = ["hooks", "install"]

_MODEL, _LOSS = 1, 2
_IN_FORWARD, _IN_LOSS, _IN_BACKWARD, _IN_OPTIMIZER = (
    int(phase) for phase in (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.OPTIMIZER)
)


class _Here(threading.local):
    """State of a thread: whether it is inside a block's call, and the hook that receives the calls within."""

    inside = False
    hook: Hook | None = None


_here = _Here()


class Hooks(Registry[Hook]):
    """The hooks of MXNet; finds the one that a block or a trainer belongs to."""

    def __init__(self) -> None:
        super().__init__(Hook, install)
        self._kinds: Identities[tuple[int, Any]] = Identities()  # kind, and weak reference to the hook

    def add(self, hook: Hook, things: Iterable[Any] = (), default: bool = False) -> Hook:
        """Registers a hook, and returns it."""
        self._kinds.clear()
        return super().add(hook, things, default)

    def discard(self, hook: BaseHook) -> None:
        """Unregisters a hook."""
        self._kinds.clear()
        super().discard(hook)

    def gives_way(self, other: Hook, things: list[Any]) -> bool:
        """Whether the other hook watches one of these models, or a part of one."""
        return any(other.owns(thing) for thing in things)

    def of_block(self, block: Any) -> tuple[int, Hook | None]:
        """Returns what an outermost call is, of a model, of a loss, or of neither (0), and the hook that it belongs
        to.
        """
        found = self._kinds.get(block)
        if found is None:
            kind, owner = self._classify(block)
            found = self._kinds[block] = (kind, None if owner is None else owner.reference)
        kind, reference = found
        hook: Any = self.current() if kind == _LOSS else None
        if reference is not None:
            hook = reference()
        return (kind, hook) if hook is not None and hook.live else (0, None)

    def of_trainer(self, trainer: Any) -> Hook | None:
        """Returns the hook that a trainer belongs to: that of a model whose parameters it holds."""
        for hook in self.living:
            if hook is not self.default and hook.holds(trainer):
                return hook
        return self.default

    def _classify(self, block: Any) -> tuple[int, Hook | None]:
        if isinstance(block, gluon.loss.Loss):
            return _LOSS, None
        for hook in self.living:
            if hook is not self.default and hook.owns(block):
                return _MODEL, hook
        if self.default is None or not any(True for _ in block.collect_params()):
            return 0, None
        return _MODEL, self.default


@once
def install() -> None:
    """Installs the wrappers."""
    wrap(gluon.Block, "__call__", _call)
    wrap(autograd, "backward", _backward_of)
    wrap(NDArray, "backward", _backward_of)
    wrap(gluon.Trainer, "_update", _update)
    wrap(gluon.Trainer, "_allreduce_grads", _allreduce)


hooks = Hooks()


def _inside(phase: int, function: Method, first: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a function of MXNet in a phase. Its work is queued: the time is that of the call."""
    enter_phase(phase)
    try:
        return function(first, *args, **kwargs)
    finally:
        leave_phase(phase)


def _call(original: Method) -> Method:
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not hooks:
            return original(self, *args, **kwargs)
        if _here.inside:
            output = original(self, *args, **kwargs)
            hook = _here.hook
            if hook is not None:
                hook.told("block", hook.inner_called, self, args, output)
                hook.hand_on()
            return output
        kind, hook = hooks.of_block(self)
        if hook is None:
            return original(self, *args, **kwargs)
        if kind == _LOSS:
            output = _inside(_IN_LOSS, original, self, args, kwargs)
            hook.told("loss", hook.loss_called, self, args, output)
            hook.hand_on()
            return output
        hooks.enter(hook)
        hook.told("step", hook.forward_comes, self)
        hook.boundary()
        watch = hook.told("forward", hook.forward_begins, self, args)
        hook.hand_on()
        _here.inside, _here.hook = True, hook if watch else None
        try:
            output = _inside(_IN_FORWARD, original, self, args, kwargs)
        finally:
            _here.inside, _here.hook = False, None
        hook.told("forward", hook.forward_ended, self, args, output)
        hook.hand_on()
        return output

    return __call__


def _backward_of(original: Method) -> Method:
    def backward(heads: Any, *args: Any, **kwargs: Any) -> Any:
        hook = hooks.current() if hooks else None
        if hook is not None:
            if hook.told("step", hook.turn_backward):
                hook.boundary()
            hook.told("backward", hook.backward_begins, heads)
            hook.hand_on()
            return _inside(_IN_BACKWARD, original, heads, args, kwargs)
        return original(heads, *args, **kwargs)

    return backward


def _update(original: Method) -> Method:
    def _update(self: Any, *args: Any, **kwargs: Any) -> Any:
        hook = hooks.of_trainer(self) if hooks else None
        if hook is None:
            return original(self, *args, **kwargs)
        hook.told("update", hook.update_begins, self)
        hook.hand_on()
        result = _inside(_IN_OPTIMIZER, original, self, args, kwargs)
        hook.told("update", hook.update_ended, self)
        hook.hand_on()
        hook.boundary()
        return result

    return _update


def _allreduce(original: Method) -> Method:
    def _allreduce_grads(self: Any, *args: Any, **kwargs: Any) -> Any:
        # If the store updates the weights, it does so in this call.
        if self._kvstore and self._update_on_kvstore:
            hook = hooks.of_trainer(self)
            if hook is not None:
                hook.told("update", hook.update_begins, self)
        return original(self, *args, **kwargs)

    return _allreduce_grads
