"""A trial in a directory of smdebug's layout."""

from __future__ import annotations

import os
import time
from typing import Any

from luff.compat.smdebug.core.access_layer.utils import has_training_ended
from luff.compat.smdebug.core.collection_manager import CollectionManager
from luff.compat.smdebug.core.config_constants import (
    INCOMPLETE_STEP_WAIT_WINDOW_DEFAULT,
    INCOMPLETE_STEP_WAIT_WINDOW_KEY,
    MISSING_EVENT_FILE_RETRY_LIMIT,
    MISSING_EVENT_FILE_RETRY_LIMIT_KEY,
    TRAINING_END_DELAY_REFRESH_DEFAULT,
    TRAINING_END_DELAY_REFRESH_KEY,
)
from luff.compat.smdebug.core.index_reader import IndexEntry, LocalIndexReader
from luff.compat.smdebug.core.locations import (
    STEPS_PER_FOLDER,
    IndexFileLocationUtils,
    get_path_to_collections,
    get_worker_name_from_collection_file,
)
from luff.compat.smdebug.core.modes import ModeKeys
from luff.compat.smdebug.core.reader import read_value
from luff.compat.smdebug.exceptions import (
    IndexReaderException,
    MissingCollectionFiles,
    TensorUnavailableForStep,
)
from luff.compat.smdebug.trials.trial import Trial

__all__ = ["LocalTrial"]

_POLL_S = 0.25
_POLLS_BEFORE_A_WORD = 20


