"""Records one training: the names of its tensors, what is due in a round, the values.

Knows nothing about steps; the hook decides when to record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from luff._arrays import Arrays
from luff._boosting._config import Wanted
from luff._boosting._importance import TYPES, Importance
from luff._boosting._trees import COLUMNS, Rounds
from luff._codes import Form, GapReason, Role

__all__ = ["Metric", "Recorder"]

#: Evaluation set, metric, value, deviation (cross-validation only).
Metric = tuple[str, str, float, "float | None"]

_OTHER, _LOSS, _SCALAR, _LABEL = int(Role.OTHER), int(Role.LOSS), int(Role.SCALAR), int(Role.LABEL)
_MAX_PROBES = 1000


class Recorder:
    """The tensors of one training.

    Parameters
    ----------
    arrays
        Where the values go.
    prefix
        Prefix of every name; empty for the first training of a process.
    wanted
        Decides what the configuration can ask for at all.
    is_loss
        Whether a metric of this name is a loss that a training lowers smoothly.
    columns
        Columns of the trees: `COLUMNS` and those that only this library has.
    """

    def __init__(
        self,
        arrays: Arrays,
        prefix: str,
        wanted: Wanted,
        is_loss: Callable[[str], bool],
        columns: Sequence[str] = COLUMNS,
    ) -> None:
        self._session = arrays.session
        self._arrays = arrays
        self._prefix = prefix
        self._wanted = wanted
        self._is_loss = is_loss
        self._column_names = columns
        self.features: Sequence[str] = ()  # names, by index
        self._numbers: dict[str, int] = {}
        self._metrics: dict[tuple[str, str], tuple[int, int]] = {}
        # type -> number of each feature's tensor
        self._importances: dict[str, list[int]] = {kind: [] for kind in TYPES}
        self._columns: list[tuple[str, int]] | None = None
        self._probes: list[tuple[str, int]] | None = None
        self._shap_probes: dict[str, int | None] = {}
        self._settings: list[tuple[int, Any]] | None = None
        self.importance = Importance()
        self.read_to = 0  # number of rounds whose trees are in `importance`

    def number(self, name: str, role: int = _OTHER, path: str = "", kind: str = "") -> int:
        """Returns the number of a tensor of this training."""
        found = self._numbers.get(name)
        if found is None:
            found = self._numbers[name] = self._arrays.number(self._prefix + name, role, path, kind)
        return found

    def feature(self, index: int) -> str:
        """Returns the name of a feature."""
        return self.features[index] if index < len(self.features) else f"f{index}"

    # What is due in the current round --------------------------------------------------------------------------

    def due(self, name: str, role: int = _OTHER) -> int:
        """Returns the forms of a tensor that are due."""
        if not self._wanted(self._prefix + name, "label" if role == _LABEL else "other"):
            return 0
        return self._session.due_tensor(self.number(name, role))

    def predictions_wanted(self) -> bool:
        """Whether the configuration may ask for something that only the round's model can give."""
        wanted = self._wanted(f"{self._prefix}predictions") or self._wanted(f"{self._prefix}labels", "label")
        return wanted or any(self._shap_probe(kind) is not None for kind in ("average_shap", "full_shap"))

    def shap_due(self, kind: str) -> bool:
        """Whether SHAP values of this kind are due."""
        probe = self._shap_probe(kind)
        return probe is not None and bool(self._session.due_tensor(probe))

    def _shap_probe(self, kind: str) -> int | None:
        """Returns a tensor of the kind that may be saved, or None."""
        if kind not in self._shap_probes:
            names = [f"{kind}/{self.feature(i)}" for i in range(min(len(self.features), _MAX_PROBES))]
            found = [name for name in names if self._wanted(self._prefix + name)][:1]
            self._shap_probes[kind] = self.number(found[0]) if found else None
        return self._shap_probes[kind]

    def trees_wanted(self) -> bool:
        """Whether the configuration can ask for columns of the trees at all."""
        return any(self._wanted(f"{self._prefix}trees/{name}") for name in self._column_names)

    def trees_due(self) -> bool:
        """Whether any column of the trees is due."""
        if self._columns is None:
            names = [(name, f"trees/{name}") for name in self._column_names]
            chosen = [(name, full) for name, full in names if self._wanted(self._prefix + full)]
            self._columns = [(name, self.number(full)) for name, full in chosen]
        due = self._session.due_tensor
        return any(due(number) for _, number in self._columns)

    def importance_due(self) -> bool:
        """Whether the importance of any feature is due."""
        due = self._session.due_tensor
        for kind, probe in self._importance_probes():
            if due(probe) or any(due(number) for number in self._importances[kind] if number >= 0):
                return True
        return False

    def _importance_probes(self) -> list[tuple[str, int]]:
        """Returns the types of which some feature may be saved, each with the tensor of one such feature."""
        if self._probes is None:
            self._probes = []
            for kind in TYPES:
                for index in range(min(max(len(self.features), 1), _MAX_PROBES)):
                    name = f"feature_importance/{kind}/{self.feature(index)}"
                    if self._wanted(self._prefix + name):
                        self._probes.append((kind, self.number(name)))
                        break
        return self._probes

    # Values ----------------------------------------------------------------------------------------------------

    def metrics(self, values: Iterable[Metric], training: frozenset[str]) -> None:
        """Records the numbers of the evaluations. `training` names the sets that contain training data."""
        scalar = self._session.scalar
        for data, metric, value, deviation in values:
            numbers = self._metrics.get((data, metric))
            if numbers is None:
                trains = data in training
                role = _LOSS if trains and self._is_loss(metric) else _SCALAR
                kind = "training" if trains else "evaluation"
                number = self.number(f"{data}-{metric}", role, data, kind)
                spread = -1 if deviation is None else self.number(f"{data}-{metric}-std", _SCALAR, data, kind)
                numbers = self._metrics[data, metric] = (number, spread)
            scalar(numbers[0], value)
            if deviation is not None and numbers[1] >= 0:
                scalar(numbers[1], deviation)

    def hyperparameters(self, values: dict[str, Any]) -> None:
        """Records the hyperparameters that are due."""
        if self._settings is None:
            names = [(f"hyperparameters/{key}", value) for key, value in values.items()]
            wanted = [(name, value) for name, value in names if self._wanted(self._prefix + name)]
            self._settings = [(self.number(name), value) for name, value in wanted]
        for number, value in self._settings:
            if not self._session.due_tensor(number):
                continue
            self._arrays.setting(number, value)

    def importances(self) -> None:
        """Records the share of each feature that some tree splits on, for each type that is due."""
        used = self.importance.used()
        if not len(used):
            return
        due, scalar = self._session.due_tensor, self._session.scalar
        all_shares = self.importance.shares(used)
        for kind, _ in self._importance_probes():
            numbers, shares = self._importances[kind], all_shares[kind]
            if len(numbers) <= int(used[-1]):
                numbers += [-1] * (int(used[-1]) + 1 - len(numbers))
            for index, share in zip(used.tolist(), shares.tolist(), strict=True):
                number = numbers[index]
                if number < 0:
                    number = self.number(f"feature_importance/{kind}/{self.feature(index)}")
                    numbers[index] = number
                if due(number):
                    scalar(number, share)

    def trees(self, rounds: Rounds, index: int, first: int) -> None:
        """Records the columns of one of the rounds; `first` is the number of its first tree in the model."""
        begin = rounds.ends[index - 1] if index else 0
        end = rounds.ends[index]
        before = sum(rounds.trees[:index])
        for name, number in self._columns or ():
            if self._session.due_tensor(number):
                column = rounds.columns[name][begin:end]
                if name == "Tree":
                    column = column + (first - before)
                elif column.dtype == np.int64:
                    column = column.astype(np.int32)
                self._arrays.array(number, column)
        rows = [row for row in rounds.categories if begin <= row < end]
        if rows and self.due("trees/Category"):
            sets = [(row - begin, value) for row in rows for value in rounds.categories[row].tolist()]
            self._arrays.array(self.number("trees/Category"), np.array(sets, dtype=np.int32))

    def array(self, name: str, value: Any, role: int = _OTHER) -> None:
        """Records an array if it is due. None records a gap: the array was due but could not be obtained."""
        if value is None:
            self.missing(name, role, GapReason.NOT_SEEN, int(Form.RAW))
            return
        number = self.number(name, role)
        if self._session.due_tensor(number):
            self._arrays.array(number, np.asarray(value))

    def shap(self, values: NDArray[Any] | None, want_average: bool, want_full: bool) -> None:
        """Records the contributions of each feature to each prediction; the last axis holds the features and the
        bias.

        None records a gap: they were due but could not be obtained.
        """
        if values is None:
            self.missing(f"full_shap/{self.feature(0)}", _OTHER, GapReason.NOT_SEEN, int(Form.RAW))
            return
        count = values.shape[-1] - 1
        names = [self.feature(index) for index in range(count)] + ["bias"]
        if want_average:
            means = values.mean(axis=tuple(range(values.ndim - 1)), dtype=np.float64)
            for name, mean in zip(names, means.tolist(), strict=True):
                if self.due(f"average_shap/{name}"):
                    self._session.scalar(self.number(f"average_shap/{name}"), mean)
        if want_full:
            for index, name in enumerate(names):
                if self.due(f"full_shap/{name}"):
                    self._arrays.array(self.number(f"full_shap/{name}"), values[..., index])

    def missing(self, name: str, role: int, reason: GapReason, forms: int) -> None:
        """Records a gap for something that was due."""
        self._session.gap(self.number(name, role), int(reason), forms, 1)
