"""The hook of loops written in NumPy: the loop reports when a step begins and ends, and what it has computed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, MutableMapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from luff import corrections
from luff._base_hook import mode_of
from luff._codes import Mode, Role
from luff._hook import RunOptions, Session
from luff._registry import Registry
from luff._step_hook import StepHook
from luff.errors import InvalidArgumentError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Hook", "Step", "hooks"]

_TRAIN = int(Mode.TRAIN)
_GRADIENT, _LOSS, _SETTING = int(Role.GRADIENT), int(Role.LOSS), int(Role.OPTIMIZER_SETTING)
_OPTIMIZER = "numpy"  # name of the optimizer in the run


class Step:
    """A step of the training, made by `Hook.step`. It is recorded when its block ends, or dropped if that raises."""

    def __init__(self, hook: Hook, mode: int, updates: bool) -> None:
        # until its block ends: a variable of the script may keep the step alive
        self._hook: Hook | None = hook
        self._mode = mode
        self._updates = updates

    def __enter__(self) -> Self:
        if self._hook is not None:
            self._hook.told("begin", self._hook.begin_block, self, self._mode)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None:
            self._tell("drop", "steps.abandon")
        else:
            self._tell("end", "end_block", self._updates)
        hook, self._hook = self._hook, None
        if hook is None:
            return
        if hook.block is self:
            hook.block = None
        if kind is None and self._mode == _TRAIN:
            hook.boundary()

    def loss(self, value: Any, name: str = "loss") -> None:
        """Records a loss of this step, a number."""
        self._tell("loss", "steps.scalar", name, value, _LOSS)

    def gradients(self, values: Mapping[str, Any]) -> None:
        """Records gradients, by the names of the weights, as the update uses them."""
        self._tell("gradients", "gradients", values)

    def tensor(self, name: str, value: Any, role: str = "custom") -> None:
        """Records an array of this step.

        Parameters
        ----------
        role
            What the array is to the training (docs/capture.md): ``"input"``, ``"output"``, ``"label"``, …

        Raises
        ------
        InvalidArgumentError
            If there is no such role.
        """
        if role.upper() not in Role.__members__:
            known = ", ".join(name.lower() for name in Role.__members__)
            raise InvalidArgumentError(f"no role is called {role!r}; roles are {known}")
        self._tell("tensor", "steps.array", name, value, int(Role[role.upper()]))

    def _tell(self, place: str, method: str, *arguments: Any) -> None:
        """Calls a method of the hook, unless the step has ended or another one has begun."""
        hook = self._hook
        if hook is not None and hook.block is self:
            hook.told(place, attrgetter(method)(hook), *arguments)


class Hook(StepHook):
    """Watches one training, and records it into one run. Made by `luff.numpy.attach`.

    Attributes
    ----------
    block
        The step whose ``with`` block is being executed.
    """

    framework = "numpy"

    def __init__(
        self,
        options: RunOptions,
        weights: Mapping[str, Any],
        settings: MutableMapping[str, Any] | None = None,
        on_stop: Callable[[], object] | None = None,
        correct: corrections.Corrections | None = None,
    ) -> None:
        super().__init__(options, on_stop, correct)
        self.block: Step | None = None
        self._weights = weights
        self._settings = {} if settings is None else settings

    def step(self, mode: Mode | str = Mode.TRAIN, *, updates: bool = True) -> Step:
        """Returns a step of the training, for a ``with`` statement around what the step computes.

        Leaving the block raises `luff.StopTraining` if a finding stops the run.

        Parameters
        ----------
        mode
            ``"TRAIN"``, ``"EVAL"`` or ``"PREDICT"``.
        updates
            False if the TRAIN step only accumulates gradients.

        Raises
        ------
        InvalidArgumentError
            If there is no such mode.
        """
        return Step(self, mode_of(mode) or _TRAIN, updates)

    def opened(self, session: Session) -> None:
        """Describes the weights in the run."""
        self.guarded("model", lambda: session.set_document("model", self._document()))

    def forked(self) -> None:
        """Makes the hook of a forked child a worker of its own."""
        super().forked()
        self.block = None

    def _lower_lr(self, factor: float) -> None:
        if "lr" not in self._settings:
            super()._lower_lr(factor)
        self._settings["lr"] *= factor

    # Called by `Step`, under the lock --------------------------------------------------------------------------

    def begin_block(self, step: Step, mode: int) -> None:
        """Begins a step, and records the weights that it uses."""
        if self.steps.begin(mode) is None:
            return
        hooks.enter(self)
        self.block = step
        if self.steps.mode == _TRAIN:
            for name, value in self._weights.items():
                self.steps.array(name, value, _role_of(name), _owner_of(name))

    def gradients(self, values: Mapping[str, Any]) -> None:
        """Records gradients of the step."""
        for name, value in values.items():
            self.steps.array(f"gradient/{name}", value, _GRADIENT, _owner_of(name))

    def end_block(self, updates: bool) -> None:
        """Records the update and its settings, and publishes the step."""
        try:
            if updates and self.steps.mode == _TRAIN:
                self.steps.updated()
                numbers = {k: v for k, v in self._settings.items() if isinstance(v, (int, float, np.number))}
                for name, value in numbers.items():
                    self.steps.scalar(f"optimizer/{_OPTIMIZER}.group0.{name}", value, _SETTING)
        finally:
            self.steps.end()

    # Describing ------------------------------------------------------------------------------------------------

    def _document(self) -> str:
        arrays = {name: np.asarray(value) for name, value in self._weights.items()}
        modules = list(dict.fromkeys(["", *map(_owner_of, arrays)]))  # in their order
        parameters = [
            {"path": name, "name": name, "shape": list(array.shape), "dtype": str(array.dtype),
             "requires_grad": True, "optimizer": _OPTIMIZER, "group": 0}
            for name, array in arrays.items()
        ]  # fmt: skip
        model = {
            "name": "weights",
            "type": "weights",
            "modules": [{"path": path, "type": "", "name": path, "settings": {}} for path in modules],
            "parameters": parameters,
            "buffers": [],
        }
        settings = dict(self._settings)
        optimizer = {"number": 0, "name": _OPTIMIZER, "type": _OPTIMIZER, "defaults": settings, "states": [],
                     "groups": [{"settings": settings, "parameters": len(arrays)}]}  # fmt: skip
        document = {"framework": self.framework, "models": [model], "optimizers": [optimizer], "schedulers": [],
                    "losses": []}  # fmt: skip
        return json.dumps(document, default=str)


def _owner_of(name: str) -> str:
    """Returns ``dense`` for ``dense.weight``."""
    return name.rpartition(".")[0]


def _role_of(name: str) -> int:
    """Returns the role of a weight, by the last part of its name."""
    last = name.rpartition(".")[2].lower()
    return int(Role.BIAS if "bias" in last or last in ("b", "beta") else Role.WEIGHT)


hooks: Registry[Hook] = Registry(lambda options: Hook(options, {}))
