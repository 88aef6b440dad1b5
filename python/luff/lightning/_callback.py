"""The call-back, which records what only Lightning knows of a training."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from luff._base_hook import Collections
from luff._codes import EndReason
from luff.corrections import Corrections
from luff.lightning import _trainers
from luff.torch._frameworks import CallbackParts, Loop, Run, guarded_events

if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
    from pytorch_lightning.callbacks import Callback as _Base
else:
    from lightning.pytorch.callbacks import Callback as _Base

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from luff.config import CaptureOptions

__all__ = ["Callback"]

#: Methods that Lightning would call in every step and that Luff does not need.
_UNUSED = (
    "on_train_batch_start",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_validation_batch_start",
    "on_test_batch_start",
    "on_predict_batch_start",
)


@guarded_events("ended")
class Callback(CallbackParts, _Base):  # type: ignore[misc, unused-ignore]
    """Watches what a trainer trains. Goes into ``callbacks`` of a ``Trainer``, or of several, one after the other.

    Parameters
    ----------
    run
        Directory of the run, created. If it holds a run and `resume` is not set, a new one is made beside it:
        ``RUN-2``. None: a new one below ``$LUFF_HOME/runs``. Under ``luff run`` the supervisor's is used.
    checkpoint
        Where `trainer.save_checkpoint` writes when a finding stops the training.
    collections, resume, on_stop, correct, **options
        As in `luff.torch.attach`, except that by default tensors are recorded at every 50th step.

    Raises
    ------
    LuffError
        When a setting is wrong; when the training begins, if the run cannot be
        created. Later errors inside Luff are counted, never raised.
    """

    def __init__(
        self,
        run: str | os.PathLike[str] | None = None,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        collections: Collections = None,
        resume: bool = False,
        on_stop: Callable[[], object] | None = None,
        correct: Corrections | None = None,
        **options: Unpack[CaptureOptions],
    ) -> None:
        _trainers.install()
        self._run = Run(
            run, collections=collections, resume=resume, on_stop=on_stop, correct=correct, **options
        )
        self._loop = Loop(self._run, self._leave)
        self._checkpoint = None if checkpoint is None else os.fspath(checkpoint)
        self._trainer: Any = None
        # Lightning skips attributes that are not callable, and everything that it does around the call.
        for name in _UNUSED:
            if getattr(type(self), name, None) is getattr(_Base, name, self):
                setattr(self, name, None)

    # The loop --------------------------------------------------------------------------------------------------

    def _begin(self, trainer: Any, module: Any, training: bool) -> None:
        self._trainer = trainer
        if training:
            schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
            self._loop.begin(module, trainer.optimizers, schedulers)
        else:
            self._loop.begin(module, (), training=False)

    def ended(self) -> None:
        """Called when the trainer has returned, or raised an error."""
        self._loop.end()
        self._trainer = None

    def raise_if_stopped(self) -> None:
        """Raises `luff.StopTraining` if a finding has stopped the trainer."""
        self._loop.raise_if_stopped()

    def _leave(self) -> None:
        trainer = self._trainer
        trainer.should_stop = True
        trainer.fit_loop.min_epochs = 0  # a stop does not wait for the minimum of epochs
        trainer.fit_loop.epoch_loop.min_steps = None
        if self._checkpoint is not None:
            trainer.save_checkpoint(self._checkpoint)

    # Called by Lightning ---------------------------------------------------------------------------------------

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """Begins before the sanity check, which evaluates a few batches before the training."""
        self._begin(trainer, pl_module, True)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begins after Lightning has set its signal handlers, so that Luff's come after them, and before any
        training.
        """
        self._begin(trainer, pl_module, True)
        self._loop.plan(_updates_left(trainer))

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Records the metrics of the previous epoch: they are computed now, and asking earlier would compute them."""
        self._loop.log(trainer.logged_metrics)
        self._loop.step_ended()

    def on_train_batch_end(
        self,
        trainer: Any,
        pl_module: Any,  # noqa: ARG002
        outputs: Any,  # noqa: ARG002
        batch: Any,  # noqa: ARG002
        batch_idx: int,
    ) -> None:
        """Ends a TRAIN step; the last one of an epoch stays open for the epoch's metrics."""
        self._loop.log(trainer.logged_metrics)
        last = (
            trainer.is_last_batch
            or batch_idx + 1 >= trainer.num_training_batches
            or 0 <= trainer.max_steps <= trainer.global_step
        )
        if not last:
            self._loop.step_ended()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Ends the last step."""
        self._loop.log(trainer.logged_metrics)
        self._loop.step_ended()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Begins an evaluation."""
        if not self._loop.hook:
            self._begin(trainer, pl_module, False)
        self._loop.publish()
        self._loop.mode("EVAL")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Records the metrics of the evaluation."""
        if not trainer.sanity_checking:
            self._loop.log(trainer.logged_metrics)
        self._loop.mode(None)
        self._loop.answer()

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Begins a test."""
        self._begin(trainer, pl_module, False)
        self._loop.mode("EVAL")

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Records the metrics of the test."""
        self._loop.log(trainer.logged_metrics)
        self._loop.mode(None)

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """Begins a prediction."""
        self._begin(trainer, pl_module, False)
        self._loop.mode("PREDICT")

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Ends a prediction."""
        self._loop.mode(None)

    def on_validation_batch_end(self, *_: Any) -> None:
        """Makes one step of each batch, however often it calls the model."""
        self._loop.evaluated()

    on_test_batch_end = on_predict_batch_end = on_validation_batch_end

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """Records the signal of Ctrl-C, which Lightning turns into a normal exit."""
        if isinstance(exception, KeyboardInterrupt) and self._run.hook is not None:
            self._run.hook.close(int(EndReason.SIGNAL))


def _updates_left(trainer: Any) -> float:
    """Returns how many updates the trainer means to make, as far as it knows; infinity: it does not."""
    left: float = math.inf if trainer.max_steps < 0 else trainer.max_steps - trainer.global_step
    if len(trainer.optimizers) != 1:  # it counts the updates of all of them
        return math.inf
    if trainer.max_epochs is None or trainer.max_epochs < 0 or math.isinf(trainer.num_training_batches):
        return left
    in_epoch: int = math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
    of_epochs: float = in_epoch * (trainer.max_epochs - trainer.current_epoch)
    return min(left, of_epochs)
