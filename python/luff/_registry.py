"""The hooks of one framework in this process: which one watches what, how long it lives, what a second one means.

- A hook lives as long as something holds it, or while what it was attached to lives. When it goes, its run ends.
- A call-back that refers to what its hook was attached to keeps both alive until the next hook is attached, since
  Python's collector cannot see that nothing else holds them.
- A hook that watches everything that trains (`default`) lives until it is closed or replaced.
- If two hooks are attached to the same thing, the newer one watches it; the older one's run ends and says so.
- In a forked child, hooks are separate workers, which record once the child trains.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from luff._base_hook import BaseHook
from luff._garbage import is_garbage
from luff._hook import RunOptions, run_from_environment
from luff._weak import Identities

__all__ = ["Registry"]

H = TypeVar("H", bound=BaseHook)
_all: weakref.WeakSet[Registry[Any]] = weakref.WeakSet()


class _Here(threading.local):
    """State of each thread."""

    last: Any = None  # weak reference to the hook that worked last
    muted = 0


class Registry(Generic[H]):
    """The hooks of one framework. False if there are none, or if they are muted in this thread.

    Parameters
    ----------
    make
        Makes the hook that watches everything that this process trains, for `attach_to_all`.
    install
        Installs the wrappers, for `attach_to_all`.

    Attributes
    ----------
    default
        The hook that watches what no other hook does, or None.
    heard
        Whether there are hooks and no thread has muted them: then they are not false. What is called often looks at it
        first, since it costs no call.
    """

    def __init__(self, make: Callable[[RunOptions], H], install: Callable[[], object] = lambda: None) -> None:
        self._make = make
        self._install = install
        self._hooks: tuple[Any, ...] = ()  # weak references, newest first; replaced, never modified
        self._owners: Identities[H] = Identities()
        self._here = _Here()
        self._mutes = 0  # blocks of threads
        self._lock = threading.RLock()  # never held while a run ends
        self.default: H | None = None
        self.heard = False
        _all.add(self)

    @staticmethod
    def all() -> list[Registry[Any]]:
        """Returns the registries of the frameworks that are watched in this process."""
        return list(_all)

    # Lookup -----------------------------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        return bool(self._hooks) and not self._here.muted

    @property
    def living(self) -> list[H]:
        """The live hooks, newest first; the one that watches what no other does comes last."""
        hooks = self._hooks
        if len(hooks) == 1:  # the usual case, at each call of the training
            alone = hooks[0]()
            return [alone] if alone is not None and alone.live else []
        found = [hook for hook in (reference() for reference in hooks) if hook is not None and hook.live]
        default = self.default
        if default is not None and len(found) > 1 and found[-1] is not default:
            found = [hook for hook in found if hook is not default]
            found.append(default)
        return found

    def of(self, thing: Any) -> H | None:
        """Returns the hook that was attached to a thing, if it is live, else None."""
        hook = self._owners.get(thing)
        return hook if hook is not None and hook.live else None

    def enter(self, hook: H) -> None:
        """Notes that the hook is in use in this thread."""
        self._here.last = hook.reference

    def last(self) -> H | None:
        """Returns the hook used last in this thread, if it is live, else None."""
        hook = None if self._here.last is None else self._here.last()
        return hook if hook is not None and hook.live else None

    def current(self) -> H | None:
        """Returns the hook used last in this thread, else the newest one, else the one that watches everything."""
        found = self.last()
        if found is None:
            living = self.living
            found = living[0] if living else None
        return found

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Disables the hooks in this thread, for a block."""
        self._mute(1)
        try:
            yield
        finally:
            self._mute(-1)

    def _mute(self, more: int) -> None:
        self._here.muted += more
        with self._lock:
            self._mutes += more
            self._replace(self._hooks)

    def _replace(self, hooks: tuple[Any, ...]) -> None:
        self._hooks = hooks
        self.heard = bool(hooks) and not self._mutes

    # Adding and removing ----------------------------------------------------------------------------------------

    def add(self, hook: H, things: Iterable[Any] = (), default: bool = False) -> H:
        """Registers a hook, and returns it.

        Parameters
        ----------
        things
            What it is attached to: each thing keeps it alive. An older hook ends when it has no other things than
            these.
        default
            Whether it watches what no other hook does; it then replaces the one that did.
        """
        self._let_go()
        things = list(things)
        with self._lock:
            others = [other for other in self.living if other is not hook and other is not self.default]
            replaced = [other for other in others if self.gives_way(other, things)]
            for thing in things:
                self._owners[thing] = hook
            if default:
                if self.default is not None and self.default is not hook:
                    replaced.append(self.default)
                self.default = hook
            hook.registry = self
            if all(one() is not hook for one in self._hooks):
                self._replace((hook.reference, *(one for one in self._hooks if one() is not None)))
        for other in replaced:
            other.replaced_by(hook)
        return hook

    def hold(self, hook: H, thing: Any) -> None:
        """Makes a thing keep a hook alive, unless the thing already has one."""
        if hook.live and hook is not self.default and self.of(thing) is None:
            self._owners[thing] = hook

    def _let_go(self) -> None:
        """Ends the hooks whose things are held only by the hooks' own call-backs."""
        for reference in self._hooks:
            if self._is_garbage(reference):
                self._owners.forget(reference())

    def _is_garbage(self, reference: Any) -> bool:
        hook = reference()
        if hook is None or hook is self.default or not hook.calls_back:
            return False
        things = self._owners.with_value(hook)
        del hook  # so that this reference is not counted
        return bool(things) and is_garbage(reference, len(things), things, self)

    def gives_way(self, other: H, things: list[Any]) -> bool:
        """Whether the other hook ends because a newer one watches these things."""
        held = self._owners.with_value(other)
        return bool(held) and held <= set(map(id, things))

    def discard(self, hook: BaseHook) -> None:
        """Unregisters a hook."""
        with self._lock:
            self._replace(tuple(one for one in self._hooks if one() is not None and one() is not hook))
            self._owners.forget(hook)
            if self.default is hook:
                self.default = None

    def silence(self) -> None:
        """Drops all hooks, in a forked child that must record nothing."""
        for hook in self.living:
            hook.live = False
        self._replace(())
        self._owners, self.default = Identities(), None

    def forked(self) -> None:
        """Replaces the lock in a forked child: another thread may have held it. Those threads mute nothing here."""
        self._lock = threading.RLock()
        self._mutes = self._here.muted
        self._replace(self._hooks)

    # For users, as functions of the framework's package --------------------------------------------------------

    def attach_to_all(self) -> H | None:
        """Watches everything that this process trains; used by ``luff run`` and `luff.trial_run`. None if neither
        named a run.
        """
        options = run_from_environment()
        if options is None:
            return self.default
        if self.default is None or self.default.trial is not options.trial:
            self.add(self._make(options), default=True)
        self._install()
        return self.default

    def get_hook(self) -> H | None:
        """Returns the hook in use in this thread, else the one attached last, else that of ``luff run``."""
        return self.current()

    def save_scalar(self, name: str, value: float) -> None:
        """Records a number in the current step, or the next one; does nothing if Luff is not attached."""
        hook: Any = self.current()
        if hook is not None:
            hook.save_scalar(name, value)

    def save_tensor(self, name: str, value: Any) -> None:
        """Records an array in the current step, or the next one; does nothing if Luff is not attached."""
        hook: Any = self.current()
        if hook is not None:
            hook.save_tensor(name, value)


def _after_fork() -> None:
    for registry in list(_all):
        registry.forked()


os.register_at_fork(after_in_child=_after_fork)
