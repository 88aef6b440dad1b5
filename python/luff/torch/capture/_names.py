"""Names of parameters and modules, found without changing either.

Weak references made at registration lead from a module to its owner. A model is named by the class of its topmost
owner, without wrappers (DDP, compile). Names are assigned at the first update, when everything is built, to the
largest model first.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from luff._patch import once
from luff._weak import Identities

__all__ = [
    "Names",
    "class_name",
    "climb",
    "compiled_from",
    "install",
    "is_compiled_model",
    "shapes_of",
    "unwrap",
]

_WRAPPED_BY = ("_orig_mod", "_forward_module", "module")
_WRAPPERS = frozenset(
    {
        "OptimizedModule",
        "DistributedDataParallel",
        "DataParallel",
        "_FabricModule",
        "FullyShardedDataParallel",
    }
)
_parents: Identities[Any] = Identities()  # child module -> weak reference to its parent


@once
def install() -> None:
    """Collects links to parents from now on (through public registration hooks)."""
    from torch.nn.modules import module as torch_module

    register = getattr(torch_module, "register_module_module_registration_hook", None)
    if register is not None:
        register(_on_module_registered)


def _on_module_registered(parent: Any, _name: str, child: Any) -> None:
    if child is None or torch.compiler.is_compiling():
        return
    try:
        _parents[child] = weakref.ref(parent)
    except Exception:
        pass


def class_name(module: Any) -> str:
    """Returns the name of the class that the user wrote: FSDP2 derives one of its own,
    `torch.jit.script` hides it.
    """
    cls = type(module)
    bases = cls.__bases__
    if len(bases) == 2 and bases[0].__name__ == "FSDPModule":
        return str(bases[1].__name__)
    if issubclass(cls, torch.jit.ScriptModule):
        return str(getattr(module, "original_name", "") or cls.__name__)
    return cls.__name__


def is_compiled_model(module: Any) -> bool:
    """Returns whether `torch.compile` made this module around another one."""
    return type(module).__name__ == "OptimizedModule" and "_orig_mod" in module.__dict__.get("_modules", ())


def compiled_from(module: Any) -> Any:
    """Returns the module inside a compiled model, whose call stands for the model's: its modules' are not visible."""
    return module.__dict__["_modules"]["_orig_mod"] if is_compiled_model(module) else module


def shapes_of(model: Any) -> tuple[tuple[int, ...], ...]:
    """Returns the shapes of a model's parameters, in their order; not of those that have none yet."""
    return tuple(tuple(p.shape) for p in model.parameters() if not is_lazy(p))


def unwrap(module: Any) -> Any:
    """Returns the model inside wrappers, also if there are several."""
    for _ in range(8):
        if type(module).__name__ not in _WRAPPERS:
            break
        for attribute in _WRAPPED_BY:
            inner = module.__dict__.get("_modules", {}).get(attribute)
            if inner is not None:
                module = inner
                break
        else:
            break
    return module


def climb(module: Any) -> Any:
    """Returns the topmost owner of a module, wrappers included."""
    for _ in range(64):
        known = _parents.get(module)
        parent = None if known is None else known()
        if parent is None or not any(child is module for child in parent._modules.values()):
            break
        module = parent
    return module


def topmost(module: Any) -> Any:
    """Returns the model that a call of `module` belongs to: the topmost owner, without wrappers."""
    return unwrap(climb(module))


def _scan() -> list[Any]:
    """Returns topmost modules without a link (of copied or unpickled models), in one pass over all objects."""
    modules = []
    for candidate in gc.get_objects():
        try:
            if issubclass(type(candidate), torch.nn.Module):
                modules.append(candidate)
        except Exception:
            continue
    children = {id(child) for module in modules for child in module.__dict__.get("_modules", {}).values()}
    return [module for module in modules if id(module) not in children]


class Names:
    """Names the parameters, buffers and modules of the models that one hook watches."""

    def __init__(self) -> None:
        self.roots: list[tuple[Any, str]] = []  # (weak reference to a model, name)
        self._used: dict[str, int] = {}
        self._first = ""  # name of the first model
        self._parameters: Identities[str] = Identities()
        self._modules: Identities[tuple[str, int]] = Identities()
        self._scanned = False
        self._next = 0

    def add_root(self, model: Any) -> None:
        """Names a model and everything in it, unless it is known."""
        model = unwrap(model)
        if model in self._modules:
            return
        self.roots = [root for root in self.roots if root[0]() is not None]
        base = class_name(model)
        self._used[base] = self._used.get(base, 0) + 1
        name = base if self._used[base] == 1 else f"{base}_{self._used[base]}"
        self._first = self._first or name
        self.roots.append((weakref.ref(model), name))
        self.refresh(model, name)

    def refresh(self, model: Any, name: str) -> None:
        """Names what was added to a model since.

        Modules of the first model are named by their dotted path; those of further models have the model's name
        before it.
        """
        prefix = "" if self._first == name else f"{name}."
        for path, module in model.named_modules():
            if module not in self._modules:
                path = _clean(path)
                self._modules[module] = (prefix + path if path else name, self._next)
                self._next += 1
        for path, parameter in model.named_parameters():
            if parameter not in self._parameters:
                self._parameters[parameter] = f"{name}_{_clean(path)}"

    def name_all(self, called: Iterable[Any], parameters: Iterable[Any]) -> None:
        """Names the models that were called, then any other model whose parameters an optimizer holds."""
        models = list(called)
        for model in sorted(models, key=lambda model: -sum(1 for _ in model.parameters())):
            self.add_root(model)
        missing = [p for p in parameters if self.parameter(p) is None]
        if missing and not self._scanned:
            self._scanned = True
            wanted = {id(p) for p in missing}
            for module in _scan():
                if any(id(p) in wanted for p in module.parameters()):
                    self.add_root(module)

    def parameter(self, parameter: Any) -> str | None:
        """Returns the name of a parameter, e.g. ``Net_conv1.weight``, or None."""
        return self._parameters.get(parameter)

    def name_parameter(self, parameter: Any, name: str) -> None:
        """Gives a name to a parameter that no model owns."""
        self._parameters[parameter] = name

    def module(self, module: Any) -> tuple[str, int] | None:
        """Returns (name, number) of a module: a model has its class name, a module in it its dotted path."""
        return self._modules.get(module)

    def find(self, module: Any) -> tuple[str, int, Any] | None:
        """Returns (name, number, module without wrappers) of a called module; None if it has no name yet."""
        found = self._modules.get(module)
        if found is None:
            module = unwrap(module)
            found = self._modules.get(module)
        return None if found is None else (*found, module)

    def models(self) -> Iterator[tuple[Any, str]]:
        """Yields the living models and their names."""
        for reference, name in self.roots:
            model = reference()
            if model is not None:
                yield model, name


def _clean(path: str) -> str:
    return path.replace("_orig_mod.", "").replace("._orig_mod", "").replace("_checkpoint_wrapped_module.", "")
