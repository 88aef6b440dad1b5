"""Finds the hook that a module's call, an optimizer or a backward pass belongs to."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from luff._registry import Registry
from luff.torch.loop._hook import Hook
from luff.torch.replay._replay import first_in_child

__all__ = ["hooks"]


class Hooks(Registry[Hook]):
    """The hooks of PyTorch. Hooks are attached to models, and own what holds the models' parameters."""

    #: The last optimizer, the hooks that there were, and its hook (weak references).
    _last: tuple[Any, tuple[Any, ...], Any] = (lambda: None), (), (lambda: None)

    def add(self, hook: Hook, things: Iterable[Any] = (), default: bool = False) -> Hook:
        """Registers a hook, and returns it: see `Registry`."""
        added = super().add(hook, things, default)
        self._last = Hooks._last  # the hook may own more than before
        return added

    def gives_way(self, other: Hook, things: list[Any]) -> bool:
        """Whether the other hook watches the same model, or only parameters that are attached here (some may be
        shared).
        """
        held, these = other.parameters(), {id(thing) for thing in things}
        same = any(isinstance(thing, torch.nn.Module) and self.of(thing) is other for thing in things)
        return same or (bool(held) and all(id(parameter) in these for parameter in held))

    def of_module(self, module: Any) -> Hook | None:
        """Returns the hook of a model's call: that of the model itself is preferred to that of a part of it."""
        attached = self._owners.get(module)
        if attached is not None and attached.live:
            return attached
        for hook in self.living:
            if hook.on_all or hook.owns(module):
                return hook
        return None

    def of_optimizer(self, optimizer: Any) -> Hook | None:
        """Returns the hook of an optimizer: if models share parameters, the one that owns most of them."""
        known, hooks, last = self._last
        if known() is optimizer and hooks is self._hooks:
            hook: Hook | None = last()
            if hook is not None and hook.live:
                return hook
        living = self.living
        if len(living) == 1:
            alone = living[0] if living[0].owns_optimizer(optimizer) else None
            if alone is not None:
                self._last = weakref.ref(optimizer), self._hooks, alone.reference
            return alone
        owners = [hook for hook in living if not hook.on_all and hook.owns_optimizer(optimizer)]
        if len(owners) > 1:
            return max(owners, key=lambda hook: hook.held_of(optimizer))
        return owners[0] if owners else next((hook for hook in living if hook.on_all), None)

    def of_backward(self) -> list[Hook]:
        """Returns hooks whose forward passes in this thread await a backward pass; if none, the current hook."""
        living = self.living
        if len(living) == 1:
            return living
        waiting = [hook for hook in living if hook.machine.waits_for_backward()]
        if waiting:
            return waiting
        current = self.current()
        return [] if current is None else [current]


def _install() -> None:
    from luff.torch.patches import _functional, _wraps

    _wraps.install()
    _functional.install()


hooks = Hooks(Hook, _install)
first_in_child(hooks.silence)
