"""TensorFlow: variables that are read in bulk between steps, and values that compiled graphs keep for Luff.

A compiled graph keeps a value by assigning it to a variable of Luff's own: there is no copy (the variable takes over
the tensor's memory), no Python at run time, and no changed result. After the step, one operation reads all of them.
Gradients are kept only in steps in which they are due, because memory that is kept is memory that the next step must
allocate again. Graphs that XLA compiles are left alone: there, keeping a value would change the instructions that
compute it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, execute

from luff._arrays import Arrays
from luff._codes import GapReason, Role
from luff._hook import Session
from luff.keras._table import Spec, Table, tell_missing
from luff.keras._tensorflow_graphs import aside, can_be_kept, graph_key, local, may_keep, may_tell_time
from luff.keras._tensorflow_keepers import Flag, Keeper, WaitClock
from luff.keras._tensorflow_ring import Ring, Row

__all__ = [
    "Kept",
    "Rows",
    "array_of",
    "kept_of",
    "record_row",
    "resource_of",
]

_LOSS = int(Role.LOSS)
_UNSUPPORTED = int(GapReason.UNSUPPORTED)
_ALIKE = 8  # steps in a row that must be alike before numbers are read later
_WARY = 1000  # additional steps that must be alike after one that was not


def resource_of(variable: Any) -> Any:
    """Returns the TensorFlow variable of a Keras variable, of the first replica."""
    value = getattr(variable, "_value", None)
    return local(variable if value is None else value)


def array_of(tensor: Any) -> Any:
    """Returns an eager tensor as an array, without a copy on the CPU."""
    tensor = local(tensor)
    if isinstance(tensor, tf.IndexedSlices):
        tensor = tensor.values
    found = tensor._numpy() if hasattr(tensor, "_numpy") else np.asarray(tensor)
    return found if isinstance(found, np.ndarray) else np.asarray(found)


class _Reader:
    """Reads variables: those of one device in a single operation, which no tape records."""

    def __init__(self, variables: list[Any]) -> None:
        self._count = len(variables)
        groups: dict[str, list[int]] = {}
        for index, variable in enumerate(variables):
            groups.setdefault(variable.handle.device, []).append(index)
        self._groups = [
            (
                places,
                [variables[index].handle for index in places],
                ("N", len(places), "dtypes", [variables[index].dtype.as_datatype_enum for index in places]),
            )
            for places in groups.values()
        ]

    def read(self) -> list[Any]:
        """Returns the values, as arrays that stay valid while they are held."""
        found: list[Any] = [None] * self._count
        now = context.context()
        for places, handles, attributes in self._groups:
            tensors = execute.execute(b"_ReadVariablesOp", len(handles), handles, attributes, now)
            for place, tensor in zip(places, tensors, strict=True):
                found[place] = array_of(tensor)
        return found


class Rows:
    """Variables whose values are captured in one call.

    Parameters
    ----------
    arrays
        Where their tensors are defined.
    owners
        (variable, spec of its tensor) pairs.
    """

    def __init__(self, arrays: Arrays, owners: list[tuple[Any, Spec]]) -> None:
        self._table = Table(arrays, [spec for _, spec in owners])
        variables = [resource_of(variable) for variable, _ in owners]
        self._reader = _Reader(variables)
        self._shapes: list[tuple[int, ...]] | None = [tuple(variable.shape) for variable in variables]

    def capture(self) -> bool:
        """Reads and captures the variables. If one has no value yet, captures nothing and returns False."""
        values = self._reader.read()
        if self._shapes is not None:  # a variable created by a graph is empty until the graph runs
            if any(value.shape != shape for value, shape in zip(values, self._shapes, strict=True)):
                return False
            self._shapes = None
        self._table.capture(values)
        return True


_Key = tuple[str, Any, int | None]  # name, dtype and owner of a kept value


@dataclass
class _Counter:
    """Counts the updates of an optimizer by the optimizer's own variable."""

    optimizer: Any  # weak reference
    variable: Any
    every: int  # number of gradients accumulated for one update
    seen: int


