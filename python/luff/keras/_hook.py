"""The hook: one run, one session; each batch of `fit`, `evaluate` and `predict` is a step."""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras

from luff import corrections
from luff._base_hook import Collections, choose_run, make_config, thinned
from luff._codes import GapReason, Mode
from luff._hook import RunOptions, Session, run_from_environment
from luff._registry import Registry
from luff._weak import Identities
from luff._xplane import Profiler, TracedStepHook, jax_profiler, tensorflow_profiler
from luff.keras._backends import make_values
from luff.keras._describe import Document
from luff.keras._held import HeldSteps
from luff.keras._inputs import NOTHING, taken_by
from luff.keras._linear_layers import linear_layers
from luff.keras._makers import loss_inputs
from luff.keras._masks import masked_inputs
from luff.keras._names import Names
from luff.keras._trainable import TrainableSets
from luff.keras._values import ARRAYS, Values

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from luff.config import CaptureOptions
    from luff.keras._loops import Loops

__all__ = ["Callback", "Hooks", "hooks"]

_NOT_SEEN = int(GapReason.NOT_SEEN)
_TRAIN = int(Mode.TRAIN)


class Callback(TracedStepHook, keras.callbacks.Callback):  # type: ignore[misc]
    """Attaches Luff to Keras::

        hook = luff.keras.Callback(run="runs/first")
        model.fit(x, y, callbacks=[hook])

    Parameters
    ----------
    run
        Directory of the run, created. If it holds a run and `resume` is not set, a new one is made beside it:
        ``RUN-2``. None: a new one below ``$LUFF_HOME/runs``. Under ``luff run`` the supervisor's is used.
    collections
        What is saved in addition to the default: names of collections (raw values and summaries), or settings by
        name.
    resume
        Whether to continue an existing run.
    on_stop
        Called before `StopTraining` is raised, in addition to those of `luff.on_stop`.
    correct
        What Luff may correct when a finding asks for it; by default what was passed to `luff.corrections.accept`.
    **options
        Capture settings: ``save_interval``, ``start_step``, ``end_step``, ``save_steps``, ``save_all``,
        ``include_regex``, ``max_overhead``, ``max_bytes``, … (docs/capture.md). Without any, statistics are taken at
        every 50th step, and numbers at every step.

    Raises
    ------
    LuffError
        When the run cannot be created, or a setting is wrong.
    """

    framework = "keras"
    writer = HeldSteps
    steps: HeldSteps
    async_safe = True  # Keras need not wait for it: as a call-back it only learns its model

    def __init__(
        self,
        run: str | os.PathLike[str] | None = None,
        *,
        collections: Collections = None,
        resume: bool = False,
        on_stop: Callable[[], object] | None = None,
        correct: corrections.Corrections | None = None,
        _options: RunOptions | None = None,
        **options: Unpack[CaptureOptions],
    ) -> None:
        if _options is None:
            if run_from_environment() is None:
                collections = thinned(collections, options)
            chosen = choose_run(run, resume, make_config(collections, options))
        else:
            chosen = _options
        TracedStepHook.__init__(self, chosen, on_stop, correct)
        self.names = Names()
        self.values: Values | None = None
        self.loops: Loops | None = None
        self._document = Document()
        self._described = -1  # number of optimizers in the document
        self._traced: Identities[bool] = Identities()  # models of which it is told what their losses get
        self._trainable = TrainableSets()
        self._trained: Any = None  # weak reference to the model that it is a call-back of
        self._training: Any = None  # weak reference to the model of the open step
        self.input = ""  # document of what loops take batches from, if it is known
        self._input_told = ""
        keras.callbacks.Callback.__init__(self)
        if _options is None:
            self.open_now()
            hooks.add(self)

    # Overrides of BaseHook and StepHook ------------------------------------------------------------------------

    @property
    def config(self) -> dict[str, Any]:
        """The capture configuration."""
        return self._options.config

    def profiler(self) -> Callable[[], Profiler] | None:
        """Returns what makes the backend's profiler."""
        return {"tensorflow": tensorflow_profiler, "jax": jax_profiler}.get(keras.backend.backend())

    def versions(self) -> dict[str, Any]:
        """Returns the versions of Keras and its backend."""
        backend = keras.backend.backend()
        version = str(getattr(__import__(backend), "__version__", ""))
        return {"keras": keras.__version__, "backend": backend, backend: version}

    def opened(self, session: Session) -> None:  # noqa: ARG002
        """Makes the object that records values on this backend."""
        self.values = self.steps.recorder = make_values(self)
        if keras.backend.backend() == "tensorflow":
            from luff.keras._loops import Loops

            self.loops = Loops(self, self.values)  # type: ignore[arg-type]

    def begin_again(self) -> None:
        """Ends the run before another training, which has its own."""
        super().begin_again()
        self._forget()
        self.names = Names()

    def forked(self) -> None:
        """Makes the hook of a forked child a worker of its own."""
        super().forked()
        self._forget()

    def _forget(self) -> None:
        self.values, self.loops, self._training = None, None, None
        self._document, self._described = Document(), -1
        self._traced = Identities()
        self._trainable = TrainableSets()
        self._input_told = ""

    @property
    def _model(self) -> Any:
        """The model, for methods of Keras. The model holds the hook, but not the other way round."""
        return None if self._trained is None else self._trained()

    @_model.setter
    def _model(self, model: Any) -> None:
        self._trained = None if model is None else weakref.ref(model)

    def set_model(self, model: Any) -> None:
        """Attaches the hook to the model that is trained with it as a call-back."""
        keras.callbacks.Callback.set_model(self, model)
        if self.live:
            hooks.add(self, [model])

    def _lower_lr(self, factor: float) -> None:
        optimizers = [] if self.values is None else self.values.optimizers.living()
        if not optimizers:
            raise LookupError("no optimizer has updated yet")
        model = self.training_model()
        if model is not None and hasattr(model, "jax_state_sync"):
            model.jax_state_sync()
        for _, optimizer in optimizers:
            optimizer.learning_rate = float(optimizer.learning_rate) * factor

    # Steps -----------------------------------------------------------------------------------------------------

    def training_model(self) -> Any:
        """Returns the model of the open step, if it is known."""
        return None if self._training is None else self._training()

    def forget_training(self) -> None:
        """Forgets the model, because that of the step that begins is unknown."""
        self._training = None

    def learn(self, model: Any) -> None:
        """Names the variables and layers of a model, and describes it in the run."""
        if self.names.learn(model):
            self._document.model(self.names, model)
            self._describe()

    def begin_batch(self, model: Any, mode: int) -> None:
        """Begins the step of a batch."""
        self.told("begin", self._begin_batch, model, mode)

    def end_batch(self, model: Any, logs: Any, batches: int = 1) -> None:
        """Ends a batch. `logs` are Keras' results, `batches` is the number of batches run since `begin_batch`."""
        self.told("end", self._end_batch, model, logs, batches)

    def tell_input(self, of_fit: str = "") -> None:
        """Records what batches are taken from, from the step that begins on."""
        found = of_fit or self.input
        if found != self._input_told and self.session is not None:
            self._input_told = found
            self.session.set_document("loaders", found or NOTHING)

    def end_epoch(self, logs: Any) -> None:
        """Ends an epoch: its losses and metrics are recorded in the next step, or in the last one."""
        for key, value in (logs or {}).items():
            if isinstance(value, int | float):
                self.save_scalar(f"epoch/{key}", value)
        self._trainable.again = True

    def drop_batch(self) -> None:
        """Drops a batch that turned out not to be one."""
        self.told("drop", self.steps.abandon)

    def here(self) -> bool:
        """Whether this thread makes the steps, or is a replica of the thread that does."""
        return self.turn.here() or type(threading.current_thread()).__name__ == "_MirroredReplicaThread"

    def _told(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        return function(*arguments) if self.here() else super()._told(function, arguments)

    def publish(self) -> None:
        """Publishes the held steps."""
        self.steps.release()

    def settle(self) -> None:
        """Ends the step of a loop, which otherwise only the next tape would end."""
        if self.loops is not None:
            self.loops.end()

    def _begin_batch(self, model: Any, mode: int) -> None:
        if self.training_model() is model and self.steps.begin_again(mode, model, ARRAYS):
            return
        if mode == _TRAIN:
            self.trains(model, lambda: model.trainable_variables)
        if self.loops is not None:
            self.loops.end()
        if self.steps.mode:
            self.steps.abandon()
        holder = None if self.values is None else self.values.holder(model, mode)
        if self.steps.begin_waiting(mode, holder, model) is None or self.values is None:
            return
        self._training = weakref.ref(model)
        if mode == _TRAIN:
            self.tell_input(taken_by(model))
        if self.steps.may_wait and self.values.due():
            self.steps.record_now()
        self.values.before(model, self.steps.mode)

    def _end_batch(self, model: Any, logs: Any, batches: int) -> None:
        session, values = self.session, self.values
        if session is None or values is None or not self.steps.mode:
            return
        metrics = _numbers(logs)  # nothing else, e.g. images, is kept while a step waits
        again = self._trainable.again and self.steps.mode == _TRAIN
        if batches > 1 or again:
            self.steps.record_now()
        elif self.steps.hold(metrics):
            return
        try:
            values.after(model, self.steps.mode)
            values.metrics(metrics)
            hidden = (values.gradient_count or batches) - 1 if batches > 1 else 0
            if hidden > 0:
                session.gap(0xFFFFFFFF, _NOT_SEEN, 0, hidden)
            if len(values.optimizers) != self._described:
                self._describe()
            if self.steps.mode == _TRAIN and model is not None:
                events: list[dict[str, Any]] = []
                if model not in self._traced:
                    again = self._traced[model] = True
                    events = [*loss_inputs(model), *linear_layers(model, self.names), *masked_inputs(model)]
                if again:
                    events += self._trainable.look(model, self.names)
                for event in events:
                    session.event_json(json.dumps(event))
        finally:
            self.steps.end()

    def _describe(self) -> None:
        if self.session is None or self.values is None:
            return
        self._described = len(self.values.optimizers)
        optimizers = self.values.optimizers.living()
        self.session.set_document("model", self._document.text(optimizers, self.training_model()))

    def _finish(self) -> None:
        for part in (self.values, self.loops):
            if part is not None:
                part.hook = self  # the collector clears weak references before it calls __del__
        try:
            self.publish()
            if self.loops is not None:
                self.loops.end()
            if self.steps.mode:
                self.steps.abandon()  # a batch that was never finished
            super()._finish()
            # the process is not exiting yet
            if self.values is not None and threading.main_thread().is_alive():
                self.guarded("rest", self.values.rest)
        finally:
            self.values = self.loops = self.steps.recorder = None


def _numbers(logs: Any) -> dict[str, Any]:
    """Returns Keras' numbers for a batch, without the running mean of the loss."""
    if not isinstance(logs, dict):
        return {}
    return {key: v for key, v in logs.items() if key != "loss" and len(getattr(v, "shape", ())) == 0}


class Hooks(Registry[Callback]):
    """The hooks of Keras; hooks are attached to models."""

    def of_model(self, model: Any) -> Callback | None:
        """Returns the hook that watches a model."""
        return self.of(model) or self.default

    def training(self) -> Callback | None:
        """Returns the hook whose step this thread is in, else the one that watches what no other does."""
        for hook in self.living:
            if hook.steps.mode and hook.here():
                return hook
        return self.default

    def last(self) -> Callback | None:
        """Returns the hook whose step this thread is in, else the one used last."""
        hook = self.training()
        return hook if hook is not None and hook.steps.mode and hook.here() else super().last()


hooks = Hooks(lambda options: Callback(_options=options))
