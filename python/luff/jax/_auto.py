"""Watches a training from outside: what it compiles, differentiates and updates.

A compiled function is called as it was written. While JAX traces it, its use of Optax shows whether it trains.
Nothing is added to what is compiled.
"""

from __future__ import annotations

import copy
import functools
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import jax

from luff._patch import Method, once, wrap
from luff.jax._find import has_tracer
from luff.jax._flax import nnx_of

__all__ = ["install", "traced"]

#: Packages that compile functions of their own, which do not train anything written by the user.
_NOT_USERS = frozenset(
    {"jax", "jaxlib", "flax", "optax", "orbax", "keras", "chex", "distrax", "numpyro", "blackjax", "luff"}
)
_MARK = "__luff__"
_BOUND = "_luff_bound"


class Traced(threading.local):
    """What was seen while a function was traced, per thread."""

    def __init__(self) -> None:
        self.depth = 0  # nesting depth of calls of watched functions
        self.trains = False
        self.differentiates = False
        self.structure: Any = None  # of the parameters that are updated
        self.loops = 0
        self.looped = False
        self.pending: tuple[Any, list[Any], Any] | None = None  # a loss, and weak references to gradients

    def reset(self) -> None:
        """Forgets the previous call when a call begins."""
        self.trains = self.differentiates = self.looped = False
        self.loops, self.structure = 0, None


traced = Traced()
_watch: Callable[..., Any] | None = None


