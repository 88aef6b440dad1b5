"""The parameters of all frameworks' hooks, and each framework's default collections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from luff.compat.smdebug.core.collection import Collection, CollectionKeys
from luff.compat.smdebug.core.collection_manager import CollectionManager
from luff.compat.smdebug.core.hook import BaseHook

__all__ = ["MODULE_EXPRESSIONS", "FrameworkCollections", "FrameworkHook"]

# For frameworks whose tensors are named after modules; each adds its own expression for losses.
MODULE_EXPRESSIONS: dict[str, str | None] = {
    CollectionKeys.ALL: None,
    CollectionKeys.DEFAULT: None,
    CollectionKeys.WEIGHTS: "^(?!gradient).*weight",
    CollectionKeys.BIASES: "^(?!gradient).*bias",
    CollectionKeys.GRADIENTS: "^gradient",
}


class FrameworkCollections(CollectionManager):
    """The default collections of a framework.

    Attributes
    ----------
    expressions
        Expression of each collection; None if it has none.
    kind
        Class of the collections.
    """

    expressions: ClassVar[Mapping[str, str | None]] = {}
    kind: ClassVar[type[Collection]] = Collection

    def __init__(self, create_default: bool = True) -> None:
        super().__init__()
        if create_default:
            for name, expression in self.expressions.items():
                self.add(self.kind(name, include_regex=expression))

    def _make(self, name: str) -> Collection:
        return self.kind(name)


class FrameworkHook(BaseHook):
    """A hook of one framework.

    Attributes
    ----------
    collections_class, saved_by_default
        Class of the hook's collections, and the names of those that are saved without configuration.

    Parameters
    ----------
    out_dir
        Directory of the trial.
    export_tensorboard, tensorboard_dir
        Whether to write TensorBoard's files too; a directory suffices.
    dry_run
        Whether to write nothing.
    reduction_config, save_config
        Defaults for collections that have none of their own.
    include_regex
        Expressions of the collection ``default``, which is then saved.
    include_collections
        Names of collections to save, in addition to the framework's own.
    save_all
        Whether to save everything.
    include_workers
        ``"one"`` or ``"all"``.
    """

    collections_class: ClassVar[type[FrameworkCollections]] = FrameworkCollections
    saved_by_default: ClassVar[list[str]] = []

    def __init__(
        self,
        out_dir: Any = None,
        export_tensorboard: bool = False,
        tensorboard_dir: str | None = None,
        dry_run: bool = False,
        reduction_config: Any = None,
        save_config: Any = None,
        include_regex: Any = None,
        include_collections: Any = None,
        save_all: bool = False,
        include_workers: str = "one",
        **_: Any,
    ) -> None:
        self.collection_manager_defaults = frozenset(self.collections_class.expressions)
        super().__init__(
            self.collections_class(),
            self.saved_by_default,
            -1,
            out_dir=out_dir,
            export_tensorboard=export_tensorboard,
            tensorboard_dir=tensorboard_dir,
            dry_run=dry_run,
            reduction_config=reduction_config,
            save_config=save_config,
            include_regex=include_regex,
            include_collections=include_collections,
            save_all=save_all,
            include_workers=include_workers,
        )
