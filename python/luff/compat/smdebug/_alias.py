"""Makes this package importable under smdebug's name.

`import smdebug.X` returns the module `luff.compat.smdebug.X` itself, so there is one hook and one class of each kind,
whichever name the code uses.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

__all__ = ["install", "uninstall"]

_NAME = "smdebug"
_TARGET = "luff.compat.smdebug"


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


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _NAME and not fullname.startswith(f"{_NAME}."):
            return None
        real = _TARGET + fullname[len(_NAME) :]
        found = importlib.util.find_spec(real)
        if found is None:
            return None
        return importlib.machinery.ModuleSpec(
            fullname, _Loader(real), is_package=found.submodule_search_locations is not None
        )


_finder = _Finder()


def install() -> None:
    """Makes ``import smdebug`` find this package, even if smdebug itself is installed.

    Raises
    ------
    RuntimeError
        If the real smdebug was imported before.
    """
    found = sys.modules.get(_NAME)
    if found is not None and getattr(found, "__name__", "") != _TARGET:
        raise RuntimeError(
            "smdebug itself was imported before luff.compat.smdebug.install(); "
            "call it before the first import of smdebug"
        )
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def uninstall() -> None:
    """Undoes `install`."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    for name in [n for n in sys.modules if n == _NAME or n.startswith(f"{_NAME}.")]:
        del sys.modules[name]
