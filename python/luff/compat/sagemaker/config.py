"""Classes of the platform's SDK that describe what a job saves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from luff.errors import InvalidArgumentError

__all__ = ["CollectionConfig", "DebuggerHookConfig", "TensorBoardOutputConfig"]


def texts(given: Mapping[str, Any] | None) -> dict[str, str]:
    """Converts parameters to texts, as the platform passes them."""
    return {
        str(key): str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in (given or {}).items()
    }


class CollectionConfig:
    """A collection to save.

    Parameters
    ----------
    name
        Name of the collection.
    parameters
        ``include_regex``, ``save_interval``, ``train.save_interval``, ``reductions``, ...
    """

    def __init__(self, name: str, parameters: Mapping[str, Any] | None = None) -> None:
        if not isinstance(name, str) or not name:
            raise InvalidArgumentError(f"the name of a collection is {name!r}, expected a word")
        self.name = name
        self.parameters = texts(parameters)

    def to_dict(self) -> dict[str, Any]:
        """Returns the form in the job's configuration."""
        out: dict[str, Any] = {"CollectionName": self.name}
        if self.parameters:
            out["CollectionParameters"] = dict(self.parameters)
        return out

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CollectionConfig) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"CollectionConfig({self.name!r}, {self.parameters})"


class DebuggerHookConfig:
    """What the hook saves.

    Parameters
    ----------
    s3_output_path
        Used by the platform; ignored here.
    container_local_output_path
        Directory of the trial.
    hook_parameters
        ``save_interval``, ``save_all``, ``include_regex``, ...
    collection_configs
        Collections.
    """

    def __init__(
        self,
        s3_output_path: str | None = None,
        container_local_output_path: str | None = None,
        hook_parameters: Mapping[str, Any] | None = None,
        collection_configs: Iterable[CollectionConfig] | None = None,
    ) -> None:
        self.s3_output_path = s3_output_path
        self.container_local_output_path = container_local_output_path
        self.hook_parameters = texts(hook_parameters)
        self.collection_configs = list(collection_configs or ())

    def to_dict(self) -> dict[str, Any]:
        """Returns the form in the job's configuration."""
        out: dict[str, Any] = {}
        if self.s3_output_path:
            out["S3OutputPath"] = self.s3_output_path
        if self.container_local_output_path:
            out["LocalPath"] = self.container_local_output_path
        if self.hook_parameters:
            out["HookParameters"] = dict(self.hook_parameters)
        if self.collection_configs:
            out["CollectionConfigurations"] = [one.to_dict() for one in self.collection_configs]
        return out


class TensorBoardOutputConfig:
    """Where TensorBoard's files go.

    Parameters
    ----------
    s3_output_path
        Used by the platform; ignored here.
    container_local_output_path
        Directory for the files.
    """

    def __init__(self, s3_output_path: str = "", container_local_output_path: str | None = None) -> None:
        self.s3_output_path = s3_output_path
        self.container_local_output_path = container_local_output_path

    def to_dict(self) -> dict[str, Any]:
        """Returns the form in the job's configuration."""
        out = {"S3OutputPath": self.s3_output_path} if self.s3_output_path else {}
        if self.container_local_output_path:
            out["LocalPath"] = self.container_local_output_path
        return out
