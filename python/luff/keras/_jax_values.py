"""Records values of trainings on JAX: a compiled step returns what is recorded of it besides its own results.

While the step is traced, the gradients that Keras passes to the optimizer and the loss that it averages are
collected. Those that belong to the step's own trace (not to an inner one, of a gradient or a branch) become results
of the compiled function, and are removed before Keras sees them. There is no callback at run time, and nothing is
compiled twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from luff._codes import Role
from luff.keras._optimizers import Known, state_of
from luff.keras._table import Spec, Table
from luff.keras._values import Values

if TYPE_CHECKING:
    from luff.keras._hook import Callback

__all__ = ["KEY", "JaxValues", "Step"]

KEY = "luff"  # key of our results in the logs of a step
_GRADIENT, _LOSS = int(Role.GRADIENT), int(Role.LOSS)
_WEIGHTS = (int(Role.WEIGHT), int(Role.BIAS), int(Role.BUFFER))


def _array(value: Any) -> Any:
    """Returns an array of JAX without a copy on the CPU; None if this process does not have all of it."""
    if isinstance(value, jax.Array) and len(value.sharding.device_set) > 1:
        if not value.is_fully_replicated:
            return None
        value = value.addressable_data(0)
    return np.asarray(value)


class Step:
    """What the compiled function of one kind of step returns for us; determined while it is traced."""

    def __init__(self) -> None:
        self.specs: dict[
            str, tuple[Spec, Any, bool]
        ] = {}  # spec, the optimizer that must update, and whether it is a number
        self.scaled: str | None = None  # gradients are multiplied by the value of this name

    def results(self, collected: dict[str, tuple[Spec, Any, Any, bool]], state: Any) -> dict[str, Any]:
        """Returns those of the collected values that the function can return."""
        traces = {id(leaf._trace) for leaf in jax.tree_util.tree_leaves(state) if _is_tracer(leaf)}
        found = {}
        for name, (spec, value, owner, scalar) in collected.items():
            if not _is_tracer(value) or id(value._trace) in traces:
                found[name] = value
                self.specs[name] = (spec, owner, scalar)
        return found


def _place(optimizer: Any, inner: Any) -> int:
    """Returns the index of the count of updates among the variables of an optimizer."""
    return [variable is inner._iterations for variable in optimizer.variables].index(True)


def _is_tracer(value: Any) -> bool:
    return isinstance(value, jax.core.Tracer) and hasattr(value, "_trace")


class JaxValues(Values):
    """Records the values of one hook."""

    def __init__(self, hook: Callback) -> None:
        super().__init__(hook)
        self.collected: dict[str, tuple[Spec, Any, Any, bool]] | None = None  # set while a step is traced
        self._step_outputs: tuple[Step, dict[str, Any], Any, Any] | None = None
        self._seen: dict[int, int] = {}  # updates of each optimizer so far
        self._rows: dict[tuple[Any, ...], Table] = {}
        self._state: dict[int, Any] = {}  # state of optimizers, by variable

    def put(self, spec: Spec, value: Any, owner: Any = None, scalar: bool = False) -> None:
        """Collects a value for the results of the step."""
        if self.collected is not None:
            self.collected[spec.name] = (spec, getattr(value, "value", value), owner, scalar)

    def graph(self) -> int:
        """Returns 1: values arrive with the results of the step."""
        return 1

    def array(self, value: Any) -> Any:
        """Converts an array of JAX to NumPy."""
        return np.asarray(value)

    def traced(self) -> None:
        """Called when the trace of a step begins."""
        self.collected = {}
        self._calls.clear()
        self._losses.clear()

    def total(self, value: Any) -> None:
        """Collects the loss of a batch. Its parts belong to the trace of the gradient, so they are not recorded."""
        losses = self._losses.get(self.graph(), [])
        model = self.hook.training_model()
        single = len(losses) == 1 and not (model is not None and model.losses)
        name = losses[0] if single else f"loss_output_{self._count('loss')}"
        self.total_name[self.hook.steps.mode] = name
        self.put(Spec(name, _LOSS, "", name.rpartition("_output_")[0] if single else ""), value, scalar=True)

    def scaled_gradients(self, optimizer: Any, gradients: Any, scale: Any) -> None:
        """Collects gradients that the optimizer divides by a scale if they are finite."""
        inner = optimizer.inner_optimizer
        for gradient, variable in zip(gradients, inner._trainable_variables, strict=True):
            name = self.hook.names.of(variable)
            self.put(Spec(f"gradient/{name.name}", _GRADIENT, name.path, name.kind), gradient, inner)
        self.put(Spec("luff scale", 0), scale, None, scalar=True)

    # Called by the wrapper of a compiled step -----------------------------------------------------------------------

    def state_before(self, model: Any, state: Any) -> None:
        """Captures the variables that a step uses."""
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None and len(state) == 4:
            inner = getattr(optimizer, "inner_optimizer", optimizer)
            self._seen[id(inner)] = int(state[2][_place(optimizer, inner)])
        if any(self.session.due_role(role) for role in _WEIGHTS):
            self.hook.learn(model)
            self._variables(
                [*model.trainable_variables, *model.non_trainable_variables], [*state[0], *state[1]]
            )

    def state_after(self, step: Step, given: dict[str, Any], model: Any, state: Any) -> None:
        """Keeps the results of a step for `left`."""
        self._step_outputs = (step, given, model, state)

    def left(self) -> Iterable[tuple[Any, int, int]]:
        """Captures what the step has returned."""
        given, self._step_outputs = self._step_outputs, None
        if given is None:
            return
        step, values, model, state = given
        updated = set()
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None and len(state) == 4:
            inner = getattr(optimizer, "inner_optimizer", optimizer)
            count = int(state[2][_place(optimizer, inner)])
            every = int(inner.gradient_accumulation_steps or 1)
            seen = self._seen.get(id(inner), count)
            updates = count // every - seen // every
            if updates:
                updated.add(id(inner))
                if self.states:
                    self._state = dict(zip(map(id, optimizer.variables), state[2], strict=True))
            yield inner, updates, count - seen
        scale = values.get("luff scale")
        factor = 1.0 if scale is None else 1.0 / float(scale)
        gradients: list[tuple[Spec, Any]] = []
        others: list[tuple[Spec, Any]] = []
        for name, value in values.items():
            spec, owner, scalar = step.specs[name]
            if owner is not None and id(getattr(owner, "inner_optimizer", owner)) not in updated:
                continue
            if scalar:
                if spec.role:
                    self.scalar(spec, value)
                    self.has_loss = self.has_loss or spec.name in self.total_name.values()
            elif spec.role == _GRADIENT:
                gradients.append((spec, value))
            else:
                others.append((spec, value))
        self.compiled = not gradients
        self._capture(gradients, factor)
        self._capture(others)

    def _variables(self, variables: list[Any], values: list[Any]) -> None:
        rows = []
        for variable, value in zip(variables, values, strict=True):
            name = self.hook.names.of(variable)
            rows.append((Spec(name.name, name.role, name.path, name.kind), value))
        self._capture(rows)

    def _capture(self, rows: list[tuple[Spec, Any]], factor: float = 1.0) -> None:
        rows = [row for row in rows if self.session.due_role(row[0].role)]
        if not rows:
            return
        key = tuple(spec.name for spec, _ in rows)
        table = self._rows.get(key)
        if table is None:
            table = self._rows[key] = Table(self.arrays, [spec for spec, _ in rows])
        table.capture([_array(value) for _, value in rows], factor)

    def state(self, known: Known, optimizer: Any) -> None:
        """Captures the state that an optimizer keeps for its variables."""
        state, self._state = self._state, {}
        self._capture([(spec, state[id(v)]) for v, spec in state_of(known, optimizer) if id(v) in state])

    def tracked(self, tracker: Any) -> tuple[float, float]:
        """Returns sum and count of a mean; they are among the metrics variables while a step runs."""
        model = self.hook.training_model()
        state = getattr(model, "_jax_state", None) or {}
        values = state.get("metrics_variables")
        if values is None:
            return super().tracked(tracker)
        where = {id(v): value for v, value in zip(model.metrics_variables, values, strict=True)}
        return float(where[id(tracker.total)]), float(where[id(tracker.count)])
