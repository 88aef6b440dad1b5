"""The common part of all hooks: which collections are due, what is written of a value, when files appear."""

from __future__ import annotations

import atexit
import os
import re
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from luff._nearest import hint
from luff.compat.smdebug.core import json_config
from luff.compat.smdebug.core.access_layer.utils import training_has_ended
from luff.compat.smdebug.core.board import Board
from luff.compat.smdebug.core.collection import (
    NON_HISTOGRAM_COLLECTIONS,
    NON_REDUCTION_COLLECTIONS,
    SCALAR_COLLECTIONS,
    Collection,
    CollectionKeys,
    flatten,
)
from luff.compat.smdebug.core.collection_manager import CollectionManager
from luff.compat.smdebug.core.config_constants import CLAIM_FILENAME
from luff.compat.smdebug.core.error_handling_agent import error_handling_agent
from luff.compat.smdebug.core.hook_utils import verify_and_get_out_dir
from luff.compat.smdebug.core.logger import get_logger
from luff.compat.smdebug.core.modes import ALLOWED_MODES, ModeKeys
from luff.compat.smdebug.core.reduction_config import ReductionConfig
from luff.compat.smdebug.core.reductions import reduce_value, reduction_name
from luff.compat.smdebug.core.sagemaker_utils import is_sagemaker_job
from luff.compat.smdebug.core.save_config import SaveConfig
from luff.compat.smdebug.core.singleton import set_hook
from luff.compat.smdebug.core.state_store import (
    LATEST_GLOBAL_STEP_SAVED,
    LATEST_GLOBAL_STEP_SEEN,
    LATEST_MODE_STEP,
    TRAINING_RUN,
    StateStore,
)
from luff.compat.smdebug.core.tfevent.timeline_file_writer import TimelineFileWriter
from luff.compat.smdebug.core.utils import FRAMEWORK, is_first_process, make_numpy_array
from luff.compat.smdebug.core.writer import FileWriter
from luff.compat.smdebug.exceptions import InvalidCollectionConfiguration, SMDebugTypeError, SMDebugValueError
from luff.compat.smdebug.profiler._hook import HookProfile
from luff.compat.smdebug.profiler.profiler_config_parser import ProfilerConfigParser

__all__ = ["BaseHook"]

_NOT_OUTSIDE_TRAINING = {CollectionKeys.GRADIENTS, CollectionKeys.OPTIMIZER_VARIABLES}
_MOST_SCALARS_WAITING = 10_000


