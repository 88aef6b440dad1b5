"""Supports training loops that belong to a framework on top of PyTorch.

The patches of torch see what is trained. The framework's call-backs add what only they know: where a step ends, its
mode, what is logged, and how to leave the loop in the framework's own way.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch

import luff.torch
from luff import stop
from luff._base_hook import ACT, STOP, choose_run, make_config, thinned
from luff._hook import run_from_environment
from luff._patch import unseen
from luff.corrections import Corrections
from luff.errors import LuffError
from luff.torch.capture._memory import read_scalar
from luff.torch.loop._hook import Hook
from luff.torch.patches import _functional

__all__ = ["CallbackParts", "Loop", "Run", "callbacks_in", "guarded_events", "running"]


_MAX_METRICS = 4096  # most metrics remembered by name
_Class = TypeVar("_Class", bound=type)


def guarded_events(*more: str) -> Callable[[_Class], _Class]:
    """Decorates a call-back class with a `_loop`: errors in its ``on_...`` methods are counted, not raised.

    Errors about a run that cannot be created are raised, since the user has named it. `more`: further methods.
    """

    def decorate(cls: _Class) -> _Class:
        for name, method in list(vars(cls).items()):
            if callable(method) and (name.startswith("on_") or name in more):
                setattr(cls, name, _guarded(method))
        return cls

    return decorate


def _guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def event(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except LuffError:
            raise
        except Exception as error:
            self._loop.failed(method.__name__, error)

    return event


def running(
    original: Callable[..., Any],
    callbacks_of: Callable[[Any], list[Any]],
    begins: Callable[[Any, Any], object] | None = None,
) -> Callable[..., Any]:
    """Wraps a trainer's function that users call, so that Luff's call-backs learn when it has ended.

    Parameters
    ----------
    callbacks_of
        Returns Luff's call-backs of the trainer.
    begins
        Called first, with each of the call-backs and the trainer.
    """

    @functools.wraps(original)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        ours = callbacks_of(self)
        if begins is not None:
            for callback in ours:
                begins(callback, self)
        try:
            result = original(self, *args, **kwargs)
        finally:
            for callback in ours:
                callback.ended()
        for callback in ours:
            callback.raise_if_stopped()
        return result

    return run


def callbacks_in(callbacks: Any, kind: type, add: Callable[[Any], object] | None) -> list[Any]:
    """Returns Luff's call-backs, of class `kind`, in a trainer's list; if there is none, one is made for `add`."""
    if not isinstance(callbacks, list):
        return []
    ours: list[Any] = [callback for callback in callbacks if isinstance(callback, kind)]
    if not ours and add is not None:
        try:
            ours = [kind()]
        except Exception:  # the supervisor's settings are gone from the environment
            return []
        add(ours[0])
    return ours


class CallbackParts:
    """Common base of all call-backs with a `_run`."""

    _run: Run

    @property
    def hook(self) -> Any:
        """The `luff.torch.Hook` that records, once a training has begun."""
        return self._run.hook

    def close(self) -> None:
        """Ends the run; without a call, it ends with the process."""
        if self._run.hook is not None:
            self._run.hook.close()


class Run:
    """Where a framework's call-back records to: a hook of its own, or that of ``luff run``.

    Parameters
    ----------
    run, resume, collections, on_stop, correct, **options
        As in `luff.torch.attach`, except that by default tensors are recorded at every 50th step, unless a schedule
        is given. Without any of these arguments, the hook of ``luff run`` is used, if there is one.

    Raises
    ------
    LuffError
        When no run is named, or a setting is wrong.
    """

    def __init__(
        self,
        run: str | os.PathLike[str] | None = None,
        *,
        collections: Iterable[str | Mapping[str, Any]] | Mapping[str, Mapping[str, Any]] | None = None,
        resume: bool = False,
        on_stop: Callable[[], object] | None = None,
        correct: Corrections | None = None,
        **options: Any,
    ) -> None:
        own = collections is not None or bool(options) or on_stop is not None or correct is not None
        supervised = run_from_environment() is not None
        self._shared = supervised and not own
        if not supervised:
            collections = thinned(collections, options)
        self._arguments: dict[str, Any] = {
            "run": run,
            "collections": collections,
            "resume": resume,
            "on_stop": on_stop,
            "correct": correct,
            **options,
        }
        config = make_config(collections, options)
        choose_run(run, resume, config)
        self.hook: Hook | None = None
        _functional.install()

    def attach(self, model: Any, optimizers: Iterable[Any], training: bool) -> Hook | None:
        """Returns the hook that watches `model`; makes it and opens its run when something is trained.

        Raises
        ------
        LuffError
            When the run cannot be created.
        """
        if self._shared:
            self.hook = luff.torch.attach_to_all()
            if self.hook is not None and training:
                self.hook.told("training", self.hook.loop_begins, model, optimizers)
                self.hook.watch(model)
                self.hook.guarded("open", self.hook.machine.ensure_session)
        elif self.hook is None:
            self.hook = luff.torch.attach(model, optimizer=list(optimizers), **self._arguments)
        else:
            self.hook.watch(model)
        return self.hook

    def __deepcopy__(self, memo: object) -> Run:
        return self


class Loop:
    """One loop while it runs.

    Parameters
    ----------
    run
        Its hook watches the loop.
    leave
        Makes the framework end its loop and, if requested, write a checkpoint. Called once, before the functions
        of `luff.on_stop`; its errors are counted.
    """

    def __init__(self, run: Run, leave: Callable[[], object]) -> None:
        self._run = run
        self._leave = leave
        self._logged: dict[str, Any] = {}
        self.reason: str | None = None  # why a finding has stopped the loop

    @property
    def hook(self) -> Hook | None:
        """The hook, while it is live."""
        hook = self._run.hook
        return hook if hook is not None and hook.live else None

    def begin(
        self, model: Any, optimizers: Iterable[Any], schedulers: Iterable[Any] = (), training: bool = True
    ) -> None:
        """Begins the loop. Raises an error if the run cannot be created."""
        hook = self._run.attach(model, optimizers, training)
        if hook is not None:
            hook.guarded("schedulers", self._know, hook, schedulers)
            hook.machine.held = True
            hook.deferred = training

    def plan(self, updates: float) -> None:
        """Notes how many updates the framework means to make from here on; infinite or less than one: unknown."""
        hook = self.hook
        if hook is not None and 1 <= updates < 2**53:
            hook.guarded("plan", self._plan, hook, int(updates))

    def failed(self, place: str, error: BaseException) -> None:
        """Counts an error of a call-back."""
        if self._run.hook is not None:
            self._run.hook.guard.note(place, error)

    def mode(self, name: str | None) -> None:
        """Sets the mode of the following steps; None: as the training shows."""
        if self.hook is not None:
            self.hook.set_mode(name)

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Records what the framework has logged, in the open step. A value that is logged again is left out."""
        hook = self.hook
        if hook is not None:
            hook.guarded("log", self._log, hook, metrics)

    def evaluated(self) -> None:
        """Ends the step of an evaluation; it stays open for values logged before the next step begins."""
        hook = self.hook
        if hook is not None:
            hook.guarded("evaluated", hook.machine.end_evaluation)

    def publish(self) -> None:
        """Publishes the open step, which has ended."""
        hook = self.hook
        if hook is not None:
            hook.guarded("step end", hook.machine.end_step)

    def step_ended(self) -> None:
        """Ends a TRAIN step, and carries out what all ranks have agreed on for it."""
        self.publish()
        self.answer()

    def answer(self) -> None:
        """Carries out a correction, or makes the framework leave its loop."""
        hook = self.hook
        answer = 0 if hook is None else hook.machine.stop
        if hook is None or not answer:
            return
        if answer == ACT:
            hook.machine.stop = 0
            hook.obey(ACT)
        elif answer == STOP and hook.session is not None:
            hook.guarded("leave", self._leave)
            self.reason = hook.wind_up(hook.session)

    def end(self) -> None:
        """Ends the loop, which is over or raised an error: models are then trained as without a framework."""
        hook = self.hook
        self._logged.clear()
        if hook is not None:
            self.step_ended()
            hook.machine.held = hook.deferred = False
            hook.set_mode(None)

    def raise_if_stopped(self) -> None:
        """Raises `luff.StopTraining` if a finding has stopped the loop. Called when the
        framework has left the loop.
        """
        reason, self.reason = self.reason, None
        if reason is not None:
            stop.raise_stop(reason)

    def _log(self, hook: Hook, metrics: Mapping[str, Any]) -> None:
        if hook.machine.session is None:  # nothing is trained here, so no run is opened for its metrics
            return
        for name, value in metrics.items():
            number: Any = value
            if isinstance(value, torch.Tensor):
                known = self._logged.get(name)
                if (
                    known is not None and known.data_ptr() == value.data_ptr()
                ):  # the same tensor: it is kept, so its memory cannot have been reused
                    continue
                if len(self._logged) < _MAX_METRICS:
                    self._logged[name] = value
                number = read_scalar(value)
            if isinstance(number, float | int):
                hook.steps.save_scalar(str(name), float(number))

    @staticmethod
    def _plan(hook: Hook, updates: int) -> None:
        session = hook.machine.session
        if session is not None:
            plan = {"updates": updates, "first_update": hook.machine.clock.latest_update()}
            session.set_document("plan", json.dumps(plan))

    @staticmethod
    def _know(hook: Hook, schedulers: Iterable[Any]) -> None:
        """Registers schedulers that have not stepped yet: a correction of the rate must change them too."""
        for scheduler in schedulers:
            if hook.machine.recorder is not None and scheduler is not None:
                hook.machine.recorder.scheduler(scheduler)


unseen(globals())
