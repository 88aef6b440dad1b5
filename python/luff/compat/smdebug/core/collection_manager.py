"""All collections of a hook or a trial."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from luff._bounded import parse_json, read_regular
from luff._nearest import hint
from luff.compat.smdebug.core.access_layer.file import write_text
from luff.compat.smdebug.core.collection import Collection
from luff.compat.smdebug.core.locations import get_path_to_collections
from luff.compat.smdebug.exceptions import SMDebugError, SMDebugTypeError, SMDebugValueError

__all__ = ["CollectionManager"]

_TOP = {"collections", "_meta"}
_MAX_BYTES = 256 << 20  # of a collections file


class CollectionManager:
    """The collections of a hook or a trial, by name."""

    def __init__(self, collections: Mapping[str, Collection] | None = None) -> None:
        self.collections: dict[str, Collection] = dict(collections or {})
        self._meta: dict[str, Any] = {"num_workers": 1}

    def _make(self, name: str) -> Collection:
        return Collection(name)

    def create_collection(self, name: str) -> None:
        """Adds an empty collection, unless one of this name exists."""
        if name not in self.collections:
            self.collections[name] = self._make(name)

    def get_collections(self) -> dict[str, Collection]:
        """Returns all collections, by name."""
        return self.collections

    def add(self, arg: str | Collection) -> None:
        """Adds a collection, or an empty one with the given name."""
        if isinstance(arg, str):
            self.create_collection(arg)
        elif isinstance(arg, Collection):
            self.collections[arg.name] = arg
        else:
            raise SMDebugTypeError(f"found {type(arg).__name__}, expected a Collection or its name")

    def get(self, name: str, create: bool = True) -> Any:
        """Returns a collection. If there is none and `create` is set, adds an empty one."""
        if name not in self.collections:
            if not create:
                raise SMDebugError(f"there is no collection {name!r}{hint(name, self.collections)}")
            self.create_collection(name)
        return self.collections[name]

    def set_num_workers(self, num_workers: int) -> None:
        """Sets the number of workers that write the trial."""
        self._meta["num_workers"] = num_workers

    def get_num_workers(self) -> int:
        """Returns the number of workers that write the trial."""
        return int(self._meta["num_workers"])

    def to_json_dict(self) -> dict[str, Any]:
        """Returns the JSON form."""
        return {
            "collections": {name: c.to_json_dict() for name, c in self.collections.items()},
            "_meta": dict(self._meta),
        }

    def export(self, out_dir: str, filename: str) -> None:
        """Writes the collections file of a trial."""
        path = os.path.join(get_path_to_collections(os.fspath(out_dir)), filename)
        write_text(path, json.dumps(self.to_json_dict()))

    @classmethod
    def load(cls, filename: str) -> CollectionManager:
        """Reads a collections file."""
        folder, name = os.path.split(os.path.abspath(filename))
        text = read_regular(folder, name, _MAX_BYTES).decode()
        try:
            return cls.load_from_string(text)
        except SMDebugValueError as error:
            raise SMDebugValueError(f"{error}, in {filename}") from None

    @classmethod
    def load_from_string(cls, s: str) -> CollectionManager:
        """Parses the text of a collections file."""
        try:
            found = parse_json(s)
        except ValueError as error:
            raise SMDebugValueError(f"found no JSON ({error}), expected a collections file") from None
        if not isinstance(found, dict) or not isinstance(found.get("collections"), dict):
            raise SMDebugValueError('found no "collections", expected a collections file')
        if set(found) - _TOP:
            unknown = ", ".join(sorted(set(found) - _TOP))
            raise SMDebugValueError(
                f"found the keys {unknown}, expected collections and _meta only: written by another program or version"
            )
        meta = found.get("_meta")
        if not isinstance(meta, dict) or not isinstance(meta.get("num_workers"), int):
            raise SMDebugValueError('found no "num_workers" in "_meta", expected the number of workers')
        made = cls.__new__(cls)
        CollectionManager.__init__(made)
        for name, params in found["collections"].items():
            made.collections[name] = Collection.from_dict(params)
        made.set_num_workers(meta["num_workers"])
        return made

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, CollectionManager)
            and self.collections == other.collections
            and self._meta == other._meta
        )

    __hash__ = None  # type: ignore[assignment]
