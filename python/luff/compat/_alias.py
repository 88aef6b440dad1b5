"""Makes a package importable under another tool's name.

`import smdebug.X` returns the module `luff.compat.smdebug.X` itself, so there is one hook and one class of each kind,
whichever name the code uses.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType

__all__ = ["Alias"]


class _Loader(importlib.abc.Loader):
    def __init__(self, target: str) -> None:
        self._target = target
        self._spec: importlib.machinery.ModuleSpec | None = None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:  # noqa: ARG002
        module = importlib.import_module(self._target)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has replaced it by the alias's


class Alias(importlib.abc.MetaPathFinder):
    """A name under which a package can be imported while it is installed.

    Parameters
    ----------
    name
        The other tool's name.
    target
        The package that takes its place: `NAME.x` is `TARGET.x`.
    modules
        Modules of the other tool that have another place: full name there, full name here.
    """

    def __init__(self, name: str, target: str, modules: Mapping[str, str] | None = None) -> None:
        self._name = name
        self._target = target
        self._modules = dict(modules or {})

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name and not fullname.startswith(f"{self._name}."):
            return None
        real = self._modules.get(fullname, self._target + fullname[len(self._name) :])
        found = importlib.util.find_spec(real)
        if found is None:
            return None
        return importlib.machinery.ModuleSpec(
            fullname, _Loader(real), is_package=found.submodule_search_locations is not None
        )

    def install(self) -> None:
        """Makes an import of the name find the package, even if the other tool itself is installed.

        Raises
        ------
        RuntimeError
            If the other tool itself was imported before.
        """
        found = sys.modules.get(self._name)
        if found is not None and getattr(found, "__name__", "") != self._target:
            raise RuntimeError(
                f"{self._name} itself was imported before {self._target}.install(); "
                f"call it before the first import of {self._name}"
            )
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def uninstall(self) -> None:
        """Undoes `install`."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for name in [n for n in sys.modules if n == self._name or n.startswith(f"{self._name}.")]:
            del sys.modules[name]
