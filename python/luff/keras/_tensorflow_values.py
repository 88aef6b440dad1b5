"""Records values of trainings on TensorFlow."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from luff._codes import GapReason, Mode, Role
from luff.keras._held import Held
from luff.keras._optimizers import Known, state_of
from luff.keras._table import Spec
from luff.keras._tensorflow import Kept, Rows, array_of, kept_of, record_row
from luff.keras._tensorflow_graphs import graph_key, in_graph, in_xla
from luff.keras._tensorflow_ring import Ring, Row
from luff.keras._values import Values

if TYPE_CHECKING:
    from luff.keras._hook import Callback

__all__ = ["TensorFlowValues"]

_WEIGHTS = (int(Role.WEIGHT), int(Role.BIAS), int(Role.BUFFER))
_TRAIN = int(Mode.TRAIN)
_GRADIENT = int(Role.GRADIENT)
_INSIDE = (int(Role.INPUT), int(Role.OUTPUT))
_NOT_SEEN, _COMPILED = int(GapReason.NOT_SEEN), int(GapReason.COMPILED_GRAPH)
_NO_ID = 0xFFFFFFFF
_TOLERANCE_NS = 1_000_000  # tolerated difference between the clocks of Python and TensorFlow
_LOOK = 64  # a model's variables are listed again once in 64 reads


class TensorFlowValues(Values):
    """Records the values of one hook."""

    def __init__(self, hook: Callback) -> None:
        super().__init__(hook)
        self._rows: dict[int, tuple[Any, int, Rows]] = {}
        self._looks = 0
        self._now: Kept | None = None
        self._used: weakref.WeakSet[Kept] = weakref.WeakSet()
        self._missing = False  # whether the weights of this step are still to be captured
        self._loop_variables: list[Any] = []
        # only process: several ranks that agree on a stop must know each other's progress
        self._alone = (hook.rank() or (0, 1))[1] == 1
        self._updater = 0  # number of the optimizer of the waiting steps
        self._ring: Ring | None = None  # ring of the waiting steps, and what it has noted of them
        self._held_rows: list[Row] = []
        self._together: list[tuple[Spec, Any, int | None]] | None = None  # gradients of one update

    # Waiting steps -----------------------------------------------------------------------------------------------

    def holder(self, model: Any, mode: int) -> Any:
        """Returns what the graph of the model keeps, if its numbers may be read later."""
        if mode != _TRAIN or not self._alone:
            return None
        kept = kept_of(model, mode)
        return self._waiting(kept) if kept.waits(self.total_name.get(mode, "")) else None

    def holder_of(self, function: Any) -> Kept | None:
        """Returns the same for a function that contains a loop's step."""
        kept = kept_of(function, _TRAIN)
        return self._waiting(kept) if self._alone and kept.waits() else None

    def _waiting(self, kept: Kept) -> Kept:
        optimizer = kept.optimizer()
        if optimizer is not None:  # the optimizer may be gone when the waiting steps are recorded
            self._updater = self.optimizers.of(optimizer).number
        return kept

    def before_held(self, holder: Kept, until_ns: int) -> None:
        """Reads what the graph has noted of the steps that ended until then."""
        self._ring, self._held_rows = holder.news(until_ns)
        self._held_rows.reverse()

    def numbers(self, held: Held, holder: Kept) -> None:
        """Records loss, learning rate and updates of a waiting step: those noted before its end."""
        ring, rows, row = self._ring, self._held_rows, None
        if ring is None:
            return
        while rows and rows[-1].time_ns <= held.ended_ns:
            row = rows.pop()
            self.hook.steps.updated(self._updater)
        if row is not None and row.time_ns >= held.began_ns - _TOLERANCE_NS:
            record_row(self.arrays, ring, row)
            self.session.waited(holder.waited_ns(row))
        else:
            holder.surprised()
            self.session.gap(_NO_ID, _NOT_SEEN, 0, 1)

    # Around a step -----------------------------------------------------------------------------------------------

    def before(self, model: Any, mode: int) -> None:
        """Captures the weights that the step uses."""
        self.begin(kept_of(model, mode))
        if not self._due():
            return
        self._missing = not (model.built and self.weights(model))

    def begin(self, kept: Kept | None) -> None:
        """Begins a step whose graphs keep their values in `kept`."""
        self.fresh()
        self._now = kept
        if kept is not None:
            self._used.add(kept)
            kept.begin(self.session)
        self._missing = False

    def begin_loop(self, kept: Kept | None, variables: list[Any]) -> None:
        """Begins a step of the user's own training loop."""
        self.begin(kept)
        self._missing = self._due()
        if self._missing and variables:
            self._missing = not self.variables(variables)

    def left(self) -> Iterable[tuple[Any, int, int]]:
        """Captures what the graphs of the step have kept."""
        kept, self._now = self._now, None
        if self._missing:
            self.session.gap(_NO_ID, _NOT_SEEN, self.session.due_role(_WEIGHTS[0]), 1)
            self._missing = False
        if kept is None:
            return ()
        self.compiled = kept.compiled
        self.has_loss = self.has_loss or any(kept.has(name) for name in self.total_name.values())
        done = kept.capture(self.arrays)
        self.session.waited(kept.waited_ns())
        return done

    def wait_begins(self) -> Any:
        """Makes the graph of a TRAIN step read the clock before it asks for its batch."""
        if self._now is None or self.hook.steps.mode != _TRAIN or in_xla() or self.replicas() != 1:
            return None
        return self._now.wait_begins()

    def wait_ends(self, began: Any, batch: Any) -> None:
        """Makes it note for how long it has waited."""
        if self._now is not None:
            self._now.wait_ends(began, batch)

    def rest(self) -> None:
        """Makes graphs keep no more arrays, since the run has ended."""
        if not in_graph():
            for kept in list(self._used):
                kept.rest()

    def weights(self, model: Any) -> bool:
        """Captures the variables of a model as they are now; returns False if they have no values yet."""
        known = self._rows.get(id(model))
        if known is not None and known[0]() is model:
            self._looks += 1
            if self._looks % _LOOK:
                return known[2].capture()
        variables = model.variables  # this costs more than reading them all
        if known is None or known[0]() is not model or known[1] != len(variables):
            self.hook.learn(model)
            known = self._rows[id(model)] = (weakref.ref(model), len(variables), self._rows_of(variables))
        return known[2].capture()

    def variables(self, variables: list[Any]) -> bool:
        """Captures variables, with all variables of known models; returns False if one has no value."""
        models = [model for model, _ in self.hook.names.models()]
        mine = {id(v) for model in models for v in model.variables}
        if not all(self.weights(model) for model in models):
            return False
        others = [v for v in variables if id(v) not in mine]
        if others:
            key, size = id(self), len(others)
            known = self._rows.get(key)
            if known is None or known[1] != size or self._loop_variables != [id(v) for v in others]:
                self._loop_variables = [id(v) for v in others]
                known = self._rows[key] = (lambda: None, size, self._rows_of(others))
            return known[2].capture()
        return True

    def state(self, known: Known, optimizer: Any) -> None:
        """Captures the state that an optimizer keeps for its variables."""
        pairs = state_of(known, optimizer)
        found = self._rows.get(id(optimizer))
        if found is None or found[0]() is not optimizer or found[1] != len(pairs):
            found = (weakref.ref(optimizer), len(pairs), Rows(self.arrays, pairs))
            self._rows[id(optimizer)] = found
        found[2].capture()

    def tracked(self, tracker: Any) -> tuple[float, float]:
        """Returns sum and count of a mean."""
        return float(tracker.total.value.numpy()), float(tracker.count.value.numpy())

    def _rows_of(self, variables: list[Any]) -> Rows:
        owners = []
        for variable in variables:
            name = self.hook.names.of(variable)
            owners.append((variable, Spec(name.name, name.role, name.path, name.kind)))
        return Rows(self.arrays, owners)

    def _due(self) -> bool:
        return any(self.session.due_role(role) for role in _WEIGHTS)

    # While a step is computed, or its graph is traced --------------------------------------------------------------

    def graph(self) -> int:
        """Identifies the graph being traced."""
        return graph_key()

    def scores(self, y_pred: Any, kind: str) -> Any:
        """Returns the input of a softmax or sigmoid for losses that take scores: Keras uses it, too."""
        if kind not in ("CrossEntropyLoss", "BCEWithLogitsLoss"):
            return y_pred
        behind = getattr(y_pred, "_keras_logits", None)
        if behind is not None:
            return behind
        operation = getattr(y_pred, "op", None) if in_graph() else None
        wanted = "Softmax" if kind == "CrossEntropyLoss" else "Sigmoid"
        return operation.inputs[0] if operation is not None and operation.type == wanted else y_pred

    def replicas(self) -> int:
        """Returns how many replicas compute a step."""
        return int(tf.distribute.get_strategy().num_replicas_in_sync)

    def array(self, value: Any) -> Any:
        """Converts an eager tensor to an array."""
        return array_of(value)

    def gradients(self, optimizer: Any, pairs: Iterable[tuple[Any, Any]], rate: Any) -> None:
        """Records the gradients that an optimizer applies."""
        pairs = list(pairs)
        model = self.hook.training_model()
        if model is not None and model.built:
            self.hook.learn(model)
        if self._missing:
            self._first_weights(model, [variable for _, variable in pairs])
        if in_graph():
            if self._now is None:
                return
            self._now.count(optimizer)
        self._together = []
        try:
            super().gradients(optimizer, pairs, rate)
        finally:
            together, self._together = self._together, None
        if together and self._now is not None:
            self._now.keep_where_due(self.session, _GRADIENT, together)
        if in_graph() and self._now is not None and self._notes(optimizer):
            self._now.note_update(optimizer)

    def _notes(self, optimizer: Any) -> bool:
        return not in_xla() and not optimizer.gradient_accumulation_steps and self.replicas() == 1

    def put(self, spec: Spec, value: Any, owner: Any = None, scalar: bool = False) -> None:
        """Makes the graph keep the value, or captures it."""
        if in_graph():
            now = self._now
            if now is None:
                return
            if in_xla():
                now.compiled = True
            elif spec.role in _INSIDE and self.hook.steps.mode != _TRAIN:
                # keeping it would prevent its fusion with what follows and change the last bits
                now.refuse(spec, _COMPILED)
            else:
                key = None if owner is None else now.count(owner)
                if scalar:
                    now.keep(spec, value, key, scalar)
                elif self._together is not None:
                    self._together.append((spec, value, key))
                else:
                    now.keep_where_due(self.session, spec.role, [(spec, value, key)])
        elif scalar:
            self.scalar(spec, value)
        else:
            self.capture(spec, array_of(value))

    def _first_weights(self, model: Any, variables: list[Any]) -> None:
        """Captures variables that the first step has just created, as they are before its update."""
        with tf.init_scope():
            self._missing = not (self.weights(model) if model is not None else self.variables(variables))
