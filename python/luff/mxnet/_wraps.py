"""The calls of MXNet that tell what a training does: blocks, backward passes, trainers.

Wraps of four methods, put in once and left. Without a hook each costs one test. What a hook does is in `Hook`.
"""

from __future__ import annotations

import functools
import threading
import weakref
from typing import Any

from mxnet import autograd, gluon
from mxnet.ndarray import NDArray

from luff.mxnet._hook import Hook

__all__ = ["add", "hooks"]

_MODEL, _LOSS = 1, 2
_LIMIT = 65536  # blocks remembered


class _Here(threading.local):
    """Of a thread: inside of a block's call, and who wants to see the calls within."""

    inside = False
    hook: Hook | None = None


_here = _Here()


class Hooks:
    """The hooks of this process, and which of them a block or a trainer belongs to."""

    def __init__(self) -> None:
        self.default: Hook | None = None  # that of `luff run`
        self.given: list[Hook] = []
        self.last: Hook | None = None  # whose model was called last
        self._kinds: dict[int, tuple[Any, int, Hook | None]] = {}

    def refresh(self) -> None:
        """Hooks that were closed are let go."""
        self.given = [hook for hook in self.given if hook.live]
        if self.last is not None and not self.last.live:
            self.last = None
        self._kinds.clear()

    def current(self) -> Hook | None:
        """The hook whose model was called last, or the only one."""
        if self.last is not None and self.last.live:
            return self.last
        living = [hook for hook in self.given if hook.live]
        if len(living) == 1:
            return living[0]
        return self.default if self.default is not None and self.default.live else None

    def of_block(self, block: Any) -> tuple[int, Hook | None]:
        """What an outermost call is: of a model, of a loss, or of neither (0); and whose."""
        found = self._kinds.get(id(block))
        if found is None or found[0]() is not block:
            if len(self._kinds) >= _LIMIT:
                self._kinds.clear()
            found = self._kinds[id(block)] = (weakref.ref(block), *self._classify(block))
        kind, hook = found[1], found[2]
        if kind == _LOSS:
            hook = self.current()
        return (kind, hook) if hook is not None and hook.live else (0, None)

    def of_trainer(self, trainer: Any) -> Hook | None:
        """The hook that a trainer belongs to: that of a model whose parameters it holds."""
        for hook in self.given:
            if hook.live and hook.holds(trainer):
                return hook
        return self.default if self.default is not None and self.default.live else None

    def _classify(self, block: Any) -> tuple[int, Hook | None]:
        if isinstance(block, gluon.loss.Loss):
            return _LOSS, None
        for hook in self.given:
            if hook.live and hook.owns(block):
                return _MODEL, hook
        if self.default is None or not any(True for _ in block.collect_params()):
            return 0, None
        return _MODEL, self.default


hooks = Hooks()
_installed = False


def add(hook: Hook, default: bool = False) -> None:
    """A hook sees what this process trains from now on."""
    if default:
        hooks.default = hook
    else:
        hooks.given.append(hook)
    hooks.refresh()
    _install()


def _call(original: Any) -> Any:
    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _here.inside:
            output = original(self, *args, **kwargs)
            hook = _here.hook
            if hook is not None:
                hook.while_live("block", hook.inner_called, self, args, output)
                hook.hand_on()
            return output
        kind, hook = hooks.of_block(self)
        if hook is None:
            return original(self, *args, **kwargs)
        if kind == _LOSS:
            output = original(self, *args, **kwargs)
            hook.while_live("loss", hook.loss_called, self, args, output)
            hook.hand_on()
            return output
        hooks.last = hook
        hook.while_live("step", hook.turn)
        hook.boundary()
        watch = hook.while_live("forward", hook.forward_begins, self, args)
        hook.hand_on()
        _here.inside, _here.hook = True, hook if watch else None
        try:
            output = original(self, *args, **kwargs)
        finally:
            _here.inside, _here.hook = False, None
        hook.while_live("forward", hook.forward_ended, self, args, output)
        hook.hand_on()
        return output

    return __call__


def _backward_of(original: Any) -> Any:
    @functools.wraps(original)
    def backward(heads: Any, *args: Any, **kwargs: Any) -> Any:
        hook = hooks.current()
        if hook is not None:
            if hook.while_live("step", hook.turn_backward):
                hook.boundary()
            hook.while_live("backward", hook.backward_begins, heads)
            hook.hand_on()
        return original(heads, *args, **kwargs)

    return backward


def _update(original: Any) -> Any:
    @functools.wraps(original)
    def _update(self: Any, *args: Any, **kwargs: Any) -> Any:
        hook = hooks.of_trainer(self)
        if hook is None:
            return original(self, *args, **kwargs)
        hook.while_live("update", hook.update_begins, self)
        hook.hand_on()
        result = original(self, *args, **kwargs)
        hook.while_live("update", hook.update_ended, self)
        hook.hand_on()
        hook.boundary()
        return result

    return _update


def _allreduce(original: Any) -> Any:
    @functools.wraps(original)
    def _allreduce_grads(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Where the store updates the weights, it does so here.
        if self._kvstore and self._update_on_kvstore:
            hook = hooks.of_trainer(self)
            if hook is not None:
                hook.while_live("update", hook.update_begins, self)
        return original(self, *args, **kwargs)

    return _allreduce_grads


def _install() -> None:
    global _installed
    if _installed:
        return
    _installed = True
    gluon.Block.__call__ = _call(gluon.Block.__call__)
    autograd.backward = _backward_of(autograd.backward)
    NDArray.backward = _backward_of(NDArray.backward)
    gluon.Trainer._update = _update(gluon.Trainer._update)
    gluon.Trainer._allreduce_grads = _allreduce(gluon.Trainer._allreduce_grads)
