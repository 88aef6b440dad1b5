"""Evidence that rules need in addition to tensors: losses, samples, and facts about a
step (docs/spec/evidence.md).
"""

from __future__ import annotations

import time
from typing import Any

from luff import _codes as codes
from luff._codes import EventKind, Mode, Role
from luff._hook import Session
from luff.torch.capture._device import record_number, scalar_of
from luff.torch.capture._memory import float_bits, read_scalar
from luff.torch.capture._recorder import OptimizerRecord
from luff.torch.evidence._accumulated import Accumulated
from luff.torch.evidence._adversaries import Adversaries
from luff.torch.evidence._answers import Answers
from luff.torch.evidence._asked import Asked
from luff.torch.evidence._attention import Attention
from luff.torch.evidence._averages import Averages
from luff.torch.evidence._causal import Causal
from luff.torch.evidence._checkpoints import Loads
from luff.torch.evidence._datasets import Datasets
from luff.torch.evidence._early_ends import EarlyEnds
from luff.torch.evidence._graph_values import GraphValues
from luff.torch.evidence._handed_gradients import HandedGradients
from luff.torch.evidence._kept_gradients import KeptGradients
from luff.torch.evidence._losses import Losses
from luff.torch.evidence._mixing import Mixing
from luff.torch.evidence._nonfinite import NonFinite
from luff.torch.evidence._padding import Padding
from luff.torch.evidence._places import Places
from luff.torch.evidence._random_masks import RandomMasks
from luff.torch.evidence._reach import Reach
from luff.torch.evidence._rounding import Rounding
from luff.torch.evidence._samples import Samples
from luff.torch.evidence._set_back import SetBack
from luff.torch.evidence._set_weights import SetWeights
from luff.torch.evidence._statistics import Statistics
from luff.torch.evidence._step import Step, StepContext
from luff.torch.evidence._unused_passes import UnusedPasses
from luff.torch.evidence._unused_results import UnusedResults
from luff.torch.evidence._written_losses import WrittenLosses

__all__ = ["Evidence"]

_TRAIN, _SETTING = int(Mode.TRAIN), int(Role.OPTIMIZER_SETTING)
_ATTENTION = 1 << Role.ATTENTION  # as `StepContext.due` has it
_CLIP_GRAD, _GRADIENT_KEPT = int(EventKind.CLIP_GRAD), int(EventKind.GRADIENT_KEPT)
_MAX_CLIPS = 8  # in one step
_WAIT_S = 2.0  # longest wait for children at the end of the run
_MAX_CHANGES = 32  # changes of optimizers and parameters after which leaves are searched again


