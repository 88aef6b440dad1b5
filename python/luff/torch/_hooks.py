"""The hook: one run, one session, one step machine; and which hook a module or an optimizer belongs to."""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from luff import corrections, stop
from luff._codes import DType, EndReason, Mode, Role
from luff._hook import (
    Guard,
    RunOptions,
    Session,
    environment_document,
    open_session,
    rank_from_environment,
    resume_point,
)
from luff.errors import InvalidArgumentError
from luff.torch._corrections import lower_lr
from luff.torch._machine import Machine
from luff.torch._memory import is_readable, local_part
from luff.torch._names import Names

__all__ = ["Hook", "hooks"]

_MAX_ERRORS = 1000  # then the hook switches itself off
_ACT = 3  # what Session.at_step_boundary gives for a correction


def _rank() -> tuple[int, int] | None:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    return rank_from_environment()


class Hook:
    """What attaches Luff to a PyTorch training. Made by `attach`, or by ``luff run``.

    Attributes
    ----------
    guard
        Errors inside Luff, counted; none is ever raised into the training.
    """

    def __init__(
        self,
        options: RunOptions,
        model: Any = None,
        on_stop: Callable[[], object] | None = None,
        correct: corrections.Corrections | None = None,
    ) -> None:
        self._options = options
        self._on_stop = on_stop
        self._correct_by = correct
        self._model = None if model is None else weakref.ref(model)
        self._owned: dict[int, tuple[Any, bool]] = {}
        self._owned_optimizers: dict[int, tuple[Any, bool]] = {}
        self._parameter_ids: set[int] = set()
        self.guard = Guard()
        self.lock = threading.RLock()
        self.live = True
        self.asleep = False  # a forked child that has not trained yet
        self.on_all = model is None
        names = Names()
        if model is not None:
            names.add_root(model)
            self._parameter_ids = {id(parameter) for parameter in model.parameters()}
        self.machine = self._machine(names, eager=model is not None)

    # Belonging -------------------------------------------------------------------------------------------------

    def owns(self, module: Any) -> bool:
        """True if the module is the hook's model, a part of it, or holds it."""
        if self.on_all:
            return True
        known = self._owned.get(id(module))
        if known is None or known[0]() is not module:
            if len(self._owned) > 65536:
                self._owned.clear()
            mine = any(id(p) in self._parameter_ids for p in module.parameters())
            known = self._owned[id(module)] = (weakref.ref(module), mine)
        return known[1]

    def owns_optimizer(self, optimizer: Any) -> bool:
        """True if the optimizer holds a parameter of the hook's model."""
        if self.on_all:
            return True
        known = self._owned_optimizers.get(id(optimizer))
        if known is None or known[0]() is not optimizer:
            groups = optimizer.param_groups
            mine = any(id(p) in self._parameter_ids for group in groups for p in group["params"])
            known = self._owned_optimizers[id(optimizer)] = (weakref.ref(optimizer), mine)
        return known[1]

    # For users -------------------------------------------------------------------------------------------------

    @property
    def run(self) -> str:
        """Path of the run directory."""
        return self._options.path

    def set_mode(self, mode: Mode | str | None) -> None:
        """Sets the mode of the steps that follow by hand.

        Parameters
        ----------
        mode
            ``"TRAIN"``, ``"EVAL"`` or ``"PREDICT"``; None or ``"GLOBAL"``: found out again by what happens.
        """
        self.machine.forced = None if mode is None else self._mode(mode)

    def step(self, mode: Mode | str | None = None, update: int | None = None) -> None:
        """Ends the current step and begins the next. After the first call steps are counted by hand only.

        Parameters
        ----------
        mode
            Mode of the step that begins; by default the one set by `set_mode`, or TRAIN.
        update
            Number of updates before the step that ends; by default Luff's own count.
        """
        number = None if mode is None else self._mode(mode)
        self.guarded("step", self.machine.next_step, number, update)
        self.leave_if_stopped()

    def save_scalar(self, name: str, value: float) -> None:
        """Records a number as ``scalar/NAME`` in the current step."""
        self.guarded("save_scalar", self.machine.given.scalar, str(name), float(value))

    def save_tensor(self, name: str, value: Any) -> None:
        """Records a tensor or an array under `name` in the current step (role "custom")."""
        self.guarded("save_tensor", self._save_tensor, str(name), value)

    def health(self) -> dict[str, Any]:
        """Counters of the session, and errors of the hook."""
        session = self.machine.session
        report = dict(session.health()) if session is not None else {}
        report["hook_errors"] = self.guard.count
        report["hook_error_places"] = dict(self.guard.first)
        return report

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Waits until every published step can be read; False if time ran out."""
        session = self.machine.session
        return bool(session.flush(timeout_s)) if session is not None else True

    def close(self, reason: int = int(EndReason.COMPLETED), timeout_s: float = 5.0) -> None:
        """Publishes the last step and ends the run. The model is as if it had never been watched."""
        if not self.live:
            return
        self.guarded("close", self._finish)
        self.live = False
        hooks.remove(self)
        corrections.forget(self._accept_corrections)
        session = self.machine.session
        if session is not None:
            try:
                session.close(int(reason), timeout_s)
            except Exception as error:
                self.guard.note("close", error)

    def __enter__(self) -> Hook:  # noqa: PYI034  (Self came with Python 3.11)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self.close(int(EndReason.COMPLETED if kind is None else EndReason.EXCEPTION))

    def __deepcopy__(self, memo: object) -> Hook:
        return self

    def __reduce__(self) -> Any:
        return (_nothing, ())

    # Inside ----------------------------------------------------------------------------------------------------

    def guarded(self, place: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Runs Luff's own work: errors are counted, never raised."""
        try:
            with self.lock:
                return function(*arguments)
        except Exception as error:
            self.guard.note(place, error)
            if self.guard.count > _MAX_ERRORS:
                self.live = False
            return None

    def leave_if_stopped(self) -> None:
        """Carries out what all ranks have agreed on; raises `luff.StopTraining` if a finding stops the run."""
        if not self.machine.stop or not self.live:
            return
        if self.machine.stop == _ACT:
            self.machine.stop = 0
            self._correct()
            return
        session = self.machine.session
        reason = ""
        try:
            reason = session.stop_reason() if session is not None else ""
        except Exception as error:
            self.guard.note("stop", error)
        for callback in (self._on_stop, *stop.callbacks()):
            try:
                if callback is not None:
                    callback()
            except Exception as error:
                self.guard.note("on_stop", error)
        if session is not None and self.guard.unreported:
            self.guarded("report", self.guard.report, session)
        self.close(int(EndReason.STOPPED))
        stop.raise_stop(reason)

    def _correct(self) -> None:
        """Calls the training's call-back; its errors are counted, and told to the other ranks' supervisor."""
        session = self.machine.session
        action = None if session is None else session.take_action()
        if session is None or action is None:
            return
        control, kind, body, _ = action
        done = False
        try:
            self._corrections().carry_out(kind, body, self._lower_lr)
            done = True
        except Exception as error:
            self.guard.note(f"correction {kind}", error)
        session.action_done(control, done)

    def _corrections(self) -> corrections.Corrections:
        return corrections.accepted() if self._correct_by is None else self._correct_by

    def _lower_lr(self, factor: float) -> None:
        recorder = self.machine.recorder
        if recorder is None:
            raise LookupError("nothing was recorded yet")
        schedulers = [s for s in (reference() for reference in recorder.schedulers) if s is not None]
        lower_lr([optimizer for _, optimizer in recorder.living()], schedulers, factor)

    def _accept_corrections(self) -> None:
        session = self.machine.session
        if session is not None:
            session.accept_actions(self._corrections().kinds())

    def wake(self) -> None:
        """In a forked child that trains after all: a worker of its own."""
        self.asleep = False

    def forked(self) -> None:
        """In a forked child: nothing of the parent's session is ours."""
        session = self.machine.session
        self.lock = threading.RLock()
        self.asleep = True
        if session is not None:
            session.after_fork_in_child()
            session.close(int(EndReason.FAILED), 0.0)
        self._options.join = True
        old = self.machine
        self.machine = self._machine(old.names, eager=False)
        self.machine.forced = old.forced
        if old.recorder is not None:
            for _, optimizer in old.recorder.living():
                self.machine.optimizer_made(optimizer)

    def _machine(self, names: Names, eager: bool) -> Machine:
        machine = Machine(names, self.guard, self._open, eager)
        config = self._options.config
        machine.samples.early = bool(config.get("save_all")) or '"sample"' in json.dumps(config, default=str)
        return machine

    def _open(self) -> Session | None:
        if self.asleep or not self.live:
            return None
        try:
            return self._open_session()
        except Exception as error:
            self.guard.note("open", error)
            self.live = False
            return None

    def _open_session(self) -> Session:
        point = resume_point(self._options.path) if self._options.resume else None
        session = open_session(self._options, _rank())
        if point is not None:
            self.machine.clock.resume(point)
        self._opened(session)
        return session

    def open_now(self) -> None:
        """Opens the session at once; errors are the caller's.

        Raises
        ------
        LuffError
            When the run exists already, cannot be created, or the configuration is wrong.
        """
        session = self._open_session()
        self.machine._opener = lambda: session
        self.machine.ensure_session()

    def _opened(self, session: Session) -> None:
        stop.watch(self)
        session.accept_actions(self._corrections().kinds())
        corrections.listen(self._accept_corrections)
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        session.set_document(
            "environment",
            environment_document(
                framework="torch",
                torch=torch.__version__,
                threads=torch.get_num_threads(),
                interop_threads=torch.get_num_interop_threads(),
                distributed=torch.distributed.get_backend() if distributed else None,
                rank=_rank(),
            ),
        )

    def _finish(self) -> None:
        if self.machine.session is not None:
            self.machine.finish()

    def _mode(self, mode: Mode | str | int) -> int | None:
        try:
            chosen = Mode[mode.upper()] if isinstance(mode, str) else Mode(mode)
        except (KeyError, ValueError):
            raise InvalidArgumentError(
                f"no mode is called {mode!r}; modes are TRAIN, EVAL, PREDICT, GLOBAL"
            ) from None
        return None if chosen is Mode.GLOBAL else int(chosen)

    def _save_tensor(self, name: str, value: Any) -> None:
        machine = self.machine
        if machine.ensure_session() is None or machine.recorder is None:
            return
        if isinstance(value, torch.Tensor):
            local, _ = local_part(value)
            if local is None or not is_readable(local.data if local.requires_grad else local):
                raise TypeError("a tensor that is not dense CPU memory")
            if not local.is_contiguous():
                layout, size = machine.recorder.layouts.find(local), 0
            else:
                layout, size = machine.recorder.layouts.find(local), local.nbytes
            data = (local.data_ptr(), size)
            keep: Any = local
        else:
            array = np.ascontiguousarray(value)
            code = _numpy_code(array)
            if machine.session is None:
                return
            layout = machine.session.define_layout(code, list(array.shape))
            data = (int(array.__array_interface__["data"][0]), array.nbytes)
            keep = array
        if layout < 0:
            raise TypeError("a dtype that is not captured")
        machine.given.tensor(name, int(Role.CUSTOM), layout, data)
        del keep


