"""Records parameters and optimizers: weights, gradients, buffers, state, settings.

Knows nothing about steps; the step machine decides when to record.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from luff import _codes as codes
from luff._codes import GapReason, Role
from luff._hook import Session
from luff._weak import Identities
from luff.torch.capture._describe import describe, has_moved, settings_of
from luff.torch.capture._device import DeviceRows, is_divisor, is_on_device, record_number, scalar_of
from luff.torch.capture._memory import Layouts, address_of, is_readable, read_scalar
from luff.torch.capture._names import Names, class_name
from luff.torch.capture._tables import Table

__all__ = ["OptimizerRecord", "Recorder", "parameters_of"]

_WEIGHT, _BIAS, _GRADIENT = int(Role.WEIGHT), int(Role.BIAS), int(Role.GRADIENT)
_BUFFER, _STATE, _SETTING = int(Role.BUFFER), int(Role.OPTIMIZER_STATE), int(Role.OPTIMIZER_SETTING)
_MAX_DESCRIPTIONS = 64
_MAX_SCHEDULERS = 64
_MAX_LOSSES = 64
_NUMBERS = (float, int)


class OptimizerRecord:
    """One optimizer: its number, its name, and what is captured of it."""

    def __init__(self, optimizer: Any, number: int, name: str, died: Callable[[Any], None]) -> None:
        self.reference = weakref.ref(optimizer, died)
        self.number = number
        self.name = name
        self.gradients: Table | None = None
        self.held = 0  # number of parameters that it held when the table was made
        self.settled: object = None  # the step in which its settings were last recorded
        self.updates = False  # it has made an update
        # for each group: its size, (key, number) pairs, numbers of its betas
        self.plan: list[tuple[int, list[tuple[str, int]], list[int]]] = []
        self.states: dict[tuple[str, str], int] = {}


def parameters_of(optimizer: Any) -> list[Any]:
    """Returns all parameters that an optimizer holds."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


