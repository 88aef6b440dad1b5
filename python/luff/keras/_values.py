"""Records the values of a step on any backend: gradients, losses, samples, inputs and outputs of layers.

A backend decides how a value is recorded: captured at once if it is computed eagerly, otherwise kept by the graph or
returned by the compiled function.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from luff._codes import EventKind, GapReason, Mode, Role
from luff._hook import Session
from luff._rows import MAX_CALLS, MAX_TENSORS
from luff.keras._held import Held
from luff.keras._kinds import layer_kind, loss_kind, losses_of, output_kind
from luff.keras._optimizers import Known, Optimizers
from luff.keras._table import Spec, Table
from luff.keras._wanted import Wanted

if TYPE_CHECKING:
    from luff.keras._hook import Callback

__all__ = ["ARRAYS", "Values"]

_TRAIN = int(Mode.TRAIN)
_GRADIENT, _LOSS, _SAMPLE = int(Role.GRADIENT), int(Role.LOSS), int(Role.SAMPLE)
_INPUT, _OUTPUT = int(Role.INPUT), int(Role.OUTPUT)
_STATES = (int(Role.WEIGHT), int(Role.BIAS), int(Role.BUFFER), int(Role.OPTIMIZER_STATE))
ARRAYS = (*_STATES, _GRADIENT, _SAMPLE, _INPUT, _OUTPUT)
_COMPILED, _NOT_SEEN = int(GapReason.COMPILED_GRAPH), int(GapReason.NOT_SEEN)
_SKIPPED = int(EventKind.STEP_SKIPPED)
_NO_ID = 0xFFFFFFFF


class Values:
    """Records the values of one hook on one backend. Called under the hook's lock; errors are left to the caller."""

    def __init__(self, hook: Callback) -> None:
        if hook.steps.arrays is None:
            raise LookupError("no session is open")
        self.hook: Any = weakref.proxy(hook)  # a proxy, since the hook holds us and must be freed at once
        self.arrays = hook.steps.arrays
        self.session: Session = hook.steps.arrays.session
        self.wanted = Wanted(hook.config)
        self.optimizers = Optimizers()
        self.samples = self.wanted.role("sample")
        self.layers = self.wanted.role("input") or self.wanted.role("output")
        self.states = self.wanted.role("optimizer_state")
        self._tables: dict[str, Table] = {}
        self._calls: dict[tuple[int, str], int] = {}
        self._losses: dict[int, list[str]] = {}  # graph -> names of its losses
        self.total_name: dict[int, str] = {}  # mode -> name of the loss of a step
        self.has_gradient = self.has_loss = self.compiled = False
        self.gradient_count = 0  # number of gradients passed to optimizers in a compiled step
        self.eager = False  # whether the step's values were seen as they were computed
        self._tracker: tuple[Any, float, float] | None = None

    # Overridden by backends --------------------------------------------------------------------------------------

    def put(self, spec: Spec, value: Any, owner: Any = None, scalar: bool = False) -> None:
        """Records a value of the step being computed, or arranges that it will be recorded.

        Parameters
        ----------
        owner
            Optimizer that must update for the value to belong to the step.
        """
        raise NotImplementedError

    def graph(self) -> int:
        """Identifies the graph being traced; 0 means that values are available at once."""
        return 0

    def scores(self, y_pred: Any, kind: str) -> Any:  # noqa: ARG002
        """Returns what a loss works on, if that is not what it was given."""
        return y_pred

    def replicas(self) -> int:
        """Returns how many replicas compute a step."""
        return 1

    def array(self, value: Any) -> Any:
        """Converts a value of the backend to an array, without a copy if possible."""
        raise NotImplementedError

    def left(self) -> Iterable[tuple[Any, int, int]]:
        """Captures what a compiled step has left; yields (optimizer, updates, accumulated gradients) for each
        optimizer.
        """
        return ()

    def tracked(self, tracker: Any) -> tuple[float, float]:
        """Returns sum and count of a mean."""
        return float(self.array(tracker.total.value)), float(self.array(tracker.count.value))

    def holder(self, model: Any, mode: int) -> Any:  # noqa: ARG002
        """Returns what buffers the numbers of the model's next step, if everything it records may wait; else None."""
        return None

    def wait_begins(self) -> Any:
        """Makes the graph of a TRAIN step note when it asks for its batch; returns that time, or None."""
        return None

    def wait_ends(self, began: Any, batch: Any) -> None:
        """Makes it note when the batch is there."""

    def due(self) -> bool:
        """Whether arrays of the open step are due."""
        return any(map(self.session.due_role, ARRAYS))

    def before_held(self, holder: Any, until_ns: int) -> None:
        """Called before steps that have waited, and ended until then, are recorded."""

    def rest(self) -> None:
        """Called when the run has ended: no value is recorded any more."""

    def record_held(self, held: Held, holder: Any) -> None:
        """Records a step that has waited."""
        self.numbers(held, holder)
        self.metrics(held.metrics)

    def numbers(self, held: Held, holder: Any) -> None:
        """Records loss, learning rate and updates of a step that has waited."""

    def metrics(self, metrics: dict[str, Any]) -> None:
        """Records Keras' numbers for a batch."""
        for key, value in metrics.items():
            self.hook.steps.scalar(key, self.array(value) if hasattr(value, "shape") else value)

    # Around a step -----------------------------------------------------------------------------------------------

    def before(self, model: Any, mode: int) -> None:  # noqa: ARG002
        """Called when a step of a model begins: the weights are those that this step uses."""
        self.fresh()

    def fresh(self) -> None:
        """Forgets the previous step."""
        self._calls.clear()
        self._losses.clear()
        self.has_gradient = self.has_loss = self.compiled = self.eager = False
        for known, _ in self.optimizers.living():
            known.updates = 0

    def after(self, model: Any, mode: int) -> None:
        """Ends a step: records what it has left, and its updates."""
        skipped = False
        self.gradient_count = 0
        for optimizer, updates, gradients in self.left():
            if optimizer is None:
                continue
            known = self.optimizers.of(optimizer)
            self.gradient_count = max(self.gradient_count, gradients)
            self.has_gradient = self.has_gradient or (bool(updates) and not self.compiled)
            known.updates += updates
            if not gradients and mode == _TRAIN:
                skipped = True
                self.session.event(_SKIPPED, known.number)
            skipped = skipped or not updates
        if mode == _TRAIN and model is not None and not self.has_gradient and not skipped:
            skipped = self._held_back(model)
        for known, optimizer in self.optimizers.living():
            for _ in range(known.updates):
                self.hook.steps.updated(known.number)
            if known.updates and self.states:
                self.state(known, optimizer)
            known.updates = 0
        if mode == _TRAIN and not self.has_gradient and not skipped:
            due = self.session.due_role(_GRADIENT)
            if due:
                self.session.gap(_NO_ID, _COMPILED if self.compiled else _NOT_SEEN, due, 1)
        if not self.has_loss and model is not None:
            self._loss_of_tracker(model, mode)

    def _held_back(self, model: Any) -> bool:
        """Whether the optimizer has not updated for a known reason."""
        optimizer = getattr(model, "optimizer", None)
        if optimizer is None or self.compiled or not self.eager:
            return False
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        if inner is not optimizer:  # a gradient was not finite
            self.session.event(_SKIPPED, self.optimizers.of(inner).number)
            return True
        return bool(inner.gradient_accumulation_steps)

    def state(self, known: Known, optimizer: Any) -> None:
        """Captures the state that an optimizer keeps for its variables."""
        raise NotImplementedError

    # While a step is computed, or its graph is traced --------------------------------------------------------------

    def gradients(self, optimizer: Any, pairs: Iterable[tuple[Any, Any]], rate: Any) -> None:
        """Records the gradients that an optimizer applies."""
        known = self.optimizers.of(optimizer)
        for gradient, variable in pairs:
            if gradient is None:
                continue
            name = self.hook.names.of(variable)
            spec = Spec(f"gradient/{name.name}", _GRADIENT, name.path, name.kind)
            self.put(spec, gradient, optimizer)
        self.put(known.rate, rate, optimizer, scalar=True)
        if not self.graph():
            self.has_gradient = True
            known.updates += 1

    def loss_called(self, loss: Any, y_true: Any, y_pred: Any, result: Any) -> None:
        """Records a loss that was computed."""
        kind, graph = loss_kind(loss), self.graph()
        self.eager = self.eager or not graph
        call = self._count(kind)
        if call >= MAX_CALLS:
            return
        if len(getattr(result, "shape", (0,))) == 0:
            name = f"{kind}_output_{call}"
            if self.replicas() == 1 or self.hook.training_model() is None:
                self.put(Spec(name, _LOSS, "", kind), result, scalar=True)
            self._losses.setdefault(graph, []).append(name)
            self.has_loss = self.has_loss or not graph
        if self.samples:
            for index, value in ((0, self.scores(y_pred, kind)), (1, y_true)):
                if hasattr(value, "shape"):
                    spec = Spec(f"sample/{kind}_input_{2 * call + index}", _SAMPLE, "", kind)
                    self.put(spec, value)

    def has_losses(self) -> bool:
        """Whether a loss was computed in this step, or in the graph being traced."""
        return bool(self._losses.get(self.graph()))

    def total(self, value: Any) -> None:
        """Records the loss of a batch, the sum of all its parts."""
        losses = self._losses.get(self.graph(), [])
        model = self.hook.training_model()
        mode = self.hook.steps.mode
        if (
            self.replicas() > 1 and losses
        ):  # Keras scales what each replica adds to the loss, and reports the loss itself
            kind = losses[-1].rpartition("_output_")[0]
            self.total_name.setdefault(mode, losses[-1])
            self.put(Spec(losses[-1], _LOSS, "", kind), value, scalar=True)
            return
        if len(losses) == 1 and not (model is not None and model.losses):
            self.total_name[mode] = losses[0]
            return  # already recorded
        name = f"loss_output_{self._count('loss')}"
        self.total_name.setdefault(mode, name)
        if len(getattr(value, "shape", (0,))) == 0:
            self.put(Spec(name, _LOSS), value, scalar=True)
            self.has_loss = self.has_loss or not self.graph()

    def model_called(self, model: Any, inputs: list[Any]) -> None:
        """Records the inputs of a model that no other layer calls."""
        if self.samples:
            start = self._count(f"model {model.name}", len(inputs))
            for index, value in enumerate(inputs, start):
                if index < MAX_TENSORS:
                    kind = type(model).__name__
                    self.put(Spec(f"sample/{model.name}_input_{index}", _SAMPLE, "", kind), value)

    def layer_called(self, layer: Any, path: str, inputs: list[Any], outputs: list[Any]) -> None:
        """Records inputs and outputs of a layer if a collection asks for them."""
        for role, role_name, values, kind in (
            (_INPUT, "input", inputs, layer_kind(layer)),
            (_OUTPUT, "output", outputs, output_kind(layer)),
        ):
            stem = f"{path}/{role_name}s"
            for index, value in enumerate(values[:MAX_TENSORS]):
                name = stem if len(values) == 1 else f"{stem}_{index}"
                if self.wanted(name, role_name, kind):
                    call = self._count(name)
                    if call < MAX_CALLS:
                        name = name if call == 0 else f"{name}_call{call}"
                        self.put(Spec(name, role, path, kind), value)

    def _count(self, what: str, by: int = 1) -> int:
        key = (self.graph(), what)
        count = self._calls.get(key, 0)
        self._calls[key] = count + by
        return count

    def _loss_of_tracker(self, model: Any, mode: int) -> None:
        """Derives the loss of a compiled step from the running mean that Keras keeps; exact up to the mean's
        rounding.
        """
        tracker = getattr(model, "_loss_tracker", None)
        if tracker is None:
            return
        total, count = self.tracked(tracker)
        last = self._tracker
        same = last is not None and last[0] == (id(tracker), mode) and count > last[2]
        before = (last[1], last[2]) if same and last is not None else (0.0, 0.0)
        self._tracker = ((id(tracker), mode), total, count)
        if count > before[1]:
            value = (total - before[0]) / (count - before[1])
            name = self.total_name.get(mode) or self.total_name.setdefault(mode, _name_of_loss(model))
            kind = "" if name.startswith("loss") else name.rpartition("_output_")[0]
            self.session.scalar(self.arrays.number(name, _LOSS, "", kind), value)

    def capture(self, spec: Spec, array: Any) -> None:
        """Captures an array at once."""
        table = self._tables.get(spec.name)
        if table is None:
            table = self._tables[spec.name] = Table(self.arrays, [spec])
        table.capture([array])

    def scalar(self, spec: Spec, value: Any) -> None:
        """Records a number at once."""
        number = self.arrays.number(spec.name, spec.role, spec.path, spec.kind)
        self.session.scalar(number, float(value))


def _name_of_loss(model: Any) -> str:
    """Returns the name of the loss of a step whose graph was not seen."""
    losses = [] if model.losses else losses_of(model)
    return f"{loss_kind(losses[0])}_output_0" if len(losses) == 1 else "loss_output_0"
