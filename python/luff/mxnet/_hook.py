"""The hook of MXNet: makes steps, updates and modes from the calls that the wrappers see.

A TRAIN step consists of the forward passes under `autograd.record` since the last backward pass, and of the backward
passes until the next forward pass. Everything that a step needs from the asynchronous engine is read at one point:
just before the update, when weights are those of the forward pass and gradients those of the backward pass, or,
without an update, when the next step begins. Outputs of layers are read at once, and only if they are due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import mxnet
from mxnet import autograd, gluon

from luff import corrections
from luff._codes import NO_ID, EventKind, GapReason, Mode, Role
from luff._hook import RunOptions, Session
from luff._step_hook import StepHook
from luff._weak import Identities
from luff.mxnet._arrays import Reader, arrays_in
from luff.mxnet._evidence import Evidence
from luff.mxnet._model import Models, describe, torch_name
from luff.mxnet._optimizer import Optimizer

__all__ = ["Hook"]

_TRAIN, _EVAL = int(Mode.TRAIN), int(Mode.EVAL)
_FORWARD, _BACKWARD, _BATCH = int(EventKind.FORWARD), int(EventKind.BACKWARD), int(EventKind.BATCH)
_SKIPPED = int(EventKind.STEP_SKIPPED)
_WEIGHT, _BIAS, _GRADIENT, _BUFFER = int(Role.WEIGHT), int(Role.BIAS), int(Role.GRADIENT), int(Role.BUFFER)
_INPUT, _OUTPUT, _LOSS = int(Role.INPUT), int(Role.OUTPUT), int(Role.LOSS)
_LOSS_INPUT, _LABEL = int(Role.LOSS_INPUT), int(Role.LABEL)
_ROLES = (_WEIGHT, _BIAS, _BUFFER)
_TRAINING, _SOME_TRAIN, _SOME_EVAL, _GRADIENTS, _TOLD = 1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12
_MAX_CALLS = 64  # of one block or loss in one step
_MAX_DESCRIPTIONS = 64
_COMPILED, _NOT_SEEN = int(GapReason.COMPILED_GRAPH), int(GapReason.NOT_SEEN)
_DEPENDS = (gluon.nn.Dropout, gluon.nn.BatchNorm)


class _Step:
    """State of the open step."""

    def __init__(self, recording: bool) -> None:
        self.recording = recording
        self.forwards = 0
        self.backward = False
        self.updated = False
        self.weights = False  # whether they have been recorded
        self.gradients: set[int] = set()  # ids of the trainers whose gradients have been recorded
        self.losses: list[tuple[int, Any]] = []  # numbers and values to be read
        self.calls: dict[str, int] = {}  # number of values named so far, by block or loss
        self.inputs = self.outputs = False  # whether they are due
        self.hidden = False  # whether a gap says that a graph hides its layers


class Hook(StepHook):
    """Watches one training, and records it into one run.

    Parameters
    ----------
    options
        Path of the run, and its capture configuration.
    nets
        The models; without any, whatever is trained.
    """

    framework = "mxnet"

    def __init__(
        self,
        options: RunOptions,
        nets: Iterable[gluon.Block] = (),
        on_stop: Callable[[], object] | None = None,
        correct: corrections.Corrections | None = None,
    ) -> None:
        super().__init__(options, on_stop, correct)
        self._models = Models()
        self._optimizers: Identities[Optimizer] = Identities()  # by trainer
        self._optimizer_names: list[str] = []
        self.reader: Reader | None = None
        self._evidence = Evidence()
        self._step: _Step | None = None
        self._losses: dict[str, Any] = {}
        self._descriptions = 0
        self._stale = True
        self._accumulates = False  # a TRAIN step has ended without an update although there is a trainer
        self._kinds: Identities[tuple[bool, bool]] = Identities()  # by model
        for net in nets:
            self._models.add(net)

    # Overrides of BaseHook -------------------------------------------------------------------------------------

    def versions(self) -> dict[str, Any]:
        """Returns MXNet's version."""
        return {"mxnet": mxnet.__version__}

    def opened(self, session: Session) -> None:  # noqa: ARG002
        """Makes the reader of arrays."""
        if self.steps.arrays is not None:
            self.reader = Reader(self.steps.arrays)

    def forked(self) -> None:
        """Makes a forked child a worker of its own, from its first training step on."""
        super().forked()
        self._step, self.reader = None, None
        self._evidence = Evidence()
        self._stale, self._descriptions = True, 0
        for parameter in self._models.parameters.values():
            parameter.value = parameter.gradient = -1

    def begin_again(self) -> None:
        """Ends the run before another training, which has its own."""
        super().begin_again()
        self._models, self._optimizers, self._optimizer_names = Models(), Identities(), []
        self._evidence, self._losses, self._kinds = Evidence(), {}, Identities()
        self._stale, self._descriptions, self._accumulates = True, 0, False

    def hand_on(self) -> None:
        """Raises an error of the training itself: MXNet reports it only once, at the first wait for the array.

        Raises
        ------
        MXNetError
            The training's own error.
        """
        reader = self.reader
        if reader is not None and reader.failure is not None:
            failure, reader.failure = reader.failure, None
            raise failure

    def _lower_lr(self, factor: float) -> None:
        living = [
            trainer for trainer in (one.trainer for one in self._optimizers.values()) if trainer is not None
        ]
        if not living:
            raise LookupError("no gluon.Trainer is known to the hook")
        for trainer in living:
            scheduler = trainer._optimizer.lr_scheduler
            if scheduler is None:
                trainer.set_learning_rate(trainer.learning_rate * factor)
            else:
                scheduler.base_lr *= factor

    # Owners of blocks and trainers -----------------------------------------------------------------------------

    def owns(self, block: Any) -> bool:
        """Whether the block is a model of the hook, or a part of one."""
        return self._models.owns(block)

    def holds(self, trainer: Any) -> bool:
        """Whether the trainer updates a parameter of the hook's models, or was given to it."""
        if trainer in self._optimizers:
            return True
        if any(id(parameter) in self._models.parameters for parameter in trainer._params):
            return True
        self._models.refresh()
        return any(id(parameter) in self._models.parameters for parameter in trainer._params)

    def trainer(self, trainer: Any) -> Optimizer:
        """Returns the record of a trainer; a new one gets the next number."""
        found = self._optimizers.get(trainer)
        if found is None:
            found = self._optimizers[trainer] = Optimizer(
                trainer, len(self._optimizer_names), self._optimizer_names
            )
            self._optimizer_names.append(found.name)
            self._stale = True
        return found

    # Forward ---------------------------------------------------------------------------------------------------

    def forward_comes(self, block: Any) -> None:
        """Called before an outermost call of a model: publishes the previous step, if it is over."""
        step = self._step
        if step is not None and (step.backward or not step.recording):
            if step.recording and not autograd.is_recording() and self._awaits_update(step):
                return
            self._publish()
        if self._step is None and autograd.is_recording() and not self._following.knows(block):
            parameters = list(block.collect_params().values())
            if any(parameter.grad_req != "null" for parameter in parameters):  # else a part of another's loss
                self.trains(block, lambda: parameters)

    def turn_backward(self) -> bool:
        """Called before a backward pass. In a loop without blocks each one is a step. True if it published a step."""
        step = self._step
        over = step is not None and step.recording and step.backward and not step.forwards
        if over:
            self._publish()
        return over

    def forward_begins(self, block: Any, args: Any) -> bool:
        """Called when an outermost call of a model begins. Returns True if the calls inside it should be reported."""
        values = arrays_in(args)
        if not values:
            return False
        recording = autograd.is_recording()
        if self.session is None and not recording:
            return False  # nothing has been trained yet
        step = self._step
        if step is None:
            step = self._begin(recording)
            if step is None:
                return False
        elif step.recording and not recording:
            return False  # an evaluation inside a TRAIN step
        step.forwards += 1
        if not self._models.owns(block):
            self._models.add(block)
            self._stale = True
        if self._stale:
            self._name_all()
        if self.steps.mode == _TRAIN and not step.weights and not any(self._trained()):
            self._take_weights(step)
        self._events(block, values)
        self._evidence.model(self, block, values)
        return step.inputs or step.outputs or self._about(block)[1]

    def forward_ended(self, block: Any, args: Any, output: Any) -> None:
        """Called when an outermost call of a model has returned."""
        step = self._step
        if step is None or (step.recording and not autograd.is_recording()):
            return
        if step.inputs or step.outputs:
            self._layer(step, block, args, output)

    def inner_called(self, block: Any, args: Any, output: Any) -> None:
        """Called when a block inside a model has been called."""
        step = self._step
        if step is None:
            return
        if isinstance(block, gluon.loss.Loss):
            self.loss_called(block, args, output)
        elif step.inputs or step.outputs:
            self._layer(step, block, args, output)

    def loss_called(self, block: Any, args: Any, output: Any) -> None:
        """Records a loss that has been called."""
        values = arrays_in(output)
        if not values:
            return
        recording = autograd.is_recording()
        step = self._step
        if step is None and recording:
            step = self._begin(True)
        if step is None or step.recording != recording:
            return
        name = block.name
        if name not in self._losses and len(self._losses) < 64:
            self._losses[name] = block
            self._stale = True
        for value in values:
            self._loss(step, name, value, torch_name(block))
        self._evidence.loss(self, block, arrays_in(args))
        if self.session is not None and (self.session.due_role(_LOSS_INPUT) or self.session.due_role(_LABEL)):
            for index, value in enumerate(arrays_in(args)):
                role = _LOSS_INPUT if index == 0 else _LABEL
                self._value(f"{name}_input", step, value, role, "", torch_name(block))

    def _loss(self, step: _Step, name: str, value: Any, kind: str) -> None:
        index = step.calls.get(f"{name}_output", 0)
        step.calls[f"{name}_output"] = index + 1
        if index < _MAX_CALLS:
            number = self.steps.number(f"{name}_output_{index}", _LOSS, "", kind)
            step.losses.append((number, value))

    # Backward and update ---------------------------------------------------------------------------------------

    def backward_begins(self, heads: Any) -> None:
        """Called when a backward pass begins: the forward passes before it were training."""
        step = self._train_step()
        if step is None or self.session is None:
            return
        step.backward = True
        self.session.event(_BACKWARD)
        self._evidence.backward_begins(self)
        if not step.losses:
            for value in arrays_in(heads, 8):
                self._loss(step, "loss", value, "")

    def _train_step(self) -> _Step | None:
        """Returns the TRAIN step that a backward pass or an update belongs to."""
        step = self._step
        if step is not None and not step.recording:
            self._publish()
            step = None
        return self._begin(True) if step is None else step

    def update_begins(self, trainer: Any) -> None:
        """Records gradients before a trainer uses them."""
        optimizer = self.trainer(trainer)
        step = self._train_step()
        if step is None:
            return
        if self._stale:
            self._name_all()
        if optimizer.number not in step.gradients:
            step.gradients.add(optimizer.number)
            self._read(step)
            self._take_gradients(step, trainer._params)
            parameters = [known.parameter for known in self._models.parameters.values()]
            self._evidence.reach(self, self.steps.clock.mode_steps[_TRAIN], parameters)
            self._evidence.update_begins(self, optimizer, trainer._params)
        optimizer.begins()

    def update_ended(self, trainer: Any) -> None:
        """Called when a trainer has updated, or has skipped the update since gradients were not finite."""
        step, session = self._step, self.session
        if step is None or session is None:
            return
        optimizer = self.trainer(trainer)
        if not optimizer.has_updated():
            session.event(_SKIPPED, optimizer.number)
            step.updated = True
        else:
            self.steps.updated(optimizer.number)
            step.updated = True
            optimizer.settings(self)
            if self.reader is not None:
                optimizer.states(self, self.reader, self._models)
        if len(step.gradients) >= len({id(trainer) for trainer in self._trained()}):
            self._publish()

    # Values ----------------------------------------------------------------------------------------------------

    def _read(self, step: _Step) -> None:
        """Reads the losses of the step, and the weights unless they have been read already."""
        reader, session = self.reader, self.session
        if reader is None or session is None:
            return
        losses, step.losses = step.losses, []
        for number, value in losses:
            mean = reader.mean(value)
            if mean is None:
                session.gap(number, _NOT_SEEN, 0, 1)
            else:
                session.scalar(number, mean)
                reader.capture(number, value)
        if self.steps.mode == _TRAIN and not step.weights:
            self._take_weights(step)

    def _take_weights(self, step: _Step) -> None:
        session, reader = self.session, self.reader
        if session is None or reader is None:
            return
        due = {role for role in _ROLES if session.due_role(role)}
        complete = True
        for parameter in self._models.parameters.values():
            if parameter.role in due:
                data = parameter.data
                if data is None:
                    complete = False
                else:
                    reader.capture(parameter.value, data)
        step.weights = complete

    def _take_gradients(self, step: _Step, parameters: Iterable[Any]) -> None:
        session, reader = self.session, self.reader
        if session is None or reader is None or not step.backward or not session.due_role(_GRADIENT):
            return
        for each in parameters:
            known = self._models.parameters.get(id(each))
            # The update ignores a gradient that no backward pass has written since the last update.
            if known is not None and known.grad is not None and known.data._fresh_grad:
                if known.gradient < 0:
                    known.gradient = self.steps.number(
                        f"gradient/{known.name}", _GRADIENT, known.owner, known.kind
                    )
                reader.capture(known.gradient, known.grad)

    def _layer(self, step: _Step, block: Any, args: Any, output: Any) -> None:
        kind, path = torch_name(block), block.name
        if step.inputs:
            for value in arrays_in(args):
                self._value(f"{block.name}_input", step, value, _INPUT, path, kind)
        if step.outputs:
            for value in arrays_in(output):
                self._value(f"{block.name}_output", step, value, _OUTPUT, path, kind)
        if getattr(block, "_active", False) and block._children and not step.hidden:
            step.hidden = True
            if self.session is not None:
                forms = self.session.due_role(_INPUT) | self.session.due_role(_OUTPUT)
                self.session.gap(NO_ID, _COMPILED, forms, 1)

    def _value(self, base: str, step: _Step, value: Any, role: int, path: str, kind: str) -> None:
        index = step.calls.get(base, 0)
        step.calls[base] = index + 1
        if index < _MAX_CALLS and self.reader is not None:
            self.reader.capture(self.steps.number(f"{base}_{index}", role, path, kind), value)

    def _events(self, block: Any, values: list[Any]) -> None:
        session, reader = self.session, self.reader
        if session is None or reader is None:
            return
        number = self._models.numbers.get(block)
        number = NO_ID if number is None else number
        training = autograd.is_training()
        bits = self.steps.mode | _TOLD | (_TRAINING if training else 0)
        if self._about(block)[0]:
            bits |= _SOME_TRAIN if training else _SOME_EVAL
        session.event(_FORWARD, number, bits | (_GRADIENTS if autograd.is_recording() else 0))
        found = reader.hash(values[0])
        if found is not None:
            session.event(_BATCH, number, found)

    def _about(self, block: Any) -> tuple[bool, bool]:
        """Returns whether a layer of the model depends on the mode, and whether a block inside it is a loss."""
        known = self._kinds.get(block)
        if known is None:
            parts: list[Any] = []
            block.apply(parts.append)
            depends = any(isinstance(part, _DEPENDS) and getattr(part, "_rate", 1) > 0 for part in parts)
            known = (depends, any(isinstance(part, gluon.loss.Loss) for part in parts))
            self._kinds[block] = known
        return known

    # Steps -----------------------------------------------------------------------------------------------------

    def _begin(self, recording: bool) -> _Step | None:
        session = self.steps.begin(_TRAIN if recording else _EVAL)
        if session is None:
            return None
        step = self._step = _Step(recording)
        step.inputs, step.outputs = bool(session.due_role(_INPUT)), bool(session.due_role(_OUTPUT))
        self._evidence.begin(self)
        return step

    def _publish(self) -> None:
        step, self._step = self._step, None
        if step is None:
            return
        self._read(step)
        if step.backward and not step.updated:
            if any(self._trained()):
                self._accumulates = True
            self._take_gradients(
                step, [p.parameter for p in self._models.parameters.values() if p.parameter._trainer is None]
            )
        self.steps.end()

    def _finish(self) -> None:
        self._publish()
        super()._finish()

    def settle(self) -> None:
        """Publishes a step that otherwise only the next one would end."""
        self._publish()

    def abandon(self) -> None:
        """Drops the open step."""
        self._step = None
        super().abandon()

    def _awaits_update(self, step: _Step) -> bool:
        """Returns whether the update of a TRAIN step is still to come."""
        return step.backward and not step.updated and not self._accumulates and any(self._trained())

    def _trained(self) -> list[Any]:
        """Returns the trainers that hold parameters of the models."""
        found = {
            id(known.parameter._trainer): known.parameter._trainer
            for known in self._models.parameters.values()
            if known.parameter._trainer is not None
        }
        return list(found.values())

    def _name_all(self) -> None:
        """Names all parameters, and writes the document."""
        self._stale = False
        self._models.refresh()
        for known in self._models.parameters.values():
            known.value = self.steps.number(known.name, known.role, known.owner, known.kind)
        if self.session is not None and self._descriptions < _MAX_DESCRIPTIONS:
            self._descriptions += 1
            optimizers = [
                (one.number, one.name, one.trainer)
                for one in self._optimizers.values()
                if one.trainer is not None
            ]
            self.session.set_document("model", describe(self._models, optimizers, self._losses))