class Evidence:
    """Collects evidence and records it when a step ends, under the hook's lock and guard."""

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self._kept: KeptGradients | None = None
        self._reach = Reach()
        self._generation = -1  # of the recorder, at the last search for leaves
        self._changes = 0
        self.nonfinite = NonFinite(context)
        self.loads = Loads()
        self._opened: list[Asked] = []  # questions whose answers may come
        self.causal = Causal(self._opened)
        self.mixing = Mixing(self._opened)
        self.padding = Padding(self._opened)
        self.places = Places(self._opened)
        self.masks = RandomMasks(self._opened)
        self.datasets = Datasets(context.clock, self._opened)
        written = WrittenLosses(context)
        self.passes = UnusedPasses()
        self.answers = Answers(context, written, self.passes, self.causal, self.places)
        self.samples = Samples(context, self.causal, self.mixing, self.answers)
        self.losses = Losses(context, self.samples, self.nonfinite, written)
        self.accumulated = Accumulated()
        self.attention = Attention(context)
        self._graph_values = GraphValues()
        self._pairs = self.answers.batches.pairs
        self._pairs.waiting = self._graph_values.first_axis.waiting  # one list fewer that each step looks at
        self._rounding = Rounding()
        self._handed = HandedGradients()
        self._set_back = SetBack()
        self._early = EarlyEnds()
        self._set = SetWeights()
        self._set_back.waiting = self._early.waiting = self._set.waiting = self._handed.waiting  # likewise
        self._source = UnusedResults()
        self._source.waiting = self._handed.waiting
        #: Numbers of the optimizers of which these ask something yet.
        self._looked: set[int] = set()
        self.statistics = Statistics()
        self.averages = Averages()
        self._adversaries = Adversaries(context, self.accumulated)
        self._events = (
            self._rounding,
            self._handed,
            self.statistics,
            self.averages,
            self.accumulated,
            self.losses.inputs,
            self.losses.rows,
            self.losses.arguments,
            self.losses.formula,
            self._graph_values,
            self.losses.pairs,
            self.losses.terms,
            self._adversaries,
            self.passes,
            self._graph_values.layers,
            self._graph_values.single,
            self._graph_values.first_axis,
            self._graph_values.axes,
            self._graph_values.norms,
        )
        self._waiting = [evidence.waiting for evidence in self._events]

    def opened(self, session: Session) -> None:
        """Called when the session is open."""
        self._kept = KeptGradients(session)
        self.nonfinite.opened(session)

    def backward_begins(self, roots: list[Any]) -> None:
        """Called when a backward pass begins; its graph still exists."""
        if self._kept is not None and self._kept.marked:
            self._kept.backward_begins()
        if self.nonfinite.suspect:
            self.nonfinite.backward_begins(roots)
        context, clock = self._context, self._context.clock
        if context.recorder is not None and context.recorder.generation != self._generation:
            self._generation = context.recorder.generation
            if self._changes < _MAX_CHANGES:
                self._changes += 1
                context.looked_from = clock.mode_steps[_TRAIN]
                self.losses.formula.phase_begins()
                self._adversaries.begins(context.looked_from, context.recorder.count())
        since = clock.mode_steps[_TRAIN] - context.looked_from
        if not since & (since - 1) or self._reach.reached is not None:
            self._reach.begins(roots, context.called.models())
            if self._source.on:
                self._source.look(context.called.models())
            if self.losses.terms.on:
                self.losses.terms.backward_begins(roots, context.saved_hooks)
        self.accumulated.backward_begins(context.step, roots, self.losses, context.called.models)
        if self.passes.on:
            self.passes.backward_begins(context.step, roots)
        if context.step is not None and context.step.samples:
            step = clock.mode_steps[_TRAIN] - clock.first_train_step
            nodes: list[Any] = []
            if self._pairs.on and not context.saved_hooks:
                self._pairs.backward_begins(roots)
            if context.saved_hooks:
                self.mixing.leave_out()
            elif self._graph_values.due(step) or self.mixing.due:
                nodes = self._graph_values.backward_begins(roots, context.names)
                if self.mixing.due:
                    self.mixing.backward_begins(nodes)
            if self.causal.due:
                self.causal.backward_begins()
            if self.padding.due:
                self.padding.backward_begins(nodes)
            if self.places.due:
                self.places.backward_begins(readable=not context.saved_hooks)

    def loader_started(self, iterator: Any) -> None:
        """Called when a loader was started."""
        self._set_back.loader_started()
        self._looked |= self._set_back.due
        self._early.loader_started(iterator)
        self.datasets.loader_started(iterator)
        if self._source.began and self._source.on:
            self._source.look([])

    def model_returned(self, module: Any, args: tuple[Any, ...], output: Any) -> None:
        """Called when the outermost call of a model has returned, while any hook looks for adversaries."""
        step = self._context.step
        if self._adversaries.on and step is not None and self._context.called.knows(module):
            self._adversaries.model_returned(module, args, output, step.mode == _TRAIN or step.may_train)

    def backward_ended(self) -> None:
        """Called when a backward pass has ended."""
        if self._kept is not None and self._kept.marked:
            self._kept.backward_ended()
        if self._reach.reached is not None:
            self._reach.ended(self._context.called.models())
        if self.accumulated.count > 1:
            self.accumulated.backward_ended()
        if self._adversaries.on:
            self._adversaries.backward_ended()

    def update_begins(self, record: OptimizerRecord, optimizer: Any) -> None:
        """Called when an optimizer is about to use its gradients."""
        if self.accumulated.count > 1:
            self.accumulated.update_begins(record.number)
        if self._adversaries.on:
            self._adversaries.update_begins()
        update = self._context.clock.update_of(record.number)
        if not record.updates:
            self.loads.begins(optimizer)
            self._set_back.begins(record.number, optimizer, update)
            self._set.on = True
            self._looked.add(record.number)
            if self._source.on:
                self._source.look(self._context.called.models())
        if self._rounding.pending or not update & (update - 1):
            self._rounding.update_begins(record.number, update, optimizer, self._context)
        if record.number in self._looked:
            self._look(record, optimizer, update)
        if self._kept is None or not self._kept.marked:
            return
        count = self._kept.update_begins(record)
        if count:
            self._context.event(_GRADIENT_KEPT, record.number, count)

    def _look(self, record: OptimizerRecord, optimizer: Any, update: int) -> None:
        """Looks at an update of an optimizer of which something is still asked."""
        number, recorder = record.number, self._context.recorder
        if record.updates and number in self._set_back.due:
            self._set_back.look(number, update, self.loads.written(number))
        if update and not update & (update - 1) and not self._early.over:
            self._early.update_begins(update)
        if recorder is None:
            return
        if number not in self._handed.over:
            self._handed.update_begins(record, optimizer, recorder.of_called)
        if self._set.on:
            self._set.update_begins(record, recorder.count() > 1)
        asked = number not in self._handed.over or number in self._set_back.due
        if not asked and self._early.over and not self._set.on:
            self._looked.discard(number)

    def update_ended(self, record: OptimizerRecord, optimizer: Any, in_backward: bool) -> None:
        """Called when an optimizer has used its gradients."""
        self.accumulated.update_ended()
        self.loads.updated(record.number, optimizer)
        if self._set.on:
            self._set.update_ended(record, optimizer)
        if in_backward:
            self._reach.spoiled = True
        elif self._kept is not None:
            self._kept.update_ended(record, optimizer)

    def clipped(self, limit: Any, norm: Any) -> None:
        """Called when gradients were clipped. `norm` is the total norm before, if the function returned it."""
        context, step = self._context, self._context.step
        value = float(limit) if isinstance(limit, int | float) else read_scalar(limit)
        context.event(_CLIP_GRAD, codes.NO_ID, 0 if value is None else float_bits(value))
        session, recorder = context.session, context.recorder
        if session is None or recorder is None or step is None or not (step.begun and step.decided):
            return
        step.clips += 1
        if step.clips > _MAX_CLIPS:
            return
        suffix = "" if step.clips == 1 else f"_{step.clips}"
        for name, number in (("norm", scalar_of(norm)), ("limit", value)):
            if number is not None:
                named = recorder.number(f"clip/{name}{suffix}", _SETTING)
                record_number(session, recorder.layouts, named, number)

    def publish(self, step: Step, session: Session) -> None:
        """Records evidence at the end of a step."""
        if self.loads.waiting:
            self.loads.record(session)
        if self._context.due & _ATTENTION:
            self.attention.record(session, step)
        if step.mode != _TRAIN:
            self.answers.record(step)
            return
        if self.nonfinite.open:
            self.nonfinite.publish(session)
        if self.passes.on and step.samples:
            self.passes.step_ended(step, self._context.names)
        if self._opened:
            for asked in self._opened.copy():
                asked.record(session)
        if any(self._waiting):
            for evidence in self._events:
                evidence.record(session)
        if self._reach.reached is not None and self._context.recorder is not None:
            self._reach.record(session, self._context.names, self._context.recorder.living())
            self._look_at_terms()

    def _look_at_terms(self) -> None:
        """Asks whether what a step's backward passes did not reach has a loss without a graph."""
        terms, context, left = self.losses.terms, self._context, self._reach.left
        self._reach.left = None
        if left is None:
            return
        terms.looked(left, context.called.models(), context.names)
        if context.modules is not None:
            context.modules.watched = terms.returned if terms.on else None

    def finish(self, session: Session) -> None:
        """Waits for the answers of children at the end of the run, for a bounded time that all of them share."""
        until = time.monotonic() + _WAIT_S
        self._adversaries.rest()
        self.nonfinite.publish(session, until)
        for asked in (self.causal, self.mixing, self.padding, self.places, self.masks, self.datasets):
            asked.record(session, until)

    def forget_calls(self) -> None:
        """Lets go of the arguments that questions to models need, at the end of a step without a backward pass."""
        for asked in (self.causal, self.mixing, self.padding, self.places):
            asked.begins(-1)
