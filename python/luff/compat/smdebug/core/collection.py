"""Collections of tensors, grouped by name, with configurations of their own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from luff.compat.smdebug.core.reduction_config import ReductionConfig
from luff.compat.smdebug.core.save_config import SaveConfig, SaveConfigMode
from luff.compat.smdebug.exceptions import SMDebugTypeError, SMDebugValueError

__all__ = [
    "NON_HISTOGRAM_COLLECTIONS",
    "NON_REDUCTION_COLLECTIONS",
    "SCALAR_COLLECTIONS",
    "SM_METRIC_COLLECTIONS",
    "Collection",
    "CollectionKeys",
]


class CollectionKeys:
    """Names of the collections that exist without configuration."""

    DEFAULT = "default"
    ALL = "all"
    WEIGHTS = "weights"
    BIASES = "biases"
    GRADIENTS = "gradients"
    LOSSES = "losses"
    METRICS = "metrics"
    INPUTS = "inputs"
    OUTPUTS = "outputs"
    LAYERS = "layers"
    SM_METRICS = "sm_metrics"
    OPTIMIZER_VARIABLES = "optimizer_variables"
    TENSORFLOW_SUMMARIES = "tensorflow_summaries"
    HYPERPARAMETERS = "hyperparameters"
    PREDICTIONS = "predictions"
    LABELS = "labels"
    FEATURE_IMPORTANCE = "feature_importance"
    AVERAGE_SHAP = "average_shap"
    FULL_SHAP = "full_shap"
    TREES = "trees"


SCALAR_COLLECTIONS = {
    CollectionKeys.LOSSES,
    CollectionKeys.METRICS,
    CollectionKeys.FEATURE_IMPORTANCE,
    CollectionKeys.AVERAGE_SHAP,
    CollectionKeys.SM_METRICS,
}
SM_METRIC_COLLECTIONS = {CollectionKeys.LOSSES, CollectionKeys.METRICS, CollectionKeys.SM_METRICS}
NON_REDUCTION_COLLECTIONS = SCALAR_COLLECTIONS | {CollectionKeys.TENSORFLOW_SUMMARIES}
NON_HISTOGRAM_COLLECTIONS = SCALAR_COLLECTIONS | {CollectionKeys.TENSORFLOW_SUMMARIES}

_KEYS = ("name", "include_regex", "tensor_names", "reduction_config", "save_config", "save_histogram")


def flatten(items: Any) -> list[Any]:
    """Returns the items of nested lists, in order."""
    out: list[Any] = []
    for item in items:
        out.extend(flatten(item) if isinstance(item, (list, tuple, set)) else [item])
    return out


class Collection:
    """Tensors whose name is listed or matches an expression (searched anywhere in the name).

    Parameters
    ----------
    name
        Name of the collection, unique.
    include_regex
        Expressions, as for `include`.
    tensor_names
        Exact names.
    reduction_config, save_config
        The collection's own; None means the hook's.
    save_histogram
        Whether TensorBoard gets histograms.
    """

    def __init__(
        self,
        name: str,
        include_regex: Any = None,
        tensor_names: Iterable[str] | None = None,
        reduction_config: ReductionConfig | None = None,
        save_config: Any = None,
        save_histogram: bool = True,
    ) -> None:
        self.name = name
        self.include_regex: list[str] = []
        self._tensor_names: set[str] = set(tensor_names or ())
        if include_regex:
            self.include(include_regex)
        self.reduction_config = reduction_config
        self.save_config = save_config
        self.save_histogram = save_histogram

    def include(self, t: Any) -> None:
        """Adds an expression, or several in nested lists."""
        for item in flatten([t]):
            if not isinstance(item, str):
                raise SMDebugTypeError(
                    f"collection {self.name!r}: found {type(item).__name__}, expected an expression as str"
                )
            self.include_regex.append(item)

    @property
    def tensor_names(self) -> set[str]:
        """The exact names that the collection lists."""
        return self._tensor_names

    @tensor_names.setter
    def tensor_names(self, tensor_names: Any) -> None:
        if not isinstance(tensor_names, (list, set, tuple)):
            raise SMDebugTypeError(f"found {type(tensor_names).__name__}, expected a list or set of names")
        self._tensor_names = set(tensor_names)

    def has_tensor_name(self, tname: str) -> bool:
        """Returns whether the name is listed."""
        return tname in self._tensor_names

    def add_tensor_name(self, tname: str) -> None:
        """Adds a name to the listed ones."""
        self._tensor_names.add(tname)

    def remove_tensor_name(self, name: str) -> None:
        """Removes a name from the listed ones."""
        self._tensor_names.discard(name)

    @property
    def reduction_config(self) -> ReductionConfig | None:
        """The collection's own configuration, or None for the hook's."""
        return self._reduction_config

    @reduction_config.setter
    def reduction_config(self, reduction_config: ReductionConfig | None) -> None:
        if reduction_config is not None and not isinstance(reduction_config, ReductionConfig):
            raise SMDebugTypeError(f"found {type(reduction_config).__name__}, expected a ReductionConfig")
        self._reduction_config = reduction_config

    @property
    def save_config(self) -> SaveConfig | None:
        """The collection's own configuration, or None for the hook's."""
        return self._save_config

    @save_config.setter
    def save_config(self, save_config: Any) -> None:
        if isinstance(save_config, SaveConfigMode) or (
            save_config is not None and not isinstance(save_config, (SaveConfig, Mapping))
        ):
            raise SMDebugTypeError(
                f"found a save configuration of type {type(save_config).__name__}, "
                "expected a SaveConfig or a dict of modes"
            )
        self._save_config = SaveConfig.parse(save_config)

    def to_json_dict(self) -> dict[str, Any]:
        """Returns the JSON form."""
        reduction, save = self.reduction_config, self.save_config
        return {
            "name": self.name,
            "include_regex": list(self.include_regex),
            "tensor_names": sorted(self._tensor_names),
            "reduction_config": reduction.to_json_dict() if reduction is not None else None,
            "save_config": save.to_json_dict() if save is not None else None,
            "save_histogram": self.save_histogram,
        }

    def to_json(self) -> str:
        """Returns the JSON form as text."""
        return json.dumps(self.to_json_dict())

    @classmethod
    def from_dict(cls, params: Mapping[str, Any]) -> Collection:
        """Makes a collection from its JSON form."""
        if not isinstance(params, Mapping) or "name" not in params:
            raise SMDebugValueError(f"found {params!r}, expected a collection with a name")
        reduction, save = params.get("reduction_config"), params.get("save_config")
        return cls(
            name=params["name"],
            include_regex=params.get("include_regex") or None,
            tensor_names=params.get("tensor_names") or (),
            reduction_config=ReductionConfig.from_dict(reduction) if reduction is not None else None,
            save_config=SaveConfig.from_dict(save) if save is not None else None,
            save_histogram=params.get("save_histogram", True),
        )

    @classmethod
    def from_json(cls, text: str) -> Collection:
        """Makes a collection from the text of its JSON form."""
        return cls.from_dict(json.loads(text))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Collection) and all(
            getattr(self, key) == getattr(other, key) for key in _KEYS
        )

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<Collection {self.name!r}: {self.include_regex}, {len(self._tensor_names)} names>"