class Kept:
    """The values that the graphs of one kind of step keep; captures them after the step."""

    def __init__(self) -> None:
        self._keepers: dict[_Key, Keeper] = {}
        self._numbers: set[_Key] = set()  # keys of losses and learning rates
        self._refused: dict[str, tuple[Spec, int]] = {}  # values that are not kept, and why
        self._flags: dict[int, Flag] = {}  # by role
        self._rings: list[tuple[Ring, _Reader]] = []
        self._wait_clock: WaitClock | None = None
        self._waited_s = self._told_s = 0.0  # what it held when it was last read, and when a step was told
        self._traced: list[tuple[int, Spec, Any]] = []  # numbers kept by the graph being traced
        self._loose = False  # whether some numbers are in no ring
        self._alike = 0  # number of consecutive steps with one update, noted in the same ring
        self.counters: dict[int, _Counter] = {}
        self.compiled = False  # compiled by XLA: nothing is kept
        self._plan: _Reader | None = None  # reads the numbers
        self._values = _Reader([])
        self._roles: set[int] = set()
        self._arrays: Arrays | None = None
        self._session: Session | None = None
        self._table: Table | None = None
        self._order: tuple[list[Keeper], list[Keeper]] = ([], [])
        self._missing: list[tuple[int, int]] = []  # numbers of the refused tensors, and why

    def keep(self, spec: Spec, value: Any, owner: int | None = None, scalar: bool = False) -> None:
        """Makes the graph being traced keep a value.

        Parameters
        ----------
        owner
            Key of the counter of the optimizer that must have updated for the value to belong to this step.
        """
        if not may_keep():
            return
        for keeper, tensor in self._with_keepers([(spec, value, owner)], scalar):
            keeper.assign(tensor)
            if scalar:
                self._traced.append((graph_key(), spec, tensor))

    def keep_where_due(
        self, session: Session, role: int, values: Iterable[tuple[Spec, Any, int | None]]
    ) -> None:
        """Like `keep`, for values (with their owners) of one role, but only in steps in which the role is due."""
        if not may_keep():
            return
        pairs = self._with_keepers(values, False)
        if not pairs:
            return
        flag = self._flags.get(role)
        if flag is None:
            flag = self._flags[role] = Flag(bool(session.due_role(role)))

        def keep() -> None:
            for keeper, tensor in pairs:
                keeper.assign(tensor)

        with aside():
            tf.cond(flag.variable, keep, lambda: None)

    def note_update(self, optimizer: Any) -> None:
        """Makes the graph being traced note this update, with the numbers that the graph keeps."""
        traced, self._traced = self._traced, []
        if not may_tell_time():
            return
        here = [(spec, tensor) for graph, spec, tensor in traced if graph == graph_key()]
        if not any(spec.role == _LOSS for spec, _ in here):
            return  # the loss belongs to another graph than the update, which may not run in each step
        specs = tuple(spec for spec, _ in here)
        ring = next((r for r, _ in self._rings if r.optimizer() is optimizer and r.specs == specs), None)
        if ring is None:
            ring = Ring(optimizer, specs)
            self._rings.append((ring, _Reader([ring.variable])))
            self._plan, self._alike = None, 0
        with aside():
            waited = self._clock().variable.read_value()
        ring.write([tensor for _, tensor in here], waited)

    def wait_begins(self) -> Any:
        """Makes the graph being traced read the clock before it takes a batch; returns the time, or None."""
        return self._clock().begin() if may_keep() and may_tell_time() else None

    def wait_ends(self, began: Any, batch: Any) -> None:
        """Makes it note how long that has taken."""
        self._clock().end(began, batch)

    def _clock(self) -> WaitClock:
        if self._wait_clock is None:
            self._wait_clock = WaitClock()
        return self._wait_clock

    def waited_ns(self, row: Row | None = None) -> int:
        """Returns how long the step has waited for its batch: until this row, else until values were captured."""
        waited = self._waited_s if row is None else row.waited_s
        took, self._told_s = waited - self._told_s, waited
        return max(int(took * 1e9), 0)

    def waits(self, loss: str | None = None) -> bool:
        """Whether all numbers of a step, including the loss of this name, are in one
        ring, so they can be read later.
        """
        if (
            self._alike < _ALIKE
            or len(self._rings) != 1
            or self._plan is None
            or self._loose
            or self.compiled
        ):
            return False
        return loss is None or any(spec.name == loss for spec in self._rings[0][0].specs)

    def optimizer(self) -> Any:
        """Returns the optimizer of waiting steps; None if it is gone."""
        return self._rings[0][0].optimizer()

    def news(self, until_ns: int) -> tuple[Ring, list[Row]]:
        """Returns the ring of the waiting steps, and what it noted since it was last read."""
        ring, reader = self._rings[0]
        return ring, self._news(ring, reader, until_ns)[1]

    def surprised(self) -> None:
        """Makes the next steps read their numbers at once again, because a step differed from those before."""
        self._alike = -_WARY

    def _news(self, ring: Ring, reader: _Reader, until_ns: int | None = None) -> tuple[int, list[Row]]:
        count, rows = ring.news(reader.read()[0], until_ns)
        counter = self.counters.get(id(ring.optimizer()))
        if counter is not None:
            counter.seen += count
        return count, rows

    def begin(self, session: Session) -> None:
        """Begins a step whose graphs keep their values here."""
        if self._session is not session:
            self._session = session
            if self._wait_clock is not None:  # it goes on in trainings that nobody watches
                with tf.init_scope():
                    waited = self._wait_clock.variable.read_value()
                self._waited_s = self._told_s = float(array_of(waited))
        for role, flag in self._flags.items():
            flag.set(bool(session.due_role(role)))

    def refuse(self, spec: Spec, reason: int) -> None:
        """Records that a value of the graph being traced is not kept: a gap whenever it is due."""
        if may_keep():
            self._refused[spec.name] = (spec, reason)
            self._plan = None

    def rest(self) -> None:
        """Makes graphs keep no more arrays and drops the kept ones, since nothing will read them."""
        for flag in self._flags.values():
            flag.set(False)
        for keeper in self._keepers.values():
            keeper.clear()

    def _with_keepers(
        self, values: Iterable[tuple[Spec, Any, int | None]], scalar: bool
    ) -> list[tuple[Keeper, Any]]:
        found = []
        for spec, value, owner in values:
            tensor = can_be_kept(value)
            if tensor is None or (scalar and tensor.dtype.is_complex):
                self.refuse(spec, _UNSUPPORTED)
                continue
            key = (spec.name, tensor.dtype, owner)
            keeper = self._keepers.get(key)
            if keeper is None:
                keeper = self._keepers[key] = Keeper(spec, tensor.dtype, owner)
                self._plan = None
                if scalar:
                    self._numbers.add(key)
            found.append((keeper, tensor))
        return found

    def count(self, optimizer: Any) -> int:
        """Counts the updates of an optimizer in the graph being traced; returns the key of the counter."""
        key = id(optimizer)
        found = self.counters.get(key)
        if found is None or found.optimizer() is not optimizer:
            variable = resource_of(optimizer._iterations)
            every = int(optimizer.gradient_accumulation_steps or 1)
            with tf.init_scope():
                seen = int(array_of(variable.read_value()))
            self.counters[key] = _Counter(weakref.ref(optimizer), variable, every, seen)
            self._plan = None
        return key

    def has(self, name: str) -> bool:
        """Returns whether a value of this name is kept."""
        return any(keeper.spec.name == name for keeper in self._keepers.values())

    def value(self, name: str) -> Any:
        """Returns the value now kept under a name, as an array; None if there is none."""
        for keeper in self._keepers.values():
            if keeper.spec.name == name:
                value = keeper.value(array_of(keeper.variable.read_value()))
                if value is not None:
                    return value
        return None

    def capture(self, arrays: Arrays) -> list[tuple[Any, int, int]]:
        """Captures the values of the step; returns (optimizer, updates, accumulated gradients) of each optimizer in
        it.
        """
        if self._plan is None or self._arrays is not arrays:
            self._plan = self._planned(arrays)
        self._traced.clear()
        keepers, scalars = self._order
        session = arrays.session
        done: list[tuple[Any, int, int]] = []
        updated: set[int | None] = {None}
        known: set[str] = set()
        for ring, reader in self._rings:
            count, rows = self._news(ring, reader)
            if count:
                done.append((ring.optimizer(), count, count))
                updated.add(id(ring.optimizer()))
                record_row(arrays, ring, rows[-1])
                self._waited_s = rows[-1].waited_s
                known.update(spec.name for spec in ring.specs)
        if self._wait_clock is not None and not done:
            self._waited_s = float(array_of(self._wait_clock.variable.read_value()))
        alike = len(done) == 1 and done[0][1] == 1 and not self._loose
        self._alike = self._alike + 1 if alike else min(self._alike, 0)
        if self._loose or len(done) < len(self._rings) or not self._rings:
            values = self._plan.read()
            for (key, counter), value in zip(self.counters.items(), values[len(scalars) :], strict=True):
                if key not in updated:
                    count = int(value)
                    updates = count // counter.every - counter.seen // counter.every
                    done.append((counter.optimizer(), updates, count - counter.seen))
                    counter.seen = count
                    if updates:
                        updated.add(key)
            for keeper, array in zip(scalars, values, strict=False):
                value = keeper.value(array)
                if value is not None and keeper.owner in updated and keeper.spec.name not in known:
                    session.scalar(_number(arrays, keeper.spec), float(value))
        if self._table is not None and any(session.due_role(role) for role in self._roles):
            self._capture_arrays(self._table, keepers, updated)
        for number, reason in self._missing:
            tell_missing(session, number, reason)
        return done

    def _capture_arrays(self, table: Table, keepers: list[Keeper], updated: set[int | None]) -> None:
        values = [keeper.value(array) for keeper, array in zip(keepers, self._values.read(), strict=True)]
        table.capture(
            [
                value if keeper.owner in updated else None
                for keeper, value in zip(keepers, values, strict=True)
            ]
        )
        for keeper, value in zip(keepers, values, strict=True):
            if value is not None:
                keeper.give_back(value)

    def _planned(self, arrays: Arrays) -> _Reader:
        """Makes the reader of a step's numbers, and plans how everything else is read."""
        self._arrays = arrays
        keepers = [keeper for key, keeper in self._keepers.items() if key not in self._numbers]
        scalars = [self._keepers[key] for key in sorted(self._numbers, key=lambda key: key[0])]
        self._order = (keepers, scalars)
        self._table = Table(arrays, [keeper.spec for keeper in keepers])
        self._values = _Reader([keeper.variable for keeper in keepers])
        self._roles = {keeper.spec.role for keeper in keepers}
        self._missing = [(_number(arrays, spec), reason) for spec, reason in self._refused.values()]
        names = {keeper.spec.name for keeper in scalars}
        noted = {spec.name for ring, _ in self._rings for spec in ring.specs}
        counted = {id(ring.optimizer()) for ring, _ in self._rings}
        self._loose = not (names <= noted and self.counters.keys() <= counted)
        return _Reader(
            [
                *(keeper.variable for keeper in scalars),
                *(counter.variable for counter in self.counters.values()),
            ]
        )


def record_row(arrays: Arrays, ring: Ring, row: Row) -> None:
    """Records the numbers that were noted of an update."""
    for spec, value in zip(ring.specs, row.values, strict=True):
        arrays.session.scalar(_number(arrays, spec), value)


def _number(arrays: Arrays, spec: Spec) -> int:
    return arrays.number(spec.name, spec.role, spec.path, spec.kind)


_kept: weakref.WeakKeyDictionary[Any, dict[int, Kept]] = weakref.WeakKeyDictionary()


def kept_of(owner: Any, mode: int) -> Kept:
    """Returns what the graphs of a model in a mode, or of a compiled function, keep."""
    modes = _kept.get(owner)
    if modes is None:
        modes = _kept[owner] = {}
    found = modes.get(mode)
    if found is None:
        found = modes[mode] = Kept()
    return found