def _nothing() -> None:
    return None


def _numpy_code(array: Any) -> int:
    try:
        return int(DType[array.dtype.name.upper()])
    except KeyError:
        raise TypeError(f"dtype {array.dtype} is not captured") from None


class Hooks:
    """All living hooks, and who is asked about what."""

    def __init__(self) -> None:
        self.living: list[Hook] = []  # replaced, never changed; the default comes last
        self.default: Hook | None = None  # the one that watches everything
        self.last: Hook | None = None

    def add(self, hook: Hook) -> None:
        """Asks a hook from now on."""
        if hook.on_all:
            self.default = hook
            self.living = [*self.living, hook]
        else:
            at = len(self.living) - (self.default is not None)
            self.living = [*self.living[:at], hook, *self.living[at:]]

    def remove(self, hook: Hook) -> None:
        """Forgets a closed hook."""
        self.living = [other for other in self.living if other is not hook]
        if self.default is hook:
            self.default = None
        if self.last is hook:
            self.last = None

    def of_module(self, module: Any) -> Hook | None:
        """The hook of a model's call."""
        for hook in self.living:
            if hook.on_all or hook.owns(module):
                return hook
        return None

    def of_optimizer(self, optimizer: Any) -> Hook | None:
        """The hook of an optimizer."""
        for hook in self.living:
            if hook.on_all or hook.owns_optimizer(optimizer):
                return hook
        return None

    def current(self) -> Hook | None:
        """The hook whose model was called last: losses belong to it."""
        if self.last is not None and self.last.live:
            return self.last
        if self.default is not None:
            return self.default
        return self.living[0] if len(self.living) == 1 else None

    def of_backward(self) -> list[Hook]:
        """Hooks whose forward passes wait for a backward pass; else the current one."""
        living = self.living
        if len(living) == 1:
            return living
        waiting = [hook for hook in living if hook.machine.waits_for_backward()]
        if waiting:
            return waiting
        current = self.current()
        return [] if current is None else [current]


hooks = Hooks()


def make_config(
    collections: Iterable[str | Mapping[str, Any]] | Mapping[str, Mapping[str, Any]] | None,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """The capture configuration of `attach`'s arguments."""
    config: dict[str, Any] = {}
    if collections is not None:
        if isinstance(collections, Mapping):
            config["collections"] = [{"name": name, **settings} for name, settings in collections.items()]
        else:
            config["collections"] = [
                {"name": item, "forms": ["raw", "summary"]} if isinstance(item, str) else dict(item)
                for item in collections
            ]
    save = {
        key: options[key]
        for key in ("save_interval", "start_step", "end_step", "save_steps")
        if key in options
    }
    if save:
        config["save"] = save
    config.update({key: value for key, value in options.items() if key not in save})
    return json.loads(json.dumps(config))  # type: ignore[no-any-return]