class BaseHook:
    """Base class of hooks. A framework's hook derives from it and defines when a step begins and what to save.

    Parameters
    ----------
    collection_manager, default_include_collections, init_step
        Given by the framework.
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

    #: Names the framework in the paths of Python profiles.
    framework: FRAMEWORK | None = None

    def __init__(
        self,
        collection_manager: CollectionManager,
        default_include_collections: Iterable[str],
        init_step: int = 0,
        out_dir: Any = None,
        export_tensorboard: bool = False,
        tensorboard_dir: str | None = None,
        dry_run: bool = False,
        reduction_config: ReductionConfig | None = None,
        save_config: Any = None,
        include_regex: Any = None,
        include_collections: Any = None,
        save_all: bool = False,
        include_workers: str = "one",
        **_: Any,
    ) -> None:
        self.logger = get_logger()
        self.collection_manager = collection_manager
        self.default_include_collections = list(default_include_collections)
        self.init_step = init_step
        self.out_dir = verify_and_get_out_dir(out_dir)
        self.dry_run = dry_run
        self.reduction_config = reduction_config or ReductionConfig(save_raw_tensor=True)
        self.save_config = SaveConfig.parse(save_config) or SaveConfig()
        self.include_workers = include_workers
        self.include_collections = set(flatten([include_collections or []])) | set(
            self.default_include_collections
        )
        if include_regex is not None:
            self.collection_manager.get(CollectionKeys.DEFAULT).include(include_regex)
            self.include_collections.add(CollectionKeys.DEFAULT)
        self.save_all = save_all
        if save_all:
            self.collection_manager.get(CollectionKeys.ALL).include(".*")
            self.include_collections.add(CollectionKeys.ALL)
        if (
            self.collection_manager.get(CollectionKeys.DEFAULT).include_regex
            and CollectionKeys.DEFAULT not in self.include_collections
        ):
            self.logger.warning(
                "the collection default has expressions and is not among those that are saved"
            )
        self.tensorboard_dir = self._tensorboard_dir(export_tensorboard, tensorboard_dir)
        self._board = Board(self.tensorboard_dir) if self.tensorboard_dir and not dry_run else None

        self.mode = ModeKeys.GLOBAL
        self.step = init_step
        self.mode_steps: dict[ModeKeys, int] = {ModeKeys.GLOBAL: init_step}
        self._at: dict[str, Any] = {"mode": ModeKeys.GLOBAL, "mode_step": 0}  # of the open step
        self._last_file = -1
        self.last_saved_step: int | None = None
        self.writer: FileWriter | None = None
        self.prepared_collections = False
        self._collections_to_save: set[Collection] = set()
        self._collections_to_save_for_step: set[Collection] | None = None
        self._matches: dict[str, list[Collection]] = {}
        self._expressions: dict[str, re.Pattern[str]] = {}
        self._exported = False
        self._first_process: bool | None = None
        self._claimed = False
        self._cleaned = False
        self._process = os.getpid()
        self._write_errors = 0
        self.scalar_cache: list[tuple[str, Any, float | None]] = []
        self._custom_tensors: dict[str, tuple[Any, list[str]]] = {}
        self._state_store = StateStore()
        self.profiler_config_parser = ProfilerConfigParser(self.framework)
        self.timeline_writer: TimelineFileWriter | None = None
        self._profile = HookProfile(self, self.profiler_config_parser)
        self.training_run = 0
        self._restore()
        self.worker = self._get_worker_name()
        set_hook(self)
        error_handling_agent.set_hook(self)
        atexit.register(self._cleanup)

    # ---- made from a file ---------------------------------------------------------------------------------------

    _json_defaults: dict[str, Any] = {}  # noqa: RUF012

    @classmethod
    def create_from_json_file(cls, json_file_path: str | None = None) -> Any:
        """Makes the hook that a JSON file describes, by default the file that SMDEBUG_CONFIG_FILE_PATH names."""
        return json_config.create_hook_from_json_config(cls, json_file_path, cls._json_defaults)

    # A hook that is pickled or copied with a model becomes empty.
    def __getstate__(self) -> dict[str, Any]:
        return {}

    # ---- overridden by frameworks -------------------------------------------------------------------------------

    def _get_worker_name(self) -> str:
        return "worker_0"

    def _get_num_workers(self) -> int:
        return 1

    def _prepare(self) -> None:
        """Completes collections that depend on what is known only now."""

    # ---- configuration ------------------------------------------------------------------------------------------

    def _tensorboard_dir(self, export: bool, directory: str | None) -> str | None:
        if directory:
            return os.path.expanduser(directory)
        return os.path.join(self.out_dir, "tensorboard") if export else None

    def get_collection(self, name: str, create: bool = True) -> Any:
        """Returns a collection; an unknown name makes an empty one."""
        return self.collection_manager.get(name, create=create)

    def get_collections(self) -> dict[str, Collection]:
        """Returns all collections by name."""
        return self.collection_manager.get_collections()

    def add_collection(self, collection: Collection) -> None:
        """Adds a collection, which replaces one with the same name."""
        if not isinstance(collection, Collection):
            raise SMDebugTypeError(f"found {type(collection).__name__}, expected a Collection")
        self.collection_manager.add(collection)

    def has_default_hook_configuration(self) -> bool:
        """Returns whether exactly the framework's own collections are saved."""
        if not self.prepared_collections:
            names = self.include_collections
        else:
            names = {collection.name for collection in self._collections_to_save}
        return names == set(self.default_include_collections)

    def has_default_configuration(self) -> bool:
        """Returns whether nothing is configured."""
        return self.has_default_hook_configuration()

    def _prepare_collections(self) -> None:
        """Decides what is saved; called once."""
        self._prepare()
        every = self.get_collections()
        for collection in every.values():
            if collection.name in self.collection_manager_defaults:
                continue
            if not collection.include_regex and not collection.tensor_names:
                raise InvalidCollectionConfiguration(collection.name)
        chosen = set(every) if CollectionKeys.ALL in self.include_collections else self.include_collections
        self._collections_to_save = {collection for name, collection in every.items() if name in chosen}
        for name in sorted(self.include_collections - set(every)):
            self.logger.warning(
                "there is no collection %r, nothing is saved for it%s", name, hint(name, every)
            )
        for collection in every.values():
            if collection.name in NON_HISTOGRAM_COLLECTIONS:
                collection.save_histogram = False
            if collection.save_config is None:
                collection.save_config = self.save_config
            elif any(own is None for own in collection.save_config.mode_save_configs.values()):
                collection.save_config.merge_default_save_config(self.save_config)
            if collection.name in NON_REDUCTION_COLLECTIONS:
                collection.reduction_config = ReductionConfig(save_raw_tensor=True)
            elif collection.reduction_config is None:
                collection.reduction_config = self.reduction_config
        # A mode for which the hook has no configuration uses the default one.
        if any(own is None for own in self.save_config.mode_save_configs.values()):
            self.save_config.merge_default_save_config(SaveConfig())
        self.prepared_collections = True

    collection_manager_defaults: frozenset[str] = frozenset()

    # ---- modes and steps ----------------------------------------------------------------------------------------

    def set_mode(self, mode: ModeKeys) -> None:
        """Sets the mode of the following steps."""
        if mode not in ALLOWED_MODES:
            raise SMDebugValueError(
                f"found mode {mode!r}, expected one of {', '.join(m.name for m in ModeKeys)}"
            )
        self.mode = mode
        self.mode_steps.setdefault(mode, self.init_step)
        self._collections_to_save_for_step = None

    def _restore(self) -> None:
        """Continues with the counters saved before the last restart."""
        state = self._state_store.get_last_saved_ts_state()
        if state is None:
            return
        self.step = int(state[LATEST_GLOBAL_STEP_SEEN])
        saved = state.get(LATEST_GLOBAL_STEP_SAVED)
        self.last_saved_step = saved if isinstance(saved, int) else None
        steps = state.get(LATEST_MODE_STEP)
        for name, number in (steps if isinstance(steps, dict) else {}).items():
            if name in ModeKeys.__members__ and isinstance(number, int):
                self.mode_steps[ModeKeys[name]] = number
        self.mode_steps[ModeKeys.GLOBAL] = self.step
        run = state.get(TRAINING_RUN)
        self.training_run = run + 1 if isinstance(run, int) else 0

    def _increment_step(self) -> None:
        if self._state_store.is_checkpoint_updated():
            self._state_store.update_state(
                {
                    TRAINING_RUN: self.training_run,
                    LATEST_GLOBAL_STEP_SAVED: self.last_saved_step,
                    LATEST_GLOBAL_STEP_SEEN: self.step,
                    LATEST_MODE_STEP: {mode.name: number for mode, number in self.mode_steps.items()},
                }
            )
        self.step += 1
        self.mode_steps[self.mode] = self.mode_steps.get(self.mode, self.init_step) + 1
        if self.mode is not ModeKeys.GLOBAL:
            self.mode_steps[ModeKeys.GLOBAL] = self.step
        self._profile.step_begins(self.mode, self.mode_steps[self.mode])
        self._begin_step()

    def _begin_step(self) -> None:
        self._at = {"mode": self.mode, "mode_step": max(self.mode_steps[self.mode], 0)}
        self._collections_to_save_for_step = None

    def _due(self) -> set[Collection]:
        """Returns the collections that are saved at this step."""
        due = self._collections_to_save_for_step
        if due is None:
            number = self.mode_steps.get(self.mode, self.init_step)
            due = set()
            for collection in self._collections_to_save:
                if (
                    self.mode in (ModeKeys.EVAL, ModeKeys.PREDICT)
                    and collection.name in _NOT_OUTSIDE_TRAINING
                ):
                    continue
                save = collection.save_config
                if save is not None and save.should_save_step(self.mode, number):
                    due.add(collection)
            self._collections_to_save_for_step = due
        return due

    def _collections_of(self, name: str) -> list[Collection]:
        """Returns the saved collections that a tensor belongs to."""
        found = self._matches.get(name)
        if found is None:
            found = []
            for collection in sorted(self._collections_to_save, key=lambda c: c.name):
                if collection.has_tensor_name(name):
                    found.append(collection)
                elif any(self._expression(text).search(name) for text in collection.include_regex):
                    collection.add_tensor_name(name)
                    found.append(collection)
            self._matches[name] = found
        return found

    def _expression(self, text: str) -> re.Pattern[str]:
        found = self._expressions.get(text)
        if found is None:
            found = self._expressions[text] = re.compile(text)
        return found

    def _due_of(self, name: str) -> list[Collection]:
        due = self._due()
        return [collection for collection in self._collections_of(name) if collection in due] if due else []

    def should_save_tensor_or_collection(self, tensor_name: str, collection_name: str) -> bool:
        """Returns whether a tensor, or a collection, is saved at this step."""
        if not self.prepared_collections:
            self._prepare_collections()
        if any(collection.name == collection_name for collection in self._due()):
            return True
        return bool(self._due_of(tensor_name))

    # ---- files --------------------------------------------------------------------------------------------------

    def _writes(self) -> bool:
        """Returns whether this process writes files."""
        if self.dry_run:
            return False
        if self._first_process is None:
            if self._get_num_workers() == 1:
                self._first_process = self._claimed = is_first_process(self.out_dir)
                if not self._first_process:
                    self.logger.warning(
                        "another process writes the trial, so this one does not; if that one is gone, delete %s",
                        os.path.join(self.out_dir, CLAIM_FILENAME),
                    )
            else:
                self._first_process = True
        if not self._first_process:
            return False
        return self.include_workers == "all" or self.worker == self._chief()

    def _chief(self) -> str:
        return "worker_0"

    def _initialize_writers(self) -> None:
        if self.writer is None and self._writes():
            self.writer = FileWriter(self.out_dir, max(self.step, 0), self.worker)
            self._last_file = self.writer.step

    def _close_writers(self, last: bool = False) -> None:
        """Closes the files of the step."""
        self._flush_scalars(last)
        writer, self.writer = self.writer, None
        try:
            if writer is not None:
                writer.close()
            if self._board is not None:
                self._board.close()
        except OSError as error:
            self._cannot_write(error)

    def _cannot_write(self, error: OSError) -> None:
        """Handles a failed write: the step is abandoned, the training continues."""
        self._write_errors += 1
        if self._write_errors == 1:
            self.logger.error("step %d could not be written, the training goes on: %s", self.step, error)
        if self.writer is not None:
            self.writer.abandon()
            self.writer = None

    def export_collections(self) -> None:
        """Writes the collections file."""
        if self._exported or not self._writes():
            return
        self._exported = True
        workers = self._get_num_workers() if self.include_workers == "all" else 1
        self.collection_manager.set_num_workers(workers)
        try:
            self.collection_manager.export(self.out_dir, f"{self.worker}_collections.json")
        except OSError as error:
            self._cannot_write(error)

    def close(self) -> None:
        """Ends the trial."""
        self._cleanup()

    @error_handling_agent.catch_smdebug_errors()
    def record_trace_events(
        self,
        timestamp: float,
        training_phase: str = "",
        op_name: str = "",
        phase: str = "X",
        duration: float = 1,
        **kwargs: Any,
    ) -> None:
        """Adds an event to the timeline if profiling is on: see `TimelineFileWriter.write_trace_events`."""
        if not self.profiler_config_parser.profiling_enabled:
            return
        if self.timeline_writer is None:
            self.timeline_writer = TimelineFileWriter(self.profiler_config_parser)
        self.timeline_writer.write_trace_events(timestamp, training_phase, op_name, phase, duration, **kwargs)

    def _asleep(self) -> bool:
        """Whether the hook does nothing because it is closed, or was pickled, copied or forked."""
        return not self.__dict__ or self._cleaned or self._process != os.getpid()

    def _cleanup(self) -> None:
        if self._asleep():
            return
        self._cleaned = True
        atexit.unregister(self._cleanup)
        self._profile.close()
        if self.timeline_writer is not None:
            self.timeline_writer.close()
        if self.prepared_collections:
            self.export_collections()
        self._close_writers(last=True)
        try:
            if self._writes() and not is_sagemaker_job() and os.path.isdir(self.out_dir):
                training_has_ended(self.out_dir)
        except OSError as error:
            self._cannot_write(error)
        if self._claimed:
            try:
                os.unlink(os.path.join(self.out_dir, CLAIM_FILENAME))
            except OSError:
                pass

    # ---- values -------------------------------------------------------------------------------------------------

    def _make_numpy_array(self, value: Any) -> np.ndarray[Any, Any]:
        return make_numpy_array(value)

    def _save_for_tensor(self, name: str, value: Any, collections: list[Collection] | None = None) -> None:
        """Writes what is due of a value."""
        due = self._due_of(name) if collections is None else collections
        if not due or self.writer is None:
            return
        configs = [c.reduction_config for c in due if c.reduction_config is not None]
        try:
            array = self._make_numpy_array(value)
            if any(config.save_shape for config in configs):
                self._write_shape(name, array)
            self._write_reductions(name, array, due)
            if any(config.save_raw_tensor for config in configs):
                self._write_raw_tensor_simple(name, array)
            if self._board is not None:
                self._to_board(name, array, due)
        except OSError as error:
            self._cannot_write(error)
        except SMDebugTypeError as error:
            self.logger.warning("a value is left out: %s", error)

    def _write_shape(self, name: str, array: np.ndarray[Any, Any]) -> None:
        if self.writer is not None:
            self.writer.write_shape(name, array.shape, **self._at)

    def _write_raw_tensor_simple(
        self,
        tensor_name: str,
        tensor_value: Any,
        tensor_ref: Any = None,  # noqa: ARG002
        timestamp: float | None = None,
    ) -> None:
        """Writes a value into the open step, whatever the collections say; drops it if there is no open file.

        Scripts call this, and hooks derived from this one override it: every value and reduction passes here.

        Parameters
        ----------
        tensor_name
            The name, as it is.
        tensor_value
            An array, a tensor of the framework, a number or a text. One without elements is dropped.
        tensor_ref
            TensorFlow's; ignored.
        timestamp
            In seconds; by default now.
        """
        # Not `_asleep`: closing the hook still writes the numbers that wait.
        if not self.__dict__ or self._process != os.getpid() or self.writer is None:
            return
        try:
            array = self._make_numpy_array(tensor_value)
            if array.nbytes:
                self.writer.write_tensor(tdata=array, tname=tensor_name, timestamp=timestamp, **self._at)
        except OSError as error:
            self._cannot_write(error)
        except SMDebugTypeError as error:
            self.logger.warning("a value is left out: %s", error)

    def _write_reductions(self, name: str, array: np.ndarray[Any, Any], due: list[Collection]) -> None:
        done: set[tuple[str, bool]] = set()
        for collection in due:
            if collection.name in SCALAR_COLLECTIONS or collection.reduction_config is None:
                continue
            for key in collection.reduction_config.wanted():
                if key in done or array.size == 0 or array.dtype.kind not in "biufc":
                    continue
                done.add(key)
                reduced = np.asarray(reduce_value(array, *key))
                self._write_raw_tensor_simple(self._reduction_name(name, *key), reduced)

    def _reduction_name(self, tensor: str, reduction: str, magnitudes: bool) -> str:
        return reduction_name(tensor, reduction, magnitudes)

    def _to_board(self, name: str, array: np.ndarray[Any, Any], due: list[Collection]) -> None:
        board = self._board
        if board is None:
            return
        step = max(self.step, 0)
        for collection in due:
            if collection.save_histogram:
                board.histogram(self.mode.name, step, collection.name, name, array)
                break
        if array.size == 1 and array.dtype.kind in "biuf" and any(c.name in SCALAR_COLLECTIONS for c in due):
            board.scalar(self.mode.name, step, name, float(array.ravel()[0]))

    def save_scalar(
        self,
        name: str,
        value: Any,
        sm_metric: bool = False,  # noqa: ARG002
        timestamp: float | None = None,
    ) -> None:
        """Saves a number with the step that is open when it is written.

        Parameters
        ----------
        name
            Saved as the tensor ``scalar/NAME``.
        value
            A single number.
        sm_metric
            Used by the platform; ignored here.
        timestamp
            In seconds; by default now.
        """
        array = self._make_numpy_array(value)
        if array.size != 1:
            raise SMDebugTypeError(f"scalar {name!r}: found {array.size} numbers, expected one")
        if len(self.scalar_cache) < _MOST_SCALARS_WAITING:
            self.scalar_cache.append(
                (f"scalar/{name}", array, timestamp if timestamp is not None else time.time())
            )

    def _flush_scalars(self, last: bool = False) -> None:
        """Writes the numbers saved since the step began; before the first step, they wait for it."""
        if not self.scalar_cache or (self.step < 0 and not last):
            return
        waiting, self.scalar_cache = self.scalar_cache, []
        if self.writer is None and self.step == self._last_file:
            # The file of this step is already closed, so later numbers get a step of their own.
            self.step += 1
            self._at = {"mode": self._at["mode"], "mode_step": self._at["mode_step"] + 1}
        self._initialize_writers()
        if self.writer is None:
            return
        try:
            for name, array, at in waiting:
                self._write_raw_tensor_simple(name, array, timestamp=at)
                if self._board is not None and array.dtype.kind in "biuf":
                    self._board.scalar(
                        self._at["mode"].name, max(self.step, 0), name, float(array.ravel()[0]), at
                    )
        except OSError as error:
            self._cannot_write(error)