class LocalTrial(Trial):
    """A directory that a hook writes or has written.

    The constructor waits for the collections files, as smdebug's does.

    Parameters
    ----------
    name, dirname
        Name of the trial and its directory.
    range_steps
        Global steps to read, half open; others are ignored.
    cache
        Whether to keep values in memory once they were read.
    """

    def __init__(
        self,
        name: str,
        dirname: str,
        range_steps: tuple[int | None, int | None] | None = None,
        parallel: bool = True,  # noqa: ARG002
        check: bool = False,  # noqa: ARG002
        index_mode: bool = True,  # noqa: ARG002
        cache: bool = False,
    ) -> None:
        super().__init__(name, os.path.expanduser(os.fspath(dirname)), range_steps, cache)
        self.index_reader = LocalIndexReader(self.path)
        self.training_end_delay_refresh = float(
            os.environ.get(TRAINING_END_DELAY_REFRESH_KEY, TRAINING_END_DELAY_REFRESH_DEFAULT)
        )
        self.incomplete_wait_for_step_window = int(
            os.environ.get(INCOMPLETE_STEP_WAIT_WINDOW_KEY, INCOMPLETE_STEP_WAIT_WINDOW_DEFAULT)
        )
        self._entries: dict[int, dict[str, IndexEntry]] = {}
        self._known_names: set[str] = set()
        self._sorted_names: list[str] = []
        self._seen_tables: set[int] = set()
        self._told = 0
        self._read_collections()
        self.maybe_refresh()

    # ---- collections --------------------------------------------------------------------------------------------

    def _collections_files(self) -> dict[str, str]:
        folder = get_path_to_collections(self.path)
        out = {}
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            return {}
        for name in names:
            try:
                out[get_worker_name_from_collection_file(name)] = os.path.join(folder, name)
            except IndexReaderException:
                continue
        return out

    def _read_collections(self) -> None:
        polls, loaded = 0, False
        while True:
            ended = has_training_ended(self.path)
            files = self._collections_files()
            if files and not loaded:
                self.collection_manager = CollectionManager.load(next(iter(files.values())))
                self.num_workers = self.collection_manager.get_num_workers()
                loaded = True
            if loaded and len(files) >= self.num_workers:
                break
            if ended:
                raise MissingCollectionFiles(
                    f"found {len(files)} of {self.num_workers} in {get_path_to_collections(self.path)}"
                )
            polls += 1
            if polls == _POLLS_BEFORE_A_WORD:
                self.logger.warning(
                    "waiting for collections files: found %d of %s in %s",
                    len(files),
                    self.num_workers if loaded else "those to come",
                    get_path_to_collections(self.path),
                )
            time.sleep(_POLL_S)
        self.worker_set = set(files)

    # ---- steps --------------------------------------------------------------------------------------------------

    def _ended(self) -> bool:
        return has_training_ended(self.path)

    def _before_the_last_look(self) -> None:
        if self.training_end_delay_refresh > 0:
            time.sleep(self.training_end_delay_refresh)

    def _load(self) -> None:
        folder = f"{max(self.last_complete_step, 0) // STEPS_PER_FOLDER:09d}"
        for entry in self.index_reader.read(folder, self.range_steps):
            self._entries.setdefault(entry.step, {})[entry.worker] = entry
            self._see(entry.step, entry.worker, entry.mode, entry.mode_step)
            if id(entry.names) not in self._seen_tables:
                self._seen_tables.add(id(entry.names))
                self._known_names |= entry.names.tensors()
                self._sorted_names = sorted(self._known_names)
            if len(self.workers_for_global_step[entry.step]) >= self.num_workers:
                self.last_complete_step = max(self.last_complete_step, entry.step)
        if len(self.index_reader.problems) > self._told:
            for path, what in list(self.index_reader.problems.items())[self._told :]:
                self.logger.warning("an index file was left out (%s): %s", what, path)
            self._told = len(self.index_reader.problems)
        window = self.incomplete_wait_for_step_window
        if len(self._entries) - (self.last_complete_step + 1) > window:
            self.last_complete_step += window // 2
        if self.last_complete_step >= 0 and self.worker_set:
            self.last_index_token = IndexFileLocationUtils.get_index_key_for_step(
                self.path, self.last_complete_step, max(self.worker_set)
            )

    # ---- tensors ------------------------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        return self._sorted_names

    def _known(self, name: str) -> bool:
        return name in self._known_names

    @staticmethod
    def _in(entry: IndexEntry, name: str) -> bool:
        names = entry.names
        return name in names.values or name in names.reductions or name in names.shapes

    def _has(self, name: str, step: int) -> bool:
        return any(self._in(entry, name) for entry in self._entries.get(step, {}).values())

    def _tensor_steps(self, name: str, mode: ModeKeys) -> list[int]:
        if mode is ModeKeys.GLOBAL:
            return sorted(step for step in self._entries if self._has(name, step))
        return sorted(s for s, step in self._mode_to_global.get(mode, {}).items() if self._has(name, step))

    def _tensor_workers(self, name: str, step: int) -> list[str]:
        return sorted(
            worker for worker, entry in self._entries.get(step, {}).items() if self._in(entry, name)
        )

    def _original_name(self, name: str) -> str | None:
        for entries in self._entries.values():
            for entry in entries.values():
                if name in entry.names.shapes:
                    return entry.names.shapes[name][1]
        return None

    def _saved_shape(self, name: str, step: int, worker: str) -> tuple[int, ...] | None:
        shape = self._entries[step][worker].names.shapes.get(name)
        return shape[0] if shape is not None else None

    def _saved_reductions(self, name: str, step: int, worker: str) -> list[tuple[str, bool]]:
        return list(self._entries[step][worker].names.reductions.get(name, ()))

    def _read_reduction(self, name: str, step: int, worker: str, key: tuple[str, bool]) -> Any:
        entry = self._entries[step][worker]
        return self._fetch(entry, name, entry.names.reductions[name][key])

    def _read(self, name: str, step: int, worker: str) -> Any:
        entry = self._entries[step][worker]
        position = entry.names.values.get(name)
        return None if position is None else self._fetch(entry, name, position)

    def _fetch(self, entry: IndexEntry, name: str, position: int) -> Any:
        """Returns the value of a record. Waits for an event file that is still missing, until a later one exists."""
        path = os.path.join(self.path, entry.event_file)
        start, length = entry.place(position)
        tries = int(os.environ.get(MISSING_EVENT_FILE_RETRY_LIMIT_KEY, MISSING_EVENT_FILE_RETRY_LIMIT))
        for _ in range(max(1, tries)):
            try:
                return read_value(path, start, length)
            except FileNotFoundError:
                if self._ended() or any(
                    entry.worker in workers
                    and os.path.exists(os.path.join(self.path, workers[entry.worker].event_file))
                    for step, workers in self._entries.items()
                    if step > entry.step
                ):
                    break
                time.sleep(_POLL_S)
        raise TensorUnavailableForStep(name, entry.mode_step, entry.mode)
