"""Writes the event file and the index file of one step."""

from __future__ import annotations

import json
import threading
import time
from types import TracebackType
from typing import Any

import numpy as np

from luff.compat.smdebug.core.access_layer.file import TSAccessFile, write_text
from luff.compat.smdebug.core.events import tensor_event
from luff.compat.smdebug.core.locations import IndexFileLocationUtils, TensorFileLocation
from luff.compat.smdebug.core.modes import ModeKeys

__all__ = ["FileWriter"]


class FileWriter:
    """One step of one worker. Closing it makes the files appear: first the events, then the index.

    Parameters
    ----------
    trial_dir
        Directory of the trial.
    step
        Global step.
    worker
        Name of the worker.
    """

    def __init__(self, trial_dir: str, step: int = 0, worker: str | None = None, **_: Any) -> None:
        self.trial_dir = str(trial_dir)
        self.step = int(step)
        self.worker = worker or "worker_0"
        self._location = TensorFileLocation(self.step, self.worker)
        self._events: TSAccessFile | None = None
        self._meta: dict[str, Any] = {}
        self._tensors: list[dict[str, Any]] = []
        self._shapes: list[dict[str, Any]] = []
        self._closed = False
        self._lock = threading.Lock()  # replicas of a model may run in threads

    def __enter__(self) -> FileWriter:  # noqa: PYI034  (Python 3.10 has no Self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def name(self) -> str:
        """Returns the path of the event file."""
        return self._location.get_file_location(self.trial_dir)

    def _remember(self, mode: ModeKeys | None, mode_step: int | None) -> tuple[ModeKeys, int]:
        mode = ModeKeys.GLOBAL if mode is None else mode
        mode_step = self.step if mode_step is None else int(mode_step)
        if not self._meta:
            self._meta = {"mode": mode.name, "mode_step": mode_step}
        return mode, mode_step

    def write_tensor(
        self,
        tdata: Any,
        tname: str,
        write_index: bool = True,
        mode: ModeKeys | None = None,
        mode_step: int | None = None,
        timestamp: float | None = None,
    ) -> None:
        """Appends a value."""
        mode, mode_step = self._remember(mode, mode_step)
        value = np.asarray(tdata)
        wall_time = time.time() if timestamp is None else timestamp
        parts = tensor_event(tname, value, wall_time, self.step, mode.value, mode_step)
        with self._lock:
            if self._events is None:
                self._events = TSAccessFile(self.name())
            start, length = self._events.write(parts)
            if write_index:
                self._tensors.append({"tensorname": tname, "start_idx": start, "length": length})

    def write_shape(
        self,
        tname: str,
        shape: Any,
        mode: ModeKeys | None = None,
        mode_step: int | None = None,
        original_name: str | None = None,
    ) -> None:
        """Records a shape in the index."""
        self._remember(mode, mode_step)
        self._shapes.append(
            {
                "tensorname": tname,
                "originalname": original_name if original_name is not None else tname,
                "shape": [int(size) for size in shape],
            }
        )

    def flush(self) -> None:
        """Flushes what is written to the operating system."""
        if self._events is not None:
            self._events.flush()

    def close(self) -> None:
        """Makes the files appear."""
        if self._closed:
            return
        self._closed = True
        if self._events is not None:
            self._events.close()
            self._meta["event_file_name"] = self._location.relative()
        if not self._tensors and not self._shapes:
            return
        index = {"meta": self._meta, "tensor_payload": self._tensors, "shape_payload": self._shapes}
        path = IndexFileLocationUtils.get_index_key_for_step(self.trial_dir, self.step, self.worker)
        write_text(path, json.dumps(index))

    def abandon(self) -> None:
        """Discards what is written."""
        self._closed = True
        if self._events is not None:
            self._events.abandon()