class Jitted:
    """A compiled function whose calls are watched; everything else is delegated to it."""

    def __init__(self, compiled: Any, call: Callable[..., Any]) -> None:
        functools.update_wrapper(self, compiled)
        self._luff_compiled = compiled
        self._luff_call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._luff_call(self._luff_compiled, args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        if "_luff_compiled" not in self.__dict__:  # while it is being copied
            raise AttributeError(name)
        return getattr(self._luff_compiled, name)

    def __copy__(self) -> Jitted:
        return Jitted(copy.copy(self._luff_compiled), self._luff_call)

    def __deepcopy__(self, memo: dict[int, Any]) -> Jitted:
        return Jitted(copy.deepcopy(self._luff_compiled, memo), self._luff_call)

    def __repr__(self) -> str:
        return repr(self._luff_compiled)


def install(hook_for: Callable[[], Any]) -> None:
    """Installs wrappers for what is imported so far; called again after more imports. Never undone.

    Parameters
    ----------
    hook_for
        Returns the live hook, or None.
    """
    global _watch
    if _watch is None:
        from luff.jax._watch import Watcher

        _watch = functools.partial(Watcher, hook_for)
    _wrap_jax()
    optax = sys.modules.get("optax")
    if hasattr(optax, "apply_updates"):
        _wrap_optax(optax, hook_for)
    nnx = nnx_of()
    if hasattr(nnx, "Optimizer"):
        _wrap_flax(nnx, hook_for)


def _is_users(frame: Any) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _NOT_USERS


# JAX -----------------------------------------------------------------------------------------------------------


@once
def _wrap_jax() -> None:
    wrap(jax, "jit", _compiling)
    for name in ("value_and_grad", "grad"):
        wrap(jax, name, functools.partial(_noting, has_value=name == "value_and_grad", only_users=True))
    for name in ("scan", "fori_loop", "while_loop"):
        wrap(jax.lax, name, _looping)


def _compiling(original: Method) -> Method:
    def jit(*args: Any, **kwargs: Any) -> Any:
        compiled = original(*args, **kwargs)
        if not args or not _is_users(sys._getframe(1)):
            if args or not callable(compiled) or not _is_users(sys._getframe(1)):
                return compiled
            return lambda function: _jitted(compiled(function), function)  # a decorator with options
        return _jitted(compiled, args[0])

    return jit


def _jitted(compiled: Any, function: Any) -> Any:
    try:
        return Jitted(compiled, _watch(function)) if _watch is not None else compiled
    except Exception:
        return compiled


def _looping(loop: Method) -> Method:
    def counting(*args: Any, **kwargs: Any) -> Any:
        if not traced.depth:
            return loop(*args, **kwargs)
        traced.loops += 1
        try:
            return loop(*args, **kwargs)
        finally:
            traced.loops -= 1

    return counting


def _noting(make: Method, has_value: bool, only_users: bool) -> Method:
    """Wraps `jax.value_and_grad` and similar: their results outside of compiled
    functions belong to the next update.
    """

    def differentiate(*args: Any, **kwargs: Any) -> Any:
        function = make(*args, **kwargs)
        if not args or not callable(function) or (only_users and not _is_users(sys._getframe(1))):
            return function
        has_aux = bool(kwargs.get("has_aux", False))

        @functools.wraps(function)
        def noting(*inner: Any, **keywords: Any) -> Any:
            result = function(*inner, **keywords)
            try:
                note_gradients(result, has_value, has_aux)
            except Exception:  # the training continues; the update records what is missing
                traced.pending = None
            return result

        return noting

    return differentiate


def note_gradients(result: Any, has_value: bool, has_aux: bool) -> None:
    """Keeps a loss and weak references to gradients until the update. In a trace, only
    notes that it differentiates.
    """
    value, grads = result if isinstance(result, tuple) and len(result) == 2 else (None, result)
    if not has_value:
        value, grads = None, (result[0] if has_aux and isinstance(result, tuple) else result)
    elif has_aux and isinstance(value, tuple) and value:
        value = value[0]
    leaves, structure = jax.tree_util.tree_flatten(grads)
    if has_tracer(leaves):
        traced.differentiates = True
        return
    traced.pending = (value, [weakref.ref(leaf) for leaf in leaves], structure)


def take_gradients() -> tuple[Any, Any]:
    """Returns the loss and the gradients noted last; None for those that no longer exist."""
    pending, traced.pending = traced.pending, None
    if pending is None:
        return None, None
    value, references, structure = pending
    leaves = [reference() for reference in references]
    if any(leaf is None for leaf in leaves):
        return value, None
    return value, jax.tree_util.tree_unflatten(structure, leaves)


# Optax ---------------------------------------------------------------------------------------------------------


@once
def _wrap_optax(optax: Any, hook_for: Callable[[], Any]) -> None:
    also = (sys.modules.get("optax._src.update"),)
    wrap(optax, "apply_updates", functools.partial(_applying, hook_for), also=also)


def _applying(hook_for: Callable[[], Any], original: Method) -> Method:
    def apply_updates(params: Any, updates: Any, *args: Any, **kwargs: Any) -> Any:
        seen = None
        if _seen(params, updates) and not traced.depth:
            hook = hook_for()
            seen = hook.before_update(params) if hook is not None else None
        result = original(params, updates, *args, **kwargs)
        if seen is not None:
            hook.after_update(seen, None, None)
        return result

    return apply_updates


def _seen(params: Any, updates: Any) -> bool:
    """Whether the values are concrete. In a trace, notes that the function trains."""
    try:
        if not has_tracer(jax.tree_util.tree_leaves((params, updates))):
            return True
        traced.trains, traced.structure = True, jax.tree_util.tree_structure(params)
        traced.looped = traced.looped or traced.loops > 0
    except Exception:
        return False
    return False


# Flax ----------------------------------------------------------------------------------------------------------


@once
def _wrap_flax(nnx: Any, hook_for: Callable[[], Any]) -> None:
    for name in ("value_and_grad", "grad"):
        wrap(nnx, name, functools.partial(_noting, has_value=name == "value_and_grad", only_users=False))
    for name in ("scan", "fori_loop", "while_loop"):
        if hasattr(nnx, name):
            wrap(nnx, name, _looping)
    wrap(nnx.Optimizer, "update", functools.partial(_updating, hook_for))
    if hasattr(nnx, "jit_partial"):
        wrap(nnx, "jit_partial", _remembering)
    compilation = sys.modules.get("flax.nnx.transforms.compilation")
    for name in ("JitWrapped", "SimpleJitWrapped", "SimpleJitPartialWrapped"):
        kind = getattr(compilation, name, None)
        if kind is not None and not hasattr(kind.__call__, _MARK):
            wrap(kind, "__call__", _calling)


def _remembering(jit_partial: Method) -> Method:
    def remembering(fun: Any, *bound: Any, **kwargs: Any) -> Any:
        compiled = jit_partial(fun, *bound, **kwargs)
        try:
            compiled.__dict__[_BOUND] = bound
        except Exception:  # then its parameters are not seen
            return compiled
        return compiled

    return remembering


def _updating(hook_for: Callable[[], Any], update: Method) -> Method:
    def updating(self: Any, *args: Any, **kwargs: Any) -> Any:
        if traced.depth:
            return update(self, *args, **kwargs)
        hook = hook_for()
        seen = grads = None
        if hook is not None:
            model, grads = args[:2] if len(args) > 1 else (vars(self).get("model"), args[0] if args else None)
            seen = hook.before_update(model)
        traced.depth += 1
        try:
            result = update(self, *args, **kwargs)
        finally:
            traced.depth -= 1
        if seen is not None:
            hook.after_update(seen, grads, self)
        return result

    return updating


def _calling(call: Method) -> Method:
    watchers: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def calling(self: Any, *args: Any, **kwargs: Any) -> Any:
        if traced.depth or _watch is None:
            return call(self, *args, **kwargs)
        try:
            watcher = watchers.get(self)
            if watcher is None:
                watcher = watchers[self] = _watch(getattr(self, "fun", None) or self)
        except Exception:
            return call(self, *args, **kwargs)
        return watcher(functools.partial(call, self), args, kwargs, self.__dict__.get(_BOUND, ()))

    setattr(calling, _MARK, True)
    return calling
