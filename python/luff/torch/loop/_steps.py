"""The open step: how it begins, what is buffered for it, and how it is published.

All methods are called under the hook's lock and inside its guard; none computes with torch.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from luff import _codes as codes
from luff._codes import EventKind, GapReason, Mode, Role
from luff._hook import Session
from luff._tracer import Tracer
from luff.torch.capture._device import DeviceBorders, record_number
from luff.torch.capture._module_times import TimedCapture
from luff.torch.capture._modules import ModuleCapture
from luff.torch.capture._names import Names
from luff.torch.capture._recorder import Recorder
from luff.torch.evidence._allocator import EVERY, AllocatorLooks
from luff.torch.evidence._asked import ASK_AT
from luff.torch.evidence._debug import LOOKS, DebugSettings
from luff.torch.evidence._evidence import Evidence
from luff.torch.evidence._step import Step, StepContext
from luff.torch.loop._trace import Profilers
from luff.torch.loop._writer import TensorWriter

__all__ = ["MAX_EVENTS", "Steps"]

MAX_EVENTS = 256  # of one step while it is undecided
_TRAIN, _EVAL = int(Mode.TRAIN), int(Mode.EVAL)
_GRADIENT = int(Role.GRADIENT)
# Roles as `Steps.due` has them.
_WEIGHTS = 1 << Role.WEIGHT | 1 << Role.BIAS | 1 << Role.BUFFER
_SAMPLES = 1 << Role.SAMPLE
_NOT_SEEN = int(GapReason.NOT_SEEN)

_OF_TRAINING = frozenset({int(EventKind.ZERO_GRAD), int(EventKind.SCHEDULER_STEP), int(EventKind.CLIP_GRAD)})
# after an update they belong to the next step
_OF_THE_NEXT = frozenset({int(EventKind.ZERO_GRAD), int(EventKind.SCHEDULER_STEP)})


def _resolved(
    events: list[tuple[int, Any, Any]], session: Session, names: Names
) -> list[tuple[int, int, int]]:
    """Completes events seen before the session was open with numbers and hashes that were unknown then."""
    found = []
    for kind, subject, argument in events:
        if callable(subject):
            module = subject()
            known = None if module is None else names.find(module)
            subject = codes.NO_ID if known is None else known[1]
        if callable(argument):
            argument = argument(session)
        if argument is not None:
            found.append((kind, subject, argument))
    return found


class Steps(StepContext):
    """The steps of one hook.

    Parameters
    ----------
    names
        Names of the models known so far.
    writer
        Writes the steps of the hook.
    """

    def __init__(self, names: Names, writer: TensorWriter) -> None:
        super().__init__(names, writer.clock)
        self.writer = writer
        self.suspended: Step | None = None  # a TRAIN step during which the model is evaluated
        self.by_hand = False  # steps are counted by hand
        self.stop = 0  # what all ranks have agreed on; 2: leave now
        self.tracing: Tracer | None = None  # while steps are traced
        self._others_trace = (
            False  # another training's trace was being made in this thread when the last step ended
        )
        self.times_modules = False  # on some steps
        self.borders: DeviceBorders | None = None  # where the model is on an accelerator
        self.evidence = Evidence(self)
        self.debug = DebugSettings()
        self.allocator = AllocatorLooks()
        self.losses = self.evidence.losses
        self.draws = self.evidence.nonfinite.draws
        self.samples = self.evidence.samples
        self._early: list[tuple[int, Any, Any]] = []  # events before a step
        self._optimizers: list[Any] = []  # weak references to optimizers made before the session was open
        self._late = False  # events are buffered that were seen before the session was open
        self._version: int | None = None  # version of the weights
        self._blind = False  # updates happen that no hook sees (a compiled optimizer step)

    # Opening -------------------------------------------------------------------------------------------------------

    def ensure_session(self) -> Session | None:
        """Returns the session; the first backward pass or update opens it (after
        `attach`, the first forward pass).
        """
        return self.session or self.writer.open()

    def opened(self, session: Session, tell_gradient: Callable[..., object] | None = None) -> None:
        """Records into `session` from now on. `tell_gradient`: as `tell` of `GradientCapture`."""
        self.session = session
        self.borders = None
        layouts = self.writer.memories.layouts
        self.recorder = Recorder(session, layouts, self.names)
        if self.times_modules:
            self.modules = TimedCapture(
                session, layouts, self.names, tell_gradient, self._train_steps, self.writer.guard.note
            )
        else:
            self.modules = ModuleCapture(session, layouts, self.names, tell_gradient)
        self.evidence.opened(session)
        for reference in self._optimizers:
            optimizer = reference()
            if optimizer is not None:
                self.recorder.optimizer(optimizer)
        self._optimizers.clear()

    def _train_steps(self) -> int:
        """Returns how many TRAIN steps of this training are over if one is open; else -1."""
        step = self.step
        if step is None or step.mode != _TRAIN:
            return -1
        return self.clock.mode_steps[_TRAIN] - self.clock.first_train_step

    def optimizer_made(self, optimizer: Any) -> None:
        """Registers a new optimizer."""
        if self.recorder is not None:
            self.recorder.optimizer(optimizer)
        elif len(self._optimizers) < 1024:
            self._optimizers.append(weakref.ref(optimizer))

    def name_now(self) -> None:
        """Names models, parameters and modules, and makes the tables."""
        if self.recorder is None:
            return
        self.called.fresh = False
        self.recorder.rebuild(self.called.models())
        self.borders = DeviceBorders.of(self.recorder.session, self.called.models())

    # Beginning -----------------------------------------------------------------------------------------------------

    def _begin(self, step: Step) -> None:
        """Begins the step in the session, if that is open."""
        session, writer = self.session, self.writer
        if session is None or step.begun:
            return
        self.due = due = writer.begin_as(session, step.mode)
        writer.provisional = not step.decided
        step.begun = True
        step.samples = bool(due & _SAMPLES)
        if writer.saved.any:
            step.captured = True
            writer.write(writer.take_saved())

    def new_train(self) -> Step:
        """Opens a TRAIN step."""
        step = Step(_TRAIN)
        step.events, self._early = self._early, []
        self.step = step
        number = self.clock.mode_steps[_TRAIN] - self.clock.first_train_step
        if number <= ASK_AT[-1] + 1:
            self.evidence.causal.begins(number)
            self.evidence.mixing.begins(number)
            self.evidence.padding.begins(number)
            self.evidence.places.begins(number)
        self._begin(step)
        return step

    def _resume(self) -> None:
        """Returns to the TRAIN step during which the model was evaluated."""
        step, self.suspended = self.suspended, None
        self.step = step
        if step is not None:
            self._begin(step)
            if self.modules is not None:
                self.modules.begin_step(self.due)

    # Contents ------------------------------------------------------------------------------------------------------

    def event(self, kind: int, subject: Any = codes.NO_ID, argument: Any = 0) -> None:
        """Records an event of the loop, or buffers it while its step is undecided."""
        step = self.step
        if step is not None and step.mode == _TRAIN:  # the usual cases, at each call of the training
            if step.direct and self.session is not None:
                self.session.event(kind, subject, argument)
                return
            if not step.decided:
                if len(step.events) < MAX_EVENTS:
                    step.events.append((kind, subject, argument))
                return
        if step is not None and step.mode != _TRAIN and kind in _OF_TRAINING:
            step = self.suspended
        if step is not None and step.updated and kind in _OF_THE_NEXT:
            step = None
        if step is not None and step.begun and step.decided and self.session is not None:
            self.session.event(kind, subject, argument)
            return
        events = self._early if step is None else step.events
        if len(events) < MAX_EVENTS:
            events.append((kind, subject, argument))

    def _flush(self, step: Step) -> None:
        session = self.session
        if session is None:
            return
        if step.events:
            events = _resolved(step.events, session, self.names) if self._late else step.events
            tell = session.event
            for event in events:
                tell(*event)
            step.events.clear()
        if step.early:
            self.samples.flush(step)
        if step.pending:
            for kind_name, index, loss, code in step.pending:
                self.losses.emit(step, kind_name, index, loss, code)
            step.pending = ()

    def _weights(self, step: Step) -> None:
        if step.weights_done or self.recorder is None:
            return
        step.weights_done = True
        if self.due & _WEIGHTS:
            step.captured |= self.recorder.weights() > 0

    def saved_hooks_entered(self) -> None:
        """Called when saved-tensor hooks come into use."""
        self.saved_hooks = True
        self.saving += 1

    def saved_hooks_left(self) -> None:
        """Called when saved-tensor hooks are no longer in use."""
        self.saving = max(self.saving - 1, 0)

    # Publishing ----------------------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Publishes the open step, if there is one."""
        if self.step is not None:
            self.publish_step(self.step)

    def publish_step(self, step: Step) -> Step | None:
        """Publishes a step, or drops it if no backward pass followed. Returns the step that is open afterwards."""
        session, recorder = self.session, self.recorder
        self.step = None
        self.writer.provisional = True  # what users save from now on belongs to the next step
        if session is None or recorder is None or (step.mode == _TRAIN and not step.decided):
            if self.modules is not None and self.modules.due:
                self.modules.end_step(False)
            self.writer.abandon()
            if step.mode == _TRAIN:
                self.evidence.forget_calls()
                if step.events:
                    self._early = step.events[:MAX_EVENTS]
        else:
            if not step.begun:
                self._begin(step)
            if step.mode == _TRAIN:
                if not step.weights_done and not self.by_hand:
                    self._weights(step)
                self._look_for_unseen_update(step, session, recorder)
                recorder.settings(step)
                if (done := self.clock.mode_steps[_TRAIN] - self.clock.first_train_step) in LOOKS:
                    self.debug.look(session, done)
                elif done and not done % EVERY:
                    self.allocator.look(session, done)
            if step.events or step.pending:
                self._flush(step)
            if self.modules is not None and self.modules.due:
                self.modules.end_step(True)
            if self.writer.guard.unreported:
                self.writer.guard.report(session)
            self.evidence.publish(step, session)
            self.writer.update = step.update if step.update >= 0 else self.clock.latest_update()
            if Profilers.tracing is not None or self._others_trace:
                self._tell_others_trace(session)
            if self.borders is not None:
                self.borders.ends()
            self.writer.end()
        if step.mode == _TRAIN:
            if (tracing := Profilers.tracing) is not None:
                if tracing is not self.tracing:
                    tracing.other_step_ended()
                elif not tracing.step_ended():
                    self.tracing = None
            self.saved_hooks = False
            self._late = self._late and session is None
            while self.losses.waiting and session is not None:
                self._publish_waiting(session, self.losses.waiting.popleft())
            if session is not None and step.decided and session.stop_state():
                self.stop = max(self.stop, session.at_step_boundary(self.clock.mode_steps[_TRAIN]))
        elif self.suspended is not None:
            self._resume()
        return self.step

    def _tell_others_trace(self, session: Session) -> None:
        """Says that a part of the step was traced by another training's trace."""
        tracing, began_traced = Profilers.tracing, self._others_trace
        self._others_trace = tracing is not None and tracing is not self.tracing and tracing.is_here()
        own = self.tracing is not None and self.tracing.active
        if (began_traced or self._others_trace) and not own:
            session.traced(True)
            session.traced(False)

    def _look_for_unseen_update(self, step: Step, session: Session, recorder: Recorder) -> None:
        """Detects weights that change without an update: from now on they are read when a backward pass returns."""
        version = recorder.version()
        if step.updated:
            self._blind = False
        elif self._version is not None and version != self._version and recorder.count():
            self._blind = True
            session.gap(codes.NO_ID, _NOT_SEEN, session.due_role(_GRADIENT), 1)
        self._version = version

    def _publish_waiting(self, session: Session, losses: list[tuple[int, Any]]) -> None:
        self.due = self.writer.begin_as(session, _EVAL)
        for number, value in losses:
            if self.recorder is not None:
                record_number(session, self.recorder.layouts, number, value)
        forms = session.due_role(int(Role.SAMPLE))
        forms |= 0 if self.modules is None else self.modules.due_forms()
        if forms:
            session.gap(codes.NO_ID, _NOT_SEEN, forms, 1)
        self.writer.update = self.clock.latest_update()
        if self.borders is not None:
            self.borders.ends()
        self.writer.end()

    def finish(self) -> None:
        """Publishes what is open when the run ends, and what users have saved since the last step."""
        for _ in range(2):
            if self.step is not None:
                self.publish_step(self.step)
        self.writer.finish()
        if self.session is not None:
            self.evidence.finish(self.session)
