"""Attaches Luff to an unchanged training script.

`luff run` puts this folder at the front of PYTHONPATH, so Python imports it before the script. It waits for the
import of a framework, attaches right after it, and runs the sitecustomize that it hides.
"""

import importlib
import importlib.abc
import importlib.machinery
import os
import sys

from _luff_frameworks import FRAMEWORKS as _FRAMEWORKS  # type: ignore[import-not-found]

_HERE = os.path.dirname(os.path.abspath(__file__))
_waiting = set(_FRAMEWORKS)
_OURS = frozenset(_FRAMEWORKS.values())
# luff modules that were still being imported when their framework's import ended
_postponed: "set[str]" = set()


def _attach(name: str) -> None:
    if name not in _waiting:
        return
    _waiting.discard(name)
    if not _waiting:
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    ours = _FRAMEWORKS[name]
    if getattr(getattr(sys.modules.get(ours), "__spec__", None), "_initializing", False):
        _postponed.add(ours)  # the script imported it, and it imported the framework
    else:
        _attach_to_all(ours)


def _attach_to_all(ours: str) -> None:
    try:
        importlib.import_module(ours).attach_to_all()
    except Exception as error:  # the training continues without Luff
        text = " ".join(f"{type(error).__name__}: {error}".split())
        sys.stderr.write(
            f"luff: this Python cannot import luff, so the training is not watched ({text}); "
            f"install luff into {sys.executable}\n"
        )


class _Loader(importlib.abc.Loader):
    """Runs a module's own loader, then attaches."""

    def __init__(self, loader, name: str) -> None:  # type: ignore[no-untyped-def]
        self._loader = loader
        self._name = name

    def create_module(self, spec):  # type: ignore[no-untyped-def]
        return self._loader.create_module(spec)

    def exec_module(self, module) -> None:  # type: ignore[no-untyped-def]
        spec = module.__spec__
        if spec is not None:
            spec.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        if self._name in _OURS:
            if self._name in _postponed:
                _postponed.discard(self._name)
                _attach_to_all(self._name)
        else:
            _attach(self._name)

    def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
        return getattr(self._loader, name)


class _Finder(importlib.abc.MetaPathFinder):
    """Waits for the first import of each framework, and of the luff modules that may import it earlier."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if (
            name not in _waiting and name not in _OURS
        ):  # a name waits until it is imported: some callers only ask whether the module exists
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None:
            for finder in sys.meta_path:
                find = getattr(finder, "find_spec", None)
                spec = find(name, path, target) if find is not None and finder is not self else None
                if spec is not None:
                    break
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, name)
        return spec


class _CompatFinder(importlib.abc.MetaPathFinder):
    """Installs luff.compat.smdebug as smdebug when that is first imported."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]  # noqa: ARG002
        if name.partition(".")[0] != "smdebug":
            return None
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        try:
            from luff.compat.smdebug import install
        except ImportError as error:
            sys.stderr.write(f"luff: this Python cannot import luff.compat.smdebug ({error})\n")
            return None
        install()
        return importlib.util.find_spec(name)


def _run_hidden() -> None:
    """Runs the sitecustomize that Python would have imported without this one."""
    places = [place for place in sys.path if os.path.abspath(place or os.getcwd()) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", places)
    if spec is None or spec.loader is None:
        return
    ours = sys.modules.get("sitecustomize")
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if ours is not None:
            sys.modules["sitecustomize"] = ours
        raise


if os.environ.get("LUFF_SESSION"):
    for _name in _FRAMEWORKS:
        if _name in sys.modules:
            _attach(_name)
    if _waiting:
        sys.meta_path.insert(0, _Finder())

if os.environ.get("LUFF_COMPAT") == "smdebug":
    sys.meta_path.insert(0, _CompatFinder())

import importlib.util  # noqa: E402

_run_hidden()
