"""The common part of all trials, wherever they are stored."""

from __future__ import annotations

import os
import re
import time
from bisect import bisect_left
from collections.abc import KeysView
from typing import Any

from luff import _core
from luff._nearest import hint
from luff.compat.smdebug.core.collection import Collection, flatten
from luff.compat.smdebug.core.collection_manager import CollectionManager
from luff.compat.smdebug.core.logger import get_logger
from luff.compat.smdebug.core.modes import ModeKeys
from luff.compat.smdebug.core.tensor import StepState, Tensor
from luff.compat.smdebug.exceptions import (
    InvalidWorker,
    NoMoreData,
    SMDebugValueError,
    StepUnavailable,
    TensorUnavailable,
    TensorUnavailableForStep,
)
from luff.errors import InvalidArgumentError

__all__ = ["Trial"]

_POLL_S = 0.25


class Trial:
    """A trial opened for reading; made by `create_trial`. Derived classes find its steps and values."""

    def __init__(
        self,
        name: str,
        path: str,
        range_steps: tuple[int | None, int | None] | None = None,
        cache: bool = False,
    ) -> None:
        self.name = name
        self.path = path
        self.cache = cache
        self.range_steps = _checked_range(range_steps)
        self.logger = get_logger()
        self.collection_manager = CollectionManager()
        self.num_workers = 1
        self.worker_set: set[str] = set()
        self.loaded_all_steps = False
        self.dynamic_refresh = True
        self.last_complete_step = -1
        self.last_index_token: str | None = None
        self.workers_for_global_step: dict[int, set[str]] = {}
        # Notebooks read these two, under these names.
        self._global_to_mode: dict[int, tuple[ModeKeys, int]] = {}
        self._mode_to_global: dict[ModeKeys, dict[int, int]] = {}
        self._tensors: dict[str, Tensor] = {}

    # ---- provided by derived classes ----------------------------------------------------------------------------

    def _load(self) -> None:
        """Reads new entries."""
        raise NotImplementedError

    def _ended(self) -> bool:
        """Returns whether no more entries can be written."""
        raise NotImplementedError

    def _names(self) -> list[str]:
        """Returns the names of all tensors, sorted."""
        raise NotImplementedError

    def _has(self, name: str, step: int) -> bool:
        """Returns whether a global step has anything of a tensor."""
        raise NotImplementedError

    def _tensor_steps(self, name: str, mode: ModeKeys) -> list[int]:
        """Returns the steps of a mode that hold a tensor."""
        raise NotImplementedError

    def _in_mode(self, name: str, mode: ModeKeys) -> bool:
        """Returns whether a step of a mode has anything of a tensor."""
        return bool(self._tensor_steps(name, mode))

    def _tensor_workers(self, name: str, step: int) -> list[str]:
        """Returns the workers that have anything of a tensor at a global step, sorted."""
        raise NotImplementedError

    def _read(self, name: str, step: int, worker: str) -> Any:
        """Returns the value, or None."""
        raise NotImplementedError

    def _saved_reductions(self, name: str, step: int, worker: str) -> list[tuple[str, bool]]:
        raise NotImplementedError

    def _read_reduction(self, name: str, step: int, worker: str, key: tuple[str, bool]) -> Any:
        raise NotImplementedError

    def _saved_shape(self, name: str, step: int, worker: str) -> tuple[int, ...] | None:
        raise NotImplementedError

    def _original_name(self, name: str) -> str | None:  # noqa: ARG002
        return None

    # ---- refreshing ---------------------------------------------------------------------------------------------

    def refresh_data(self) -> None:
        """Reads new entries."""
        self._load()

    def maybe_refresh(self, name: str | None = None) -> None:  # noqa: ARG002
        """Reads new entries, unless the trial is over or refreshing is off."""
        if self.loaded_all_steps or not self.dynamic_refresh:
            return
        ended = self._ended()
        self._load()
        if ended:
            self._before_the_last_look()
            self._load()
            self.loaded_all_steps = True
            self.last_complete_step = max(self.workers_for_global_step, default=self.last_complete_step)

    def _before_the_last_look(self) -> None:
        return

    # ---- steps --------------------------------------------------------------------------------------------------

    def _see(self, step: int, worker: str, mode: ModeKeys, mode_step: int) -> None:
        self.workers_for_global_step.setdefault(step, set()).add(worker)
        if step not in self._global_to_mode:
            self._global_to_mode[step] = (mode, mode_step)
            if mode is not ModeKeys.GLOBAL:
                self._mode_to_global.setdefault(mode, {})[mode_step] = step

    def _is_complete(self, step: int | None) -> bool:
        if step is None:
            return False
        return (
            self.loaded_all_steps
            or step <= self.last_complete_step
            or len(self.workers_for_global_step.get(step, ())) >= self.num_workers
        )

    def _global(self, mode: ModeKeys, step: int) -> int | None:
        if mode is ModeKeys.GLOBAL:
            return step
        return self._mode_to_global.get(mode, {}).get(step)

    def _all_steps(self, mode: ModeKeys) -> list[int]:
        return sorted(
            self.workers_for_global_step if mode is ModeKeys.GLOBAL else self._mode_to_global.get(mode, ())
        )

    def steps(self, mode: ModeKeys = ModeKeys.GLOBAL, show_incomplete_steps: bool = False) -> list[int]:
        """Returns the steps of a mode, ascending; by default only those that all workers have written."""
        self.maybe_refresh()
        found = self._all_steps(mode)
        return (
            found if show_incomplete_steps else [s for s in found if self._is_complete(self._global(mode, s))]
        )

    def modes(self) -> KeysView[ModeKeys]:
        """Returns the modes that have steps."""
        self.maybe_refresh()
        return self._mode_to_global.keys()

    def mode_modestep(self, step_num: int) -> tuple[ModeKeys | None, int | None]:
        """Returns the mode, and the step of the mode, of a global step."""
        if step_num not in self._global_to_mode:
            self.maybe_refresh()
        return self._global_to_mode.get(step_num, (None, None))

    def mode(self, step_num: int) -> ModeKeys | None:
        """Returns the mode of a global step."""
        return self.mode_modestep(step_num)[0]

    def mode_step(self, step_num: int) -> int | None:
        """Returns the mode step of a global step."""
        return self.mode_modestep(step_num)[1]

    def global_step(self, mode: ModeKeys, mode_step: int) -> int | None:
        """Returns the global step of a step of a mode."""
        if self._global(mode, mode_step) is None:
            self.maybe_refresh()
        return self._global(mode, mode_step)

    def has_passed_step(self, step: int, mode: ModeKeys = ModeKeys.GLOBAL) -> StepState:
        """Returns whether a step can be read, may still be written, or never will be."""
        self.maybe_refresh()
        found = self._all_steps(mode)
        place = bisect_left(found, step)
        if place == len(found):
            return StepState.UNAVAILABLE if self.loaded_all_steps else StepState.NOT_YET_AVAILABLE
        at = self._global(mode, found[place])
        if found[place] == step:
            return StepState.AVAILABLE if self._is_complete(at) else StepState.NOT_YET_AVAILABLE
        passed = at is not None and self.last_complete_step >= at
        return StepState.UNAVAILABLE if passed else StepState.NOT_YET_AVAILABLE

    def wait_for_steps(self, required_steps: list[int], mode: ModeKeys = ModeKeys.GLOBAL) -> None:
        """Waits until all the steps can be read.

        Raises
        ------
        StepUnavailable, NoMoreData
            If a step was not saved; if the training ended before it.
        """
        from luff.compat.smdebug.analysis.utils import refresh

        with refresh(self):
            for step in required_steps:
                while (state := self.has_passed_step(step, mode)) is StepState.NOT_YET_AVAILABLE:
                    time.sleep(_POLL_S)
                if state is StepState.UNAVAILABLE:
                    last = max(self._all_steps(mode), default=-1)
                    if self.loaded_all_steps and step > last:
                        raise NoMoreData(step, mode, last)
                    raise StepUnavailable(step, mode)

    # ---- tensors ------------------------------------------------------------------------------------------------

    def tensor_names(
        self,
        show_prefixed_tensors: bool = False,  # noqa: ARG002
        *,
        step: int | None = None,
        mode: ModeKeys = ModeKeys.GLOBAL,
        regex: Any = None,
        collection: Any = None,
    ) -> list[str]:
        """Returns the sorted names of tensors.

        Parameters
        ----------
        show_prefixed_tensors
            Ignored, as in smdebug.
        step, mode
            Only tensors that have anything at this step; without a step, at any step of the mode.
        regex
            Expressions, searched anywhere in the name; one match suffices.
        collection
            A collection or its name: only its tensors.
        """
        if regex is not None and collection is not None:
            raise ValueError("found regex and collection, expected one of them")
        self.maybe_refresh()
        names = self._names()
        if step is not None:
            at = self._global(mode, step)
            names = [name for name in names if at is not None and self._has(name, at)]
        elif mode is not ModeKeys.GLOBAL:
            names = [name for name in names if self._in_mode(name, mode)]
        if regex is not None:
            names = _matching(names, regex)
            if not names:
                self.logger.warning("no tensor of the trial matches %s", regex)
        if collection is not None:
            names = self._of_collection(names, collection)
        return names

    def _of_collection(self, names: list[str], collection: Any) -> list[str]:
        near = ""
        if isinstance(collection, str):
            if collection not in self.collections():
                near = hint(collection, self.collections())
            collection = self.collection(collection)
        if not isinstance(collection, Collection):
            raise TypeError(f"found {type(collection).__name__}, expected a Collection or its name")
        matched = self._matching_bounded(names, collection.include_regex)
        names = [name for name in names if name in matched or collection.has_tensor_name(name)]
        if not names:
            self.logger.warning("the trial has no tensor of the collection %r%s", collection.name, near)
        return names

    def _matching_bounded(self, names: list[str], expressions: list[str]) -> set[str]:
        """Matches expressions from a file of the trial with Luff's own engine, which bounds their running time."""
        matched: set[str] = set()
        for text in flatten([expressions]):
            try:
                matched.update(names[place] for place in _core.search(text, names))
            except InvalidArgumentError as error:
                self.logger.warning("an expression of a collection is left out: %s", error)
        return matched

    def has_tensor(self, tname: str) -> bool:
        """Returns whether anything of a tensor was saved."""
        if not self._known(tname):
            self.maybe_refresh()
        return self._known(tname)

    def _known(self, name: str) -> bool:
        return name in self._tensors or name in set(self._names())

    def tensor(self, tname: str) -> Tensor:
        """Returns the tensor of this name."""
        found = self._tensors.get(tname)
        if found is None:
            if not self.has_tensor(tname):
                raise TensorUnavailable(tname, self._names())
            found = self._tensors[tname] = Tensor(tname, self, self.cache)
        return found

    def _one_worker(self, name: str, step: int, worker: str | None) -> str:
        if worker is None:
            workers = self._tensor_workers(name, step)
            if not workers:
                raise TensorUnavailableForStep(name, step)
            return workers[0]
        workers = self._tensor_workers(name, step)
        if worker not in workers:
            raise InvalidWorker(worker, workers)
        return worker

    def workers(self) -> list[str]:
        """Returns the names of the workers, sorted."""
        self.maybe_refresh()
        return sorted(self.worker_set)

    def collections(self) -> dict[str, Collection]:
        """Returns all collections by name."""
        return self.collection_manager.get_collections()

    def collection(self, coll_name: str) -> Collection:
        """Returns a collection; an unknown name makes an empty one."""
        found: Collection = self.collection_manager.get(coll_name)
        return found

    # ---- inputs and outputs of models ---------------------------------------------------------------------------

    def _in_order(self, names: list[str], step: int, mode: ModeKeys) -> list[Any]:
        at = self._global(mode, step)
        if at is None:
            raise StepUnavailable(step, mode)

        def number(name: str) -> int:
            match = re.search(r"_(\d+)$", name)
            return int(match.group(1)) if match else 0

        return [self.tensor(n).value(at) for n in sorted(names, key=number) if self._has(n, at)]

    def inputs(self, step: int, mode: ModeKeys = ModeKeys.GLOBAL) -> list[Any]:
        """Returns the values of the collection ``inputs`` at a step."""
        return self._in_order(self.tensor_names(step=step, mode=mode, collection="inputs"), step, mode)

    def labels(self, step: int, mode: ModeKeys = ModeKeys.GLOBAL) -> list[Any]:
        """Returns the values of the labels at a step."""
        return self._in_order(self.tensor_names(step=step, mode=mode, regex="labels*"), step, mode)

    def predictions(self, step: int, mode: ModeKeys = ModeKeys.GLOBAL) -> list[Any]:
        """Returns the values of the predictions at a step."""
        return self._in_order(self.tensor_names(step=step, mode=mode, regex="predictions*"), step, mode)

    def __hash__(self) -> int:
        return hash((self.name, self.path))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trial) and (self.name, self.path) == (other.name, other.path)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {os.fspath(self.path)!r}, {len(self.workers_for_global_step)} steps>"


def _matching(names: list[str], regex: Any) -> list[str]:
    wanted = [re.compile(text) for text in flatten([regex])]
    return [name for name in names if any(expression.search(name) for expression in wanted)]


def _checked_range(given: tuple[int | None, int | None] | None) -> tuple[int | None, int | None] | None:
    if given is None:
        return None
    low, high = given
    for number in (low, high):
        if number is not None and (not isinstance(number, int) or number < 0):
            raise SMDebugValueError(f"found range_steps {given!r}, expected two steps or None")
    if low is not None and high is not None and high <= low:
        raise SMDebugValueError(f"found range_steps {given!r}, expected an end after the start")
    return low, high
