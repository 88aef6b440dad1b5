"""Step counters that outlive a restart: written beside the checkpoints, so that both are restored together."""

from __future__ import annotations

import json
import os
from typing import Any

from luff.compat.smdebug.core.access_layer.file import write_text
from luff.compat.smdebug.core.config_constants import (
    CHECKPOINT_CONFIG_FILE_PATH_ENV_VAR,
    CHECKPOINT_DIR_KEY,
    DEFAULT_CHECKPOINT_CONFIG_FILE,
    METADATA_FILENAME,
)

__all__ = ["StateStore"]

TRAINING_RUN = "training-run"
LATEST_GLOBAL_STEP_SAVED = "latest-global-step-saved"
LATEST_GLOBAL_STEP_SEEN = "latest-global-step-seen"
LATEST_MODE_STEP = "latest-mode-step"
_UPLOADED = "sagemaker-uploaded"


class StateStore:
    """The state file of a checkpoint directory; without such a directory, it does nothing."""

    def __init__(self) -> None:
        self._saved_states: list[Any] = []
        self._checkpoint_dir: str | None = None
        self._seen: dict[str, tuple[int, int]] = {}
        path = os.environ.get(CHECKPOINT_CONFIG_FILE_PATH_ENV_VAR, DEFAULT_CHECKPOINT_CONFIG_FILE)
        try:
            with open(path, encoding="utf-8") as file:
                found = json.load(file).get(CHECKPOINT_DIR_KEY)
        except (OSError, ValueError, AttributeError):
            return
        if not isinstance(found, str) or not os.path.isdir(found):
            return
        self._checkpoint_dir = found
        self._state_file = os.path.join(found, METADATA_FILENAME)
        self._seen = self._files()
        try:
            with open(self._state_file, encoding="utf-8") as file:
                states = json.load(file)
            self._saved_states = states if isinstance(states, list) else []
        except (OSError, ValueError):
            self._saved_states = []

    def _files(self) -> dict[str, tuple[int, int]]:
        """Returns size and time of each checkpoint file."""
        out: dict[str, tuple[int, int]] = {}
        for folder, _, names in os.walk(self._checkpoint_dir or ""):
            for name in names:
                if name == METADATA_FILENAME or _UPLOADED in name or name.endswith(".tmp"):
                    continue
                path = os.path.join(folder, name)
                try:
                    found = os.stat(path)
                except OSError:
                    continue
                out[path] = (found.st_size, found.st_mtime_ns)
        return out

    def is_checkpoint_updated(self) -> bool:
        """Returns whether a checkpoint was written since the state was."""
        return self._checkpoint_dir is not None and self._files() != self._seen

    def get_last_saved_ts_state(self) -> dict[str, Any] | None:
        """Returns the state of the latest step that was seen; None if there is none."""
        states = [
            state
            for state in self._saved_states
            if isinstance(state, dict) and isinstance(state.get(LATEST_GLOBAL_STEP_SEEN), int)
        ]
        return max(states, key=lambda state: int(state[LATEST_GLOBAL_STEP_SEEN]), default=None)

    def update_state(self, ts_state: Any) -> None:
        """Adds a state, and writes the file."""
        if self._checkpoint_dir is None:
            return
        self._seen = self._files()
        self._saved_states.append(ts_state)
        write_text(self._state_file, json.dumps(self._saved_states))
