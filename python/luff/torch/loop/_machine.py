"""Derives steps, updates and modes from the calls that the patches see.

A TRAIN step consists of the forward passes since the last backward pass, and the backward passes up to the next
forward pass. A forward pass is undecided until a backward pass follows. An EVAL or PREDICT step is one forward pass
of a model that no other module called, without gradients or in eval mode. `Machine` gets forward, backward and update
calls; it opens and publishes steps.

All methods are called under the hook's lock and inside its guard; none computes with torch.
"""

from __future__ import annotations

import json
import weakref
from numbers import Real
from typing import Any

import torch

from luff import _codes as codes
from luff._codes import EventKind, GapReason, Mode, Phase, Role
from luff._turn import Turn
from luff._weak import Identities
from luff.torch.capture._batch import LaterBatch, batch_hash
from luff.torch.capture._early import EarlyValues
from luff.torch.capture._memory import float_bits, read_scalar
from luff.torch.capture._modules import ModuleCapture
from luff.torch.capture._names import Names, is_compiled_model
from luff.torch.capture._recorder import OptimizerRecord, Recorder
from luff.torch.evidence._step import MAX_WAITING, Step
from luff.torch.loop._by_hand import UpdatesByHand
from luff.torch.loop._corrections import lower_lr
from luff.torch.loop._loaders import Loaders
from luff.torch.loop._mode_flags import ModeFlags
from luff.torch.loop._next_training import NextTraining
from luff.torch.loop._steps import MAX_EVENTS, Steps
from luff.torch.loop._trace import Profilers
from luff.torch.loop._writer import TensorWriter

__all__ = ["Machine"]