class Recorder:
    """Records the models and optimizers of one hook, through tables."""

    def __init__(self, session: Session, layouts: Layouts, names: Names) -> None:
        self.session = session
        self.layouts = layouts
        self._devices = DeviceRows(session)
        self.names = names
        self.optimizers: dict[int, OptimizerRecord] = {}  # id(optimizer) -> record
        self.schedulers: list[Any] = []
        #: Schedulers that move rates of an optimizer without updates.
        self._moved: Identities[bool] = Identities()
        self.losses: dict[str, dict[str, Any]] = {}
        self._numbers = 0
        self._optimizer_names: dict[str, int] = {}
        self._deaths: list[Any] = []  # references to optimizers that no longer exist
        self._weights: Table | None = None
        self._buffers: Table | None = None
        self._all_gradients: Table | None = None
        self._numbers_of: dict[str, int] = {}
        self._descriptions = 0
        #: Ids of the parameters of models that were called.
        self.of_called: set[int] = set()
        self._replicas: frozenset[int] = frozenset()
        self.stale = True  # names and tables must be rebuilt
        self.generation = 0  # counts changes: new optimizers, other parameters
        self._owned: frozenset[int] = frozenset()

    # Optimizers ------------------------------------------------------------------------------------------------

    def optimizer(self, optimizer: Any) -> OptimizerRecord:
        """Returns the record of an optimizer; a new one gets the next number."""
        record = self.optimizers.get(id(optimizer))
        if record is None or record.reference() is not optimizer:
            base = type(optimizer).__name__
            self._optimizer_names[base] = self._optimizer_names.get(base, 0) + 1
            count = self._optimizer_names[base]
            name = base if count == 1 else f"{base}_{count}"
            record = OptimizerRecord(optimizer, self._numbers, name, self._deaths.append)
            self._numbers += 1
            self.optimizers[id(optimizer)] = record
            self.stale = True
            self.generation += 1
        return record

    def number_of(self, optimizer: Any) -> int:
        """Returns the number of an optimizer; NO_ID if it was never seen."""
        record = self.optimizers.get(id(optimizer))
        return codes.NO_ID if record is None or record.reference() is not optimizer else record.number

    def living(self) -> list[tuple[OptimizerRecord, Any]]:
        """Returns the records of the optimizers that still exist."""
        pairs = [(record, record.reference()) for record in self.optimizers.values()]
        return [(record, optimizer) for record, optimizer in pairs if optimizer is not None]

    def scheduler(self, scheduler: Any) -> None:
        """Adds a scheduler to the document, and whether it has moved rates of an optimizer without updates."""
        new = len(self.schedulers) < _MAX_SCHEDULERS and all(
            known() is not scheduler for known in self.schedulers
        )
        if new:
            self.schedulers.append(weakref.ref(scheduler))
        elif self._moves_in_vain(scheduler):
            self._moved[scheduler] = True
        else:
            return
        if not self.stale:
            self.describe()

    def _moves_in_vain(self, scheduler: Any) -> bool:
        optimizer = getattr(scheduler, "optimizer", None)
        record = self.optimizers.get(id(optimizer))
        if optimizer is None or scheduler in self._moved or len(self._moved) >= _MAX_SCHEDULERS:
            return False
        if record is not None and record.reference() is optimizer and record.updates:
            return False
        return has_moved(optimizer)

    def count(self) -> int:
        """Returns how many optimizers still exist."""
        if self._deaths:
            self._deaths.clear()
            self.optimizers = {key: r for key, r in self.optimizers.items() if r.reference() is not None}
        return len(self.optimizers)

    # Definitions -----------------------------------------------------------------------------------------------

    def number(self, name: str, role: int, path: str = "", kind: str = "") -> int:
        """Returns the number of a tensor by name."""
        number = self._numbers_of.get(name)
        if number is None:
            number = self.session.define_tensor(name, role, path, kind)
            if len(self._numbers_of) < 1 << 20:
                self._numbers_of[name] = number
        return number

    def rebuild(self, called: Iterable[Any]) -> None:
        """Names everything and rebuilds the tables. `called`: models that were called."""
        self.stale = False
        known, self._replicas = self._replicas, _replicas()
        if self._replicas and not known:
            self.session.event_json('{"kind": "replicas"}')
        living = self.living()
        held = [(record, parameters_of(optimizer)) for record, optimizer in living]
        called = list(called)
        self.of_called = {id(parameter) for model in called for parameter in model.parameters()}
        self.names.name_all(called, [p for _, parameters in held for p in parameters])
        owners: dict[int, tuple[Any, int]] = {}
        owned_by: dict[int, tuple[str, str]] = {}
        buffers: list[tuple[Any, int]] = []
        for model, model_name in self.names.models():
            self.names.refresh(model, model_name)
            for module in model.modules():
                found = self.names.module(module)
                if found is None:
                    continue
                path, kind = found[0], class_name(module)
                for parameter in module._parameters.values():
                    if parameter is not None:
                        owned_by.setdefault(id(parameter), (path, kind))
            for path, buffer in model.named_buffers():
                number = self.number(f"{model_name}_{path}", _BUFFER, path.rpartition(".")[0], "")
                buffers.append((buffer, number))
            for parameter in model.parameters():
                self._own(parameter, owners, owned_by)
        for record, parameters in held:
            for index, parameter in enumerate(parameters):
                if self.names.parameter(parameter) is None:
                    group = _group_of(record.reference(), parameter)
                    self.names.name_parameter(parameter, f"{record.name}.group{group}.param{index}")
                self._own(parameter, owners, owned_by)
        if self._owned != owners.keys():
            self._owned = frozenset(owners)
            self.generation += 1
        self._weights = Table(
            self.session, self.layouts, owners.values(), alias=True, replica=self._are_replicas(owners)
        )
        self._buffers = Table(self.session, self.layouts, buffers, alias=True)
        for record, parameters in held:
            record.gradients = self._gradient_table(parameters, owned_by)
            record.held = len(parameters)
        self._all_gradients = self._gradient_table(
            [p for p, _ in owners.values() if getattr(p, "requires_grad", False)], owned_by
        )
        self.describe()

    def loss(self, kind: str, module: Any = None, given: Mapping[str, Any] | None = None) -> None:
        """Adds a loss to the document; `module` is None for a function, which was called with the settings `given`."""
        if len(self.losses) < _MAX_LOSSES:
            of_call = {"functional": True, **(given or {})}
            self.losses[kind] = of_call if module is None else settings_of(module)
            if not self.stale:
                self.describe()

    def describe(self) -> None:
        """Writes the "model" document, a bounded number of times."""
        if self._descriptions >= _MAX_DESCRIPTIONS:
            return
        self._descriptions += 1
        optimizers = [(record.number, record.name, optimizer) for record, optimizer in self.living()]
        schedulers = [s for s in (reference() for reference in self.schedulers) if s is not None]
        text = describe(self.names, optimizers, schedulers, self.losses.items(), self.of_called)
        self.session.set_document("model", text)

    def _own(
        self, parameter: Any, owners: dict[int, tuple[Any, int]], owned_by: dict[int, tuple[str, str]]
    ) -> None:
        if id(parameter) in owners:
            return
        name = self.names.parameter(parameter)
        if name is None:
            return
        path, kind = owned_by.get(id(parameter), ("", ""))
        last = name.rpartition(".")[2]
        role = _BIAS if "bias" in last and "weight" not in last else _WEIGHT
        owners[id(parameter)] = (parameter, self.number(name, role, path, kind))

    def _gradient_table(self, parameters: Iterable[Any], owned_by: dict[int, tuple[str, str]]) -> Table:
        owners: dict[int, tuple[Any, int]] = {}
        for parameter in parameters:
            name = self.names.parameter(parameter)
            if name is not None and id(parameter) not in owners:
                path, kind = owned_by.get(id(parameter), ("", ""))
                owners[id(parameter)] = (parameter, self.number(f"gradient/{name}", _GRADIENT, path, kind))
        return Table(
            self.session, self.layouts, owners.values(), gradients=True, replica=self._are_replicas(owners)
        )

    def _are_replicas(self, owners: dict[int, Any]) -> bool:
        """Whether another worker stores the values of all these tensors. If only of some, values would be lost."""
        return bool(self._replicas) and all(key in self._replicas for key in owners)

    # Capture ---------------------------------------------------------------------------------------------------

    def weights(self) -> int:
        """Captures weights, biases and buffers that are due; returns how many."""
        due = self.session.due_role
        count = 0
        if self._weights is not None and (due(_WEIGHT) or due(_BIAS)):
            count += self._weights.capture()
            self.stale = self.stale or self._weights.dead
        if self._buffers is not None and due(_BUFFER):
            count += self._buffers.capture()
        return count

    def version(self) -> int | None:
        """Returns a number that changes when the weights do; None if there are none."""
        return None if self._weights is None else self._weights.version()

    def gradients(self, record: OptimizerRecord | None, factor: float = 1.0, divisor: Any = None) -> int:
        """Captures the gradients of an optimizer's parameters, or of all parameters."""
        table = self._all_gradients if record is None else record.gradients
        if table is None or not self.session.due_role(_GRADIENT):
            return 0
        return table.capture(factor, divisor)

    def gradients_of_update(self, record: OptimizerRecord, optimizer: Any) -> bool:
        """Captures gradients that an optimizer will use, divided by its gradient scale; False if the scale is
        unknown.
        """
        factor = 1.0
        scale = getattr(optimizer, "grad_scale", None)
        if scale is not None:
            value = read_scalar(scale)
            if value is None and is_divisor(scale):
                self.gradients(record, divisor=scale)
                return True
            if value is None or value == 0.0:
                if self.session.due_role(_GRADIENT):
                    self.session.gap(codes.NO_ID, int(GapReason.UNSUPPORTED), 0, 1)
                return False
            factor = 1.0 / value
        self.gradients(record, factor)
        return True

    def settings(self, step: object) -> None:
        """Records the settings of the optimizers whose settings were not recorded in this step yet."""
        for record in self.optimizers.values():
            if record.settled is not step:
                optimizer = record.reference()
                if optimizer is not None:
                    self.settings_of(record, optimizer, step)

    def settings_of(self, record: OptimizerRecord, optimizer: Any, step: object) -> None:
        """Records the numbers of each group of an optimizer: learning rate, momentum, weight decay, ..."""
        record.settled = step
        scalar = self.session.scalar
        groups, plan = optimizer.param_groups, record.plan
        if len(groups) != len(plan):
            self._plan(record, groups)
            plan = record.plan
        for index, group in enumerate(groups):
            size, numbers, betas = plan[index]
            if len(group) != size:
                record.plan = []  # planned again at the next step
            for key, number in numbers:
                value = group.get(key)
                if type(value) in _NUMBERS:
                    scalar(number, float(value))
                else:
                    self._setting(number, value)
            if betas:
                for number, value in zip(betas, group["betas"], strict=False):
                    self._setting(number, value)

    def _plan(self, record: OptimizerRecord, groups: list[dict[str, Any]]) -> None:
        """Plans which numbers of an optimizer's groups are recorded, and as which tensors."""
        record.plan = []
        for index, group in enumerate(groups):
            prefix = f"optimizer/{record.name}.group{index}."
            numbers = [
                (key, self.number(prefix + key, _SETTING))
                for key in ("lr", "momentum", "weight_decay")
                if group.get(key) is not None
            ]
            betas = group.get("betas")
            count = len(betas) if isinstance(betas, tuple | list) else 0
            names = [self.number(f"{prefix}beta{n + 1}", _SETTING) for n in range(count)]
            record.plan.append((len(group), numbers, names))

    def _setting(self, number: int, value: Any) -> None:
        if not isinstance(value, int | float):
            value = scalar_of(value) if hasattr(value, "data_ptr") else None
            if value is None:
                return
        else:
            value = float(value)
        record_number(self.session, self.layouts, number, value)

    def states(self) -> int:
        """Captures optimizer state (moments, momentum buffers, step counts) that is due; returns how many tensors."""
        if not self.session.due_role(_STATE):
            return 0
        self._devices.begin()
        count = 0
        for record, optimizer in self.living():
            for parameter, state in list(optimizer.state.items()):
                name = self.names.parameter(parameter) if hasattr(parameter, "data_ptr") else None
                if name is None or not isinstance(state, dict):
                    continue
                for key, value in state.items():
                    if not hasattr(value, "data_ptr"):
                        continue
                    number = record.states.get((name, key))
                    if number is None:
                        number = self.number(f"optimizer/{record.name}.{key}/{name}", _STATE)
                        record.states[(name, key)] = number
                    forms = self.session.due_tensor(number)
                    if forms and self._state(number, value):
                        count += 1
                    elif forms:
                        self.session.gap(number, int(GapReason.UNSUPPORTED), forms, 1)
        self._devices.capture()
        return count

    def _state(self, number: int, value: Any) -> bool:
        """Captures one tensor of an optimizer's state, or its local part if it is sharded; False if it is not
        readable.
        """
        if is_on_device(value):
            layout = self.layouts.find(value)
            if layout >= 0:
                self._devices.add(number | layout << 32, value)
            return layout >= 0
        if is_readable(value):
            layout = self.layouts.find(value)
        else:
            layout, value = self.layouts.find_local(value)
        address = address_of(value) if layout >= 0 else 0
        if layout < 0 or (not address and value.numel()):
            return False
        self.session.capture_one(number, layout, address)
        return True


def _group_of(optimizer: Any, parameter: Any) -> int:
    for index, group in enumerate(optimizer.param_groups):
        if any(parameter is held for held in group["params"]):
            return index
    return 0


def _replicas() -> frozenset[int]:
    """Returns the ids of the parameters whose values another worker stores.

    DistributedDataParallel gives all workers of its group the same weights and, by its all-reduce, the same gradients
    at an update. The first worker of the group stores their values. The others store summaries and a hash of each
    value, so that a reader notices if one differs.

    Searches all objects for wrappers, since nothing leads from a model to its wrapper. It is called only when names
    are assigned, and only has work to do in a job of several workers.
    """
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1):
        return frozenset()
    found: set[int] = set()
    for wrapper in gc.get_objects():
        if not issubclass(type(wrapper), torch.nn.parallel.DistributedDataParallel):
            continue
        try:
            if distributed.get_rank(wrapper.process_group) > 0:
                ignored = wrapper.parameters_to_ignore
                found.update(id(p) for name, p in wrapper.module.named_parameters() if name not in ignored)
        except (AttributeError, RuntimeError, ValueError):  # half constructed, or its group is gone
            continue
    return frozenset(found)
