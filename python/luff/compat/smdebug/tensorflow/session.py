"""Hooks of TensorFlow 1's sessions and estimators, which Luff does not support. Making one raises an error."""

from __future__ import annotations

from typing import Any, NoReturn

from luff.compat.smdebug.core.framework_hook import FrameworkHook
from luff.compat.smdebug.exceptions import SMDebugError

__all__ = ["EstimatorHook", "SessionHook"]

_MESSAGE = (
    "found {name}, which watches sessions of TensorFlow 1 (tf.Session, tf.estimator); they are gone from the "
    "TensorFlow that Luff knows (2.16 and later). Use KerasHook(out_dir) as a call-back of model.fit, or "
    "hook.wrap_tape(tf.GradientTape()) in a loop of your own (docs/migrate/smdebug.md)"
)


class SessionHook(FrameworkHook):
    """Cannot be made.

    Raises
    ------
    SMDebugError
        Always; the message says what to use instead.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self._refuse()

    @classmethod
    def create_from_json_file(cls, json_file_path: str | None = None) -> NoReturn:  # noqa: ARG003
        """Raises the same error as the constructor."""
        cls._refuse()

    @classmethod
    def _refuse(cls) -> NoReturn:
        raise SMDebugError(_MESSAGE.format(name=cls.__name__))


EstimatorHook = SessionHook