_TRAIN, _EVAL = int(Mode.TRAIN), int(Mode.EVAL)
_DROPPING = 8  # evaluation steps with dropout that are told
_EVALUATIONS = (int(Mode.EVAL), int(Mode.PREDICT))
_FORWARD, _BACKWARD, _BATCH = int(EventKind.FORWARD), int(EventKind.BACKWARD), int(EventKind.BATCH)
_ZERO_GRAD = int(EventKind.ZERO_GRAD)
_MODE_CHANGE = int(EventKind.MODE_CHANGE)
_NOT_SEEN = int(GapReason.NOT_SEEN)
_OTHER_PHASE, _FORWARD_PHASE, _BACKWARD_PHASE, _OPTIMIZER_PHASE = (
    int(phase) for phase in (Phase.OTHER, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
)
# Roles as `Steps.due` has them.
_ATTENTION, _GRADIENTS, _STATES = 1 << Role.ATTENTION, 1 << Role.GRADIENT, 1 << Role.OPTIMIZER_STATE
_EARLY_FORWARDS = 256  # most outermost calls of a step whose values are kept
_EARLY_STEPS = 8  # most steps whose values are kept in vain before a backward pass opens the session


def _part_of(module: Any, model: Any) -> bool:
    """Returns whether a module is part of the model, or of a copy that DataParallel made of it."""
    return "_is_replica" in module.__dict__ or any(module is one for one in model.modules())


def _is_compiled(module: Any) -> bool:
    return is_compiled_model(module) or getattr(module, "_compiled_call_impl", None) is not None


class Machine(Steps):
    """The step machine of one hook.

    Parameters
    ----------
    names, writer
        As in `Steps`.
    eager
        Whether the first forward pass opens the session.
    """

    def __init__(self, names: Names, writer: TensorWriter, eager: bool) -> None:
        super().__init__(names, writer)
        self.held = False  # a framework's loop decides when steps end
        self.closure_depth = 0
        self._first_closure = False  # an update with a closure has not evaluated it yet
        self._eager = eager
        self.next_training: NextTraining | None = None  # set where each training of a process has a run
        self.turn = Turn()
        self.loaders = Loaders(self.clock)
        self.calling: Any = None  # the model that the training thread is currently calling
        self._mode_flags = ModeFlags()
        self._updates_by_hand = UpdatesByHand()
        self._trains_in_eval: Identities[bool] = Identities()
        self._last_mode = 0
        self._trained = False  # whether a backward pass was seen
        self.early = True  # if False, no collection wants values from before the session is open
        self.early_gradients = self.early_attention = False  # likewise for these
        self._early_steps = _EARLY_STEPS
        self._dropping_evaluations = _DROPPING  # that may still be told

    # Threads -------------------------------------------------------------------------------------------------------

    def mine(self, module: Any = None) -> bool:
        """Returns whether the steps belong to this thread, or do from now on; otherwise only counts its call.

        A thread may take over from another that has been idle for long. With a forward pass (of `module`), it may
        also take over if the other thread has ended, has not trained anything yet, or has called the same model.
        """
        turn = self.turn
        if turn.keeps():
            return True
        step = self.step
        if self.calling is not None and not turn.vacant():
            if module is not None and not _part_of(module, self.calling):
                turn.miss()
            return False  # threads inside the model's own forward pass belong to that call
        trains = step is not None and step.mode == _TRAIN
        within = step is not None and trains and step.decided and not step.updated
        free = turn.unused() or ((turn.vacant() or turn.idle()) and not within)
        if module is not None and not free:
            free = turn.vacant() or not self._trained or (not trains and self.called.knows(module))
        if free:
            while self.step is not None and not turn.unused():  # of the other thread
                self.publish_step(self.step)
            turn.take()
            return True
        turn.miss()
        if self.session is not None and (count := turn.to_tell()):
            self.session.gap(codes.NO_ID, _NOT_SEEN, 0, count)
        return False

    # Forward -------------------------------------------------------------------------------------------------------

    def forward_begins(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> ModuleCapture | EarlyValues | bool | None:
        """Begins an outermost call.

        Returns the capture of the model's modules, or True if nothing of them is due; False if the module is not a
        model, and None in a thread to which the steps do not belong.
        """
        if not (self.turn.keeps() or self.mine(module)):
            return None
        root = self.called.root(module)
        if self.called.fresh and self.recorder is not None:
            self.recorder.stale, self.called.fresh = True, False
        if root is None:
            return False
        if self._eager and self.session is None:
            self.ensure_session()
            self.name_now()
        if not self.by_hand:
            self._enter(root, module)
        step = self.step
        if step is None:
            return True
        step.forwards += 1
        self.draws.call_begins(module, step)
        if self.borders is not None:
            self.borders.begins(_FORWARD_PHASE)
        tracing = Profilers.tracing
        if tracing is not None:
            if step.mode != _TRAIN or not torch.is_grad_enabled():
                tracing.evaluates()
            else:
                tracing.look_here()  # a step may have many
        found = self.names.module(module) if self.session is not None else None
        number = self._number_of(module) if found is None else found[1]
        self.event(_FORWARD, number, step.mode | self._mode_flags.bits(module))
        value = LaterBatch(args, kwargs) if self.session is None else batch_hash(self.session, args, kwargs)
        if value is not None:
            self.event(_BATCH, number, value)
        if step.mode == _EVAL and self.session is not None:
            self.evidence.statistics.model_called(module, self.names)
            self.evidence.averages.model_called(module, self.names)
            if self.evidence.masks.due and not self._mode_flags.trains_in_part:
                trained = self.clock.mode_steps[_TRAIN]
                self.evidence.masks.model_called(module, args, kwargs, trained, self.names)
        if step.samples or self.session is None:
            # A pass without gradients within a TRAIN step makes its targets; the model is not trained on its inputs.
            if step.mode != _TRAIN or self.by_hand or torch.is_grad_enabled():
                self.samples.model(step, module, args, kwargs)
            if self.evidence.causal.due:
                self.evidence.causal.model_called(module, args, kwargs)
                self.evidence.mixing.model_called(module, args, kwargs)
                self.evidence.padding.model_called(module, args, kwargs)
                self.evidence.places.model_called(module, args, kwargs)
        if self.session is None:
            return self._keep_early(step, module) or True
        modules = self.modules
        if not step.begun or modules is None:
            return True
        due = modules.due if step.forwards > 1 else modules.begin_step(self.due)
        if not due:
            return True
        if self.recorder is not None and self.recorder.stale:
            self.name_now()
        if _is_compiled(module):
            modules.hidden(GapReason.COMPILED_GRAPH)
        step.captured = step.captured or modules.captures
        return modules

    def drops(self, share: float) -> None:
        """Called when a function is about to drop a share of its input without a graph, as in an evaluation."""
        step, session = self.step, self.session
        if step is None or session is None or step.mode != _EVAL or step.dropped or not step.begun:
            return
        step.dropped = True
        if self._dropping_evaluations and self._mode_flags.evaluates:
            self._dropping_evaluations -= 1
            session.event_json(json.dumps({"kind": "dropout_in_evaluation", "p": float(share)}))

    def _keep_early(self, step: Step, module: Any) -> EarlyValues | None:
        """Returns what keeps the values of a forward pass that the first backward pass may follow."""
        wanted = self.early or self.early_gradients or self.early_attention
        if not wanted or (step.mode != _TRAIN and not step.may_train):
            return None
        if step.kept is None:
            if not self._early_steps:
                return None
            self._early_steps -= 1
            step.kept = EarlyValues(self.early, self.early_gradients)
        step.kept.forwards += 1
        if step.kept.forwards > _EARLY_FORWARDS:  # no backward pass is in sight
            step.kept, self._early_steps = None, 0
            return None
        if _is_compiled(module):
            step.kept.hidden(GapReason.COMPILED_GRAPH)
        return step.kept

    def _number_of(self, module: Any) -> Any:
        """Returns the number of a called module; before the session is open, a weak
        reference, to be resolved later.
        """
        if self.session is None or self.recorder is None:
            self._late = True
            return weakref.ref(module)
        found = self.names.find(module)
        if found is None and self.recorder.stale:
            self.name_now()
            found = self.names.find(module)
        return codes.NO_ID if found is None else found[1]

    def _enter(self, root: Any, module: Any) -> None:
        """Opens the step that this forward pass belongs to."""
        mode, may_train, batch, step = self.writer.forced, False, None, self.step
        grad = torch.is_grad_enabled()
        self.loaders.called = True
        if mode is None:
            if not grad:
                mode = _EVAL
            elif module.training or root in self._trains_in_eval:
                # A loop over the data of evaluations may leave gradients on, and the mode as it is.
                may_train = self.loaders.evaluates and not (step is not None and step.accumulates)
                mode = _EVAL if may_train else _TRAIN
                if may_train:
                    batch = self.loaders.batch()
                    if step is not None and step.goes_on(batch):
                        return
            else:
                mode, may_train = _EVAL, True
        if mode == _TRAIN:
            self._enter_train()
        else:
            self._enter_eval(mode, may_train, root)
            if batch is not None and self.step is not None and self.step.may_train:
                self.step.batch = batch
        step = self.step
        if step is not None and step.mode != self._last_mode:
            self._last_mode = step.mode
            self.event(_MODE_CHANGE, codes.NO_ID, step.mode)

    def _enter_train(self) -> None:
        step = self.step
        if step is not None and step.mode != _TRAIN:
            step = self.publish_step(step)
        if step is not None and step.decided:
            step = self.publish_step(step)
        if step is None:
            self.new_train()
        elif not step.begun:
            self._begin(step)

    def _enter_eval(self, mode: int, may_train: bool, root: Any) -> None:
        step = self.step
        if step is not None and step.mode == mode and self.held and not step.ended:
            return
        if step is not None and step.mode != _TRAIN:
            step = self.publish_step(step)
        if step is not None and step.updated:
            step = self.publish_step(step)
        if step is not None:
            # A step with values is not interrupted: the evaluation is recorded after it, with its losses only.
            if step.captured:
                if len(self.losses.waiting) < MAX_WAITING:
                    self.losses.waiting.append([])
                return
            if step.begun:
                self.samples.lost(step)
                self.writer.abandon()
                step.begun = False
            self.suspended = step
        fresh = Step(mode)
        fresh.may_train = may_train
        fresh.root = weakref.ref(root)
        self.step = fresh
        self._begin(fresh)

    def step_of_loss(self) -> Step | None:
        """Returns the step that a loss with a gradient belongs to; begins a TRAIN step if none is open."""
        step, forced = self.step, self.writer.forced
        if step is not None:
            evaluates = step.mode != _TRAIN and not step.may_train and forced is None
            if evaluates or (not step.forwards and self.is_over(step)):
                step = self.publish_step(step)
        if step is None and not self.by_hand and forced in (None, _TRAIN):
            step = self.new_train()
        return step

    def is_over(self, step: Step) -> bool:
        """Returns whether a step is over since the script, which calls no module and has no optimizer, has changed by
        hand what the step's backward pass has reached.
        """
        if (
            step.mode != _TRAIN
            or not step.decided
            or step.forwards
            or self.by_hand
            or self.held
            or self._eager
        ):
            return False  # with `_eager`, models of others may be called, too
        if self.recorder is None or self.recorder.count() or self.closure_depth:
            return False
        return self._updates_by_hand.look()

    # Backward ------------------------------------------------------------------------------------------------------

    def backward_begins(self, roots: list[Any], weighted: bool = False) -> None:
        """Begins a backward pass: the forward passes before it were training. `weighted`:
        its roots have gradients.
        """
        self.evidence.accumulated.weighted = weighted
        if self.session is None and self.ensure_session() is None:
            return
        if self.writer.forced is not None and self._evaluates():
            if self.step is not None:
                self._begin(self.step)  # its forward pass may have come before the session
                self._flush(self.step)
                self._values_begin(roots)
            return
        if self.step is not None and not self.step.forwards and self.is_over(self.step):
            self.publish_step(self.step)
        step = self._train_step()
        if not step.forwards and self.recorder is not None and not self.recorder.count():
            self._updates_by_hand.remember(roots)
        if self.recorder is not None and self.recorder.stale:
            self.name_now()
        self._decide(step)
        if len(roots) == 1:
            self.losses.root(step, roots[0])
        self._values_begin(roots)
        self.evidence.backward_begins(roots)
        if self.borders is not None:
            self.borders.begins(_BACKWARD_PHASE)

    def _values_begin(self, roots: list[Any]) -> None:
        """Prepares to capture what a backward pass has in memory, or frees."""
        if self.modules is not None and self.modules.due:
            self.modules.backward_begins(self.losses.unscaling(roots))
        if self.due & _ATTENTION:
            self.evidence.attention.backward_begins(roots)

    def backward_left(self) -> None:
        """Called when a backward pass has raised."""
        if self.modules is not None and self.modules.due:
            self.modules.backward_left()

    def _evaluates(self) -> bool:
        """Returns whether the last forward pass was, by the user's word, an evaluation.

        A backward pass then belongs to it: it computes a saliency map, or an attack.
        """
        forced = self.writer.forced
        if forced is None or self.by_hand or forced not in _EVALUATIONS:
            return False
        return self.step is None or self.step.mode != _TRAIN or bool(self.losses.waiting)

    def _train_step(self) -> Step:
        """Returns the TRAIN step that a backward pass or an update belongs to."""
        step = self.step
        if step is not None and step.mode != _TRAIN and not self.by_hand:
            if step.may_train and self.writer.forced is None:
                root = step.root() if step.root is not None else None
                if root is not None and not (self.loaders.evaluates and root.training):
                    self._trains_in_eval[root] = True
                self.loaders.trained()
                self.writer.abandon()
                converted, self.step = step, None
                if self.suspended is not None:
                    self._resume()
                step = self.step or self.new_train()
                step.forwards += max(converted.forwards, 1)
                step.events.extend(converted.events[: MAX_EVENTS - len(step.events)])
                step.early = [*step.early, *converted.early]
                step.kept = step.kept or converted.kept
                if step.begun and self.session is not None and converted.captured:
                    self.session.gap(codes.NO_ID, _NOT_SEEN, 0, 1)
            else:
                step = self.publish_step(step)
        if step is None:
            step = self.new_train()
        if not step.begun:
            self._begin(step)
        return step

    def _decide(self, step: Step) -> None:
        if step.decided:
            return
        session = self.session
        kept, step.kept = step.kept, None
        if kept is not None and step.begun and self.modules is not None and self.recorder is not None:
            kept.capture(self.modules, self.recorder, self.due)
            step.captured = True
        elif session is not None and step.forwards and self.modules is not None and not step.captured:
            first = self.clock.mode_steps[_TRAIN] == self.clock.first_train_step and not self._eager
            if first and (forms := self.modules.due_forms()):
                session.gap(codes.NO_ID, _NOT_SEEN, forms, 1)  # it was opened after the first forward pass
        step.decided = self._trained = True
        if not self.loaders.decided:
            self.loaders.backward_came()
        self.writer.provisional = False  # not `confirm`: values saved before this wait for the next step
        self._flush(step)
        step.direct = step.begun and step.mode == _TRAIN

    def backward_ended(self) -> None:
        """Called when a backward pass has returned."""
        if self.modules is not None and self.modules.due:
            self.modules.backward_left()
        step = self.step
        if step is None or self.session is None or self.recorder is None:
            return
        if self.writer.forced is not None and self._evaluates():
            return
        if self.borders is not None:
            self.borders.begins(_OTHER_PHASE)
        self.event(_BACKWARD)
        self.evidence.backward_ended()
        unmanaged = self._blind or not self.recorder.count()
        if unmanaged or self.closure_depth:
            self._weights(step)
        if unmanaged:
            step.captured |= self.recorder.gradients(None) > 0

    def waits_for_backward(self) -> bool:
        """Returns whether forward passes were seen that a backward pass would make a TRAIN step."""
        step = self.step
        return step is not None and (step.mode == _TRAIN or step.may_train) and self.turn.here()

    # Updates -------------------------------------------------------------------------------------------------------

    def cleared(self, optimizer: Any) -> None:
        """Called when an optimizer's gradients are being cleared."""
        number = codes.NO_ID if self.recorder is None else self.recorder.number_of(optimizer)
        self.event(_ZERO_GRAD, 0 if number == codes.NO_ID else number)

    def scheduler_stepped(self, scheduler: Any, metric: Any = None) -> None:
        """Called when a learning rate scheduler has set a rate; `metric` is what it was given to judge, if anything."""
        number = codes.NO_ID
        if self.recorder is not None:
            self.recorder.scheduler(scheduler)
            number = self.recorder.number_of(getattr(scheduler, "optimizer", None))
        value = None
        if metric is not None:
            value = float(metric) if isinstance(metric, Real) else read_scalar(metric)
        self.event(int(EventKind.SCHEDULER_STEP), number, 0 if value is None else float_bits(value))

    def update_begins(self, optimizer: Any, has_closure: bool) -> None:
        """Called when an optimizer is about to use its gradients, or to compute them first with a closure."""
        if (self.session is None and self.ensure_session() is None) or self.recorder is None:
            return
        record = self.recorder.optimizer(optimizer)
        if self.next_training is not None and self.next_training.former:
            self.next_training.updated(optimizer)
        self._first_closure = has_closure
        if has_closure:
            return
        step = self.step
        if step is None or not step.direct:
            step = self._train_step()
        groups = optimizer.param_groups
        held = len(groups[0]["params"]) if len(groups) == 1 else sum(len(group["params"]) for group in groups)
        if self.recorder.stale or held != record.held:
            self.name_now()
        if not step.decided:
            self._decide(step)
        if step.update < 0:
            step.update = self.clock.update_of(record.number)
        self.evidence.update_begins(record, optimizer)
        if not step.weights_done:
            self._weights(step)
        self.gradients(record, optimizer)
        if self.borders is not None and self.turn.here():  # not in a thread of autograd's
            self.borders.begins(_OPTIMIZER_PHASE)

    def gradients(self, record: OptimizerRecord, optimizer: Any) -> None:
        """Captures the gradients that an optimizer will use."""
        if self.recorder is None or self.step is None:
            return
        if not self.due & _GRADIENTS:
            self.step.captured = True
            return
        nonfinite = self.evidence.nonfinite
        before = nonfinite.count()
        if self.recorder.gradients_of_update(record, optimizer):
            self.step.captured = True
        if nonfinite.count() != before:
            nonfinite.gradients_taken()

    def closure_returned(self, optimizer: Any) -> None:
        """Called when a closure given to an optimizer has been evaluated: the optimizer uses its gradients."""
        step = self.step
        if self.recorder is None or step is None or not step.decided or self._evaluates():
            return
        record = self.recorder.optimizer(optimizer)
        if self.recorder.stale or record.gradients is None:
            self.name_now()
        step.update = self.clock.update_of(record.number)
        if self._first_closure:
            self._first_closure = False
            self.evidence.update_begins(record, optimizer)
        self._weights(step)
        self.gradients(record, optimizer)

    def update_ended(self, optimizer: Any, in_backward: bool) -> None:
        """Called when an optimizer has updated its parameters."""
        if self.session is None or self.recorder is None:
            return
        record = self.recorder.optimizer(optimizer)
        step = self.step
        if step is None or not step.direct:
            step = self._train_step()
            self._decide(step)
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None and read_scalar(found_inf):
            self.event(int(EventKind.STEP_SKIPPED), record.number)
        else:
            self.writer.updated(record.number)
            if step.summed_losses:
                self.losses.updated(step)
            self.evidence.update_ended(record, optimizer, in_backward)
        if self.draws.wanted:
            self.draws.updated()
        record.updates = True
        self.recorder.settings_of(record, optimizer, step)  # a scheduler may change them before the step ends
        if self.due & _STATES:
            self.recorder.states()
        step.updated, step.direct = True, False
        if self.borders is not None and self.turn.here():
            self.borders.begins(_OTHER_PHASE)
        if not in_backward:
            self._update_ends(self.recorder)

    def update_skipped(self, optimizer: Any) -> None:
        """Called when a gradient scaler has found infinities and skipped the update."""
        if self.session is None or self.recorder is None:
            return
        record = self.recorder.optimizer(optimizer)
        step = self._train_step()
        if step.update < 0:
            step.update = self.clock.update_of(record.number)
        self._decide(step)
        self.event(int(EventKind.STEP_SKIPPED), record.number)
        self.recorder.settings_of(record, optimizer, step)
        step.updated, step.direct = True, False
        self._update_ends(self.recorder)

    def _update_ends(self, recorder: Recorder) -> None:
        """Ends the step after the update of the only optimizer, unless the user or a framework ends steps."""
        if not self.by_hand and not self.held and recorder.count() == 1:
            self.publish()

    def lower_lr(self, factor: float) -> None:
        """Multiplies all learning rates.

        Raises
        ------
        LookupError
            If no learning rate is known.
        """
        if self.recorder is None:
            raise LookupError("nothing was recorded yet")
        schedulers = [s for s in (reference() for reference in self.recorder.schedulers) if s is not None]
        lower_lr([optimizer for _, optimizer in self.recorder.living()], schedulers, factor)

    def optimizer_made(self, optimizer: Any) -> None:
        """Registers a new optimizer, unless it may belong to the process's next training."""
        steps = self.clock.mode_steps[_TRAIN] - self.clock.first_train_step
        if self.next_training is None or not self.next_training.takes(optimizer, self.names, steps):
            super().optimizer_made(optimizer)

    def others_train(self, model: Any) -> list[Any] | None:
        """Called when a model is about to be called, after optimizers were made that may belong to the next training.

        Returns them if the call begins that training.
        """
        step = self.step
        if self.next_training is None or not model.training or not torch.is_grad_enabled() or not self.mine():
            return None
        made, trains = self.next_training.take(model)
        within = step is not None and step.mode == _TRAIN and step.forwards > 0 and not step.decided
        if trains and not (within or self.by_hand or self.held or self.called.knows(model)):
            return made
        for optimizer in made:
            super().optimizer_made(optimizer)
        return None

    # Steps counted by hand -----------------------------------------------------------------------------------------

    def next_step(self, mode: int | None, update: int | None) -> None:
        """Ends the open step and begins the next; from now on steps are counted by hand."""
        self.by_hand = True
        self.ensure_session()
        if self.step is not None:
            self.step.decided = True
            if update is not None:
                self.step.update = update
            self.publish_step(self.step)
        step = Step(mode or self.writer.forced or _TRAIN)
        step.decided = True
        step.events, self._early = self._early, []
        self.step = step
        self._begin(step)
        if self.modules is not None:
            self.modules.begin_step(self.due)

    def end_step(self) -> None:
        """Ends a step of a framework's loop; an evaluation inside it is published first."""
        for _ in range(2):
            step = self.step
            if step is not None and (step.decided or self.suspended is not None):
                self.publish_step(step)

    def end_evaluation(self) -> None:
        """Marks a step of an evaluation in a framework's loop as ended; it stays open until the next step begins."""
        if self.step is not None:
            self.step.ended = True

    def take_over(self, parent: Machine) -> None:
        """Takes over the parent's optimizers, but not its session, in a forked child."""
        if parent.recorder is not None:
            for _, optimizer in parent.recorder.living():
                self.optimizer_made(optimizer)
