"""Wraps the methods that train in scikit-learn, and finds the hook of an estimator.

Methods of classes are wrapped once their modules are imported; they do nothing for an estimator that no hook watches.
Nothing is stored in an estimator, so copies, clones and pickles do not change.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from luff.sklearn._hook import Hook, hooks

__all__ = ["Patch", "entering", "hook_of", "install", "listen_to"]

_FAMILIES = ("_mlp", "_linear", "_clusters", "_boosted", "_histograms", "_forests")


@dataclass(frozen=True)
class Patch:
    """Describes how a family of estimators is watched.

    Attributes
    ----------
    module
        Module of scikit-learn; patched once it is imported.
    classes
        Classes of the module that become known, with their subclasses.
    install
        Wraps their methods, once.
    """

    module: str
    classes: tuple[str, ...]
    install: Callable[[Any], None]


def hook_of(estimator: Any) -> Hook | None:
    """Returns the hook that watches an estimator, or None."""
    return hooks.of(estimator) or hooks.default


def _patches() -> list[Patch]:
    return [importlib.import_module(f"luff.sklearn.{name}").PATCH for name in _FAMILIES]


def install() -> None:
    """Wraps the methods of whatever is imported by now. Idempotent; never undone."""
    for patch in _patches():
        module = sys.modules.get(patch.module)
        if module is not None and all(hasattr(module, name) for name in patch.classes):
            patch.install(module)


def listen_to(estimator: Any) -> bool:
    """Prepares an estimator's class. Returns False if it has no method to wrap."""
    install()
    for patch in _patches():
        module = sys.modules.get(patch.module)
        if module is not None and any(isinstance(estimator, getattr(module, name)) for name in patch.classes):
            return True
    from luff.sklearn import _others

    return _others.listen_to(type(estimator))


def entering(
    original: Callable[..., Any], fresh: Callable[..., bool], skip: Callable[[Hook, Any], bool] | None = None
) -> Callable[..., Any]:
    """Wraps a method that trains, so that the hook sees when it begins and ends.

    Parameters
    ----------
    fresh
        Whether the training starts from scratch; called with the method's arguments.
    skip
        Whether this call is not recorded.
    """

    @functools.wraps(original)
    def entered(self: Any, *args: Any, **kwargs: Any) -> Any:
        hook = hook_of(self)
        if hook is None or (skip is not None and hook.guarded("skip", skip, hook, self)):
            return original(self, *args, **kwargs)
        anew = bool(hook.guarded("begin", functools.partial(fresh, self, *args, **kwargs)))
        model = hook.enters(self, anew)
        try:
            return original(self, *args, **kwargs)
        finally:
            hook.leaves(model, anew)

    return entered
