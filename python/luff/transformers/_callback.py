"""The call-back, which records what only the Trainer knows of a training."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from transformers.trainer_callback import TrainerCallback

from luff._base_hook import Collections
from luff.corrections import Corrections
from luff.torch._frameworks import CallbackParts, Loop, Run, guarded_events

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from luff.config import CaptureOptions

__all__ = ["Callback"]


@guarded_events("begins", "ended")
class Callback(CallbackParts, TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Watches what a Trainer trains. Goes into ``callbacks`` of a ``Trainer``, or of several, one after the other.

    Parameters
    ----------
    run
        Directory of the run, created. If it holds a run and `resume` is not set, a new one is made beside it:
        ``RUN-2``. None: a new one below ``$LUFF_HOME/runs``. Under ``luff run`` the supervisor's is used.
    checkpoint
        Whether the Trainer saves a checkpoint when a finding stops it; by default if it saves any.
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
        checkpoint: bool | None = None,
        collections: Collections = None,
        resume: bool = False,
        on_stop: Callable[[], object] | None = None,
        correct: Corrections | None = None,
        **options: Unpack[CaptureOptions],
    ) -> None:
        self._run = Run(
            run, collections=collections, resume=resume, on_stop=on_stop, correct=correct, **options
        )
        self._loop = Loop(self._run, self._leave)
        self._checkpoint = checkpoint
        self._arguments: Any = None
        self._control: Any = None
        self._depth = 0  # nesting depth of the Trainer's functions: it evaluates while it trains

    # Called by the wrappers of the Trainer's functions ---------------------------------------------------------

    def begins(self, trainer: Any, mode: str | None) -> None:
        """Called when `train` (mode None), `evaluate` or `predict` begins."""
        self._depth += 1
        if mode is not None:
            if self._depth == 1:
                self._loop.begin(trainer.model, (), training=False)
            self._loop.publish()
            self._loop.mode(mode)

    def ended(self) -> None:
        """Called when the function has returned, or raised an error."""
        self._depth -= 1
        self._loop.mode(None)
        if not self._depth:
            self._loop.end()

    def raise_if_stopped(self) -> None:
        """Raises `luff.StopTraining` if a finding has stopped the Trainer."""
        if not self._depth:
            self._loop.raise_if_stopped()

    def _leave(self) -> None:
        self._control.should_training_stop = True
        saves = str(getattr(self._arguments.save_strategy, "value", self._arguments.save_strategy)) != "no"
        if saves if self._checkpoint is None else self._checkpoint:
            self._control.should_save = True

    # Called by the Trainer -------------------------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begins when everything is built, and before any training."""
        self._arguments, self._control = args, control
        optimizer, scheduler = kwargs.get("optimizer"), kwargs.get("lr_scheduler")
        optimizer = getattr(optimizer, "optimizer", optimizer)  # unwraps that of Accelerate
        scheduler = getattr(scheduler, "scheduler", scheduler)
        self._loop.begin(kwargs.get("model"), () if optimizer is None else (optimizer,), (scheduler,))
        self._loop.plan(state.max_steps - state.global_step)

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Ends a TRAIN step: a backward pass without an update is one, too."""
        self._control = control
        self._loop.step_ended()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Ends a TRAIN step, unless something will be logged of it first."""
        self._control = control
        epoch_ends = state.epoch is not None and float(state.epoch).is_integer()
        if not (control.should_log or control.should_training_stop or epoch_ends):
            self._loop.step_ended()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Ends the last TRAIN step of an epoch, unless something will be logged of it first."""
        self._control = control
        if not (control.should_log or control.should_training_stop):
            self._loop.step_ended()

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Records metrics of the training or of an evaluation."""
        self._control = control
        self._loop.log(kwargs.get("logs") or {})
        if self._depth == 1 and not control.should_training_stop:
            self._loop.step_ended()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Makes one step of each batch, however often it calls the model."""
        self._loop.evaluated()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Carries out after an evaluation what was agreed on before it."""
        self._control = control
        self._loop.answer()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Ends the last step."""
        self._control = control
        self._loop.step_ended()
