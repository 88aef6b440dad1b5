"""The framework-independent part of a hook: opening and closing the run, saved values, stops, corrections, forks.

Each framework's hook derives from `BaseHook` and defines what it watches.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from luff import _after_stop, corrections, stop
from luff._codes import NO_ID, EndReason, GapReason, Mode
from luff._hook import (
    Guard,
    Refused,
    RunOptions,
    Session,
    Trial,
    environment_document,
    find_run,
    note_aside,
    open_session,
    rank_from_environment,
    resume_point,
    run_from_environment,
)
from luff._merged_config import merge_configs
from luff._next_training import MAX_RUNS, NextTraining
from luff._option_names import check_names
from luff._phases import listen, unlisten
from luff._plain import plain, shown
from luff._rules_beside import judges_later, needs_of, open_when_judged, take_rules, watch_beside
from luff._run_place import new_run, warn_of_another_place
from luff._step_writer import StepWriter
from luff._upload_beside import take_upload, upload_beside
from luff.errors import AlreadyExistsError, InvalidArgumentError, ResourceExhaustedError

__all__ = ["ACT", "SCHEDULE", "STOP", "BaseHook", "choose_run", "listed", "make_config", "mode_of", "thinned"]

STOP, ACT = 2, 3  # what Session.at_step_boundary returns
MAX_BESIDE = 9999  # runs of one name
MAX_ERRORS = 1000  # a hook gives up after more errors than this
_CLOSE_S = 2.0  # deadline for closing a run that the user did not close
SCHEDULE = ("save_interval", "start_step", "end_step", "save_steps")
#: Default save interval of statistics for hooks that are attached by hand and whose framework defines the steps. At
#: 50, their cost no longer shows in a dense network of 16 ms a step. smdebug saves every 500th step by default.
_INTERVAL = 50
_THINNED = {
    "weights": ["summary"],
    "biases": ["summary"],
    "gradients": ["summary"],
    "losses": ["summary", "raw"],  # as tensors; losses as numbers are recorded at every step
}
#: What the hooks accept as `collections`.
Collections = Iterable["str | Mapping[str, Any]"] | Mapping[str, Mapping[str, Any]] | None

_living: weakref.WeakSet[BaseHook] = weakref.WeakSet()


class BaseHook:
    """One run, one session. Nothing here raises into a training, except `luff.StopTraining`.

    Parameters
    ----------
    options
        Where the run is, and its capture configuration.
    on_stop
        Called before `luff.StopTraining` is raised, in addition to those of `luff.on_stop`.
    correct
        Allowed corrections; by default those passed to `luff.corrections.accept`.

    Attributes
    ----------
    guard
        Errors inside Luff, counted; none is ever raised into the training.
    lock
        Held while Luff works; the session is touched only under it.
    live
        False once the run has ended: the hook was closed, gave up, was replaced by a newer one, or was released.
    steps
        Writes the steps.
    first_rank
        Whether this worker is the first of those that train one model, and so records what all of them share.
    opened_s
        When the session was opened, by `time.monotonic`.
    reference
        A weak reference to the hook.
    registry
        The registry that holds this hook, or None.
    """

    #: Name of the framework in the document "environment".
    framework = ""
    #: Class of `steps`.
    writer: type[StepWriter] = StepWriter
    steps: StepWriter

    def __init__(
        self,
        options: RunOptions,
        on_stop: Callable[[], object] | None = None,
        correct: corrections.Corrections | None = None,
    ) -> None:
        self._options = options
        self._run = options.path
        self._on_stop = on_stop
        self._correct_by = correct
        self.guard = Guard()
        self.lock = threading.RLock()
        self.live = True
        self.reference = weakref.ref(self)
        self.registry: Any = None
        self.steps = self._make_writer()
        self.first_rank = True
        self.opened_s = 0.0
        self._following = NextTraining()
        _living.add(self)

    def _make_writer(self) -> StepWriter:
        return self.writer(weakref.WeakMethod(self.ensure_session), self.guard)

    # Overridden by frameworks ----------------------------------------------------------------------------------

    def versions(self) -> dict[str, Any]:
        """Returns the framework's entries in the document "environment"."""
        return {}

    def rank(self) -> tuple[int, int] | None:
        """Rank and world size of this process, or None."""
        return rank_from_environment()

    def opened(self, session: Session) -> None:
        """Called when the session is open and documents can be written."""

    def _finish(self) -> None:
        """Publishes what is still buffered, before the session is closed."""

    def _lower_lr(self, factor: float) -> None:
        """Multiplies the learning rate by `factor`."""
        raise LookupError(f"no learning rate is known to the hook ({factor})")

    def forked(self) -> None:
        """Drops the parent's session in a forked child, which trains as a worker of its own. Overrides call this."""
        session, forced = self.session, self.steps.forced
        self.lock = threading.RLock()
        self._following = NextTraining()
        self._options.join = True
        self._run = self._options.path
        self.steps = self._make_writer()
        self.steps.forced = forced
        if session is not None:
            self._options.upload = ""  # who uploads the run goes on
            session.after_fork_in_child()
            session.close(int(EndReason.FAILED), 0.0)

    def trains(self, model: Any, parts: Callable[[], Iterable[Any]] = tuple, **how: Any) -> None:
        """Called under the lock when a training begins: its run may end that of the one before (`NextTraining`).

        `parts` returns what is trained of the model, if that tells models apart. An attached hook keeps its run.
        """
        if not self.one_run_each or self.registry is None or self.registry.default is not self:
            return
        if how.get("anew") or not self._following.knows(model):
            clock = self.steps.clock
            steps = clock.mode_steps[int(Mode.TRAIN)] - clock.first_train_step
            if self._following.begins(steps, [model, *parts()], **how):
                self.begin_again()

    def begin_again(self) -> None:
        """Ends the run: another training begins, which gets one, unless there were too many. Overrides call this."""
        self._finish()
        corrections.forget(self._accept_corrections)
        session, forced = self.session, self.steps.forced
        self._run = self._options.path
        self.steps = self._make_writer()
        self.steps.forced = forced
        if session is not None:
            if self.guard.unreported:
                self.guard.report(session)
            session.close(int(EndReason.COMPLETED), _CLOSE_S)
        self._following.next_run()
        if self._following.runs > MAX_RUNS:
            why = f"{MAX_RUNS} trainings of the process have runs, those after them are not recorded"
            note_aside(self._options.path, ResourceExhaustedError(why))
            self._end_run(int(EndReason.COMPLETED), "")

    @property
    def trial(self) -> Trial | None:
        """The `luff.trial_run` whose training this hook watches."""
        return self._options.trial

    @property
    def one_run_each(self) -> bool:
        """Whether each training of the process has a run of its own: under `luff run`, outside of `luff.trial_run`."""
        return bool(self._options.job) and self._options.trial is None

    # For users -------------------------------------------------------------------------------------------------

    @property
    def run(self) -> str:
        """Path of the run directory. Under ``luff run`` it is final once the session is open."""
        return self._run

    @property
    def session(self) -> Session | None:
        """The session, once it is open."""
        return self.steps.session

    def set_mode(self, mode: Mode | str | None) -> None:
        """Sets the mode of the following steps by hand.

        Parameters
        ----------
        mode
            ``"TRAIN"``, ``"EVAL"`` or ``"PREDICT"``. None or ``"GLOBAL"`` (the default): the mode that the training
            shows.
        """
        self.steps.forced = mode_of(mode)

    def save_scalar(self, name: str, value: float) -> None:
        """Records a number as ``scalar/NAME`` in the current step, or the next."""
        self.while_live("save_scalar", self.steps.save_scalar, str(name), float(value))

    def save_tensor(self, name: str, value: Any) -> None:
        """Records an array or a tensor under `name` in the current step, or the next (role "custom")."""
        self.while_live("save_tensor", self.steps.save_array, str(name), value)

    @property
    def calls_back(self) -> bool:
        """Whether the hook holds functions of the user, and thus everything that these functions refer to."""
        return self._on_stop is not None or self._correct_by is not None

    def health(self) -> dict[str, Any]:
        """Counters of the session, and errors of the hook."""
        session = self.session
        report = dict(session.health()) if session is not None else {}
        report["hook_errors"] = self.guard.count
        report["hook_error_places"] = dict(self.guard.first)
        return report

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Waits until every published step can be read; False if time ran out."""
        session = self.session
        return bool(session.flush(timeout_s)) if session is not None else True

    def close(self, reason: int = int(EndReason.COMPLETED), timeout_s: float = 5.0) -> None:
        """Publishes the last step and ends the run. The training continues as if it had never been watched."""
        if self.live:
            self.guarded("close", self._finish)
            self._end_run(int(reason), "", timeout_s)

    def replaced_by(self, newer: BaseHook) -> None:
        """Ends the run because a newer hook now watches what this one watched."""
        if self.live:
            self.guarded("close", self._finish)
            self._end_run(
                int(EndReason.COMPLETED), f"a newer hook took its place, and records into {newer.run}"
            )

    def give_up(self, why: str) -> None:
        """Ends the run and records why the hook gives up."""
        session = self.session
        if session is not None and self.live:
            session.gap(NO_ID, int(GapReason.HOOK_ERROR), 0, 1)
        self._end_run(int(EndReason.FAILED), why)

    def _end_run(self, reason: int, why: str, timeout_s: float = _CLOSE_S) -> None:
        """Ends the run. `why` is the reason if the user did not close it."""
        if not self.live:
            return
        self.live = False
        _living.discard(self)
        try:
            if not any(hook.session is not None for hook in list(_living)):
                unlisten()
            if self.registry is not None:
                self.registry.discard(self)
            corrections.forget(self._accept_corrections)
            session = self.session
            if session is None:
                return
            if self.guard.unreported:
                self.guard.report(session)
            end = {"why": why} if why else {}
            if self.trial is not None:  # its settings may have come while it trained
                session.set_document("trial", self.trial.document())
                end["process"] = "goes on"
            if end:
                session.set_document("end", json.dumps(end))
            session.close(reason, timeout_s)
        except Exception as error:
            self.guard.note("close", error)

    def __del__(self) -> None:
        try:  # nothing refers to the hook, or to what it watched, any more
            self.close(timeout_s=_CLOSE_S)
        except Exception:  # the hook is only half constructed, or the interpreter is shutting down
            pass

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self.close(int(EndReason.COMPLETED if kind is None else EndReason.EXCEPTION))

    def __deepcopy__(self, memo: object) -> Any:
        return self  # copying a model, an estimator or a callback copies what it holds

    def __reduce__(self) -> Any:
        return (_nothing, ())  # unpickles as None: another process has its own hook, or none

    # Session ---------------------------------------------------------------------------------------------------

    def open_now(self) -> None:
        """Opens the session at once; errors are the caller's.

        Raises
        ------
        LuffError
            When the run cannot be created, or the configuration is wrong.
        """
        if self.session is not None:
            return
        rank = self.rank()
        self.first_rank = rank is None or rank[0] == 0
        if self._options.unnamed and rank is not None and rank[1] > 1:
            raise InvalidArgumentError(
                "ranks that train together need one run; pass run=DIRECTORY, or start the script by `luff run -- ...`"
            )
        self._run = find_run(self._options, rank)
        point = resume_point(self._run) if self._options.resume else None
        session = self._open_session(rank)
        self.opened_s = time.monotonic()
        stop.watch(self)
        _after_stop.forget(session.run_path, session.worker)
        session.accept_actions(self._corrections().kinds())
        corrections.listen(self._accept_corrections)
        if point is not None:
            self.steps.clock.resume(point)
        self.steps.opened(session)
        session.set_document(
            "environment", environment_document(framework=self.framework, rank=rank, **self.versions())
        )
        self.opened(session)
        listen()
        if self.trial is not None:
            self.trial.opened(session, self._run)
        if self._options.rules and self.first_rank:
            self.guarded("rules", watch_beside, self._run, self._options.rules, self._options.on_finding)
        if self._options.upload and self.first_rank:
            self.guarded("upload", upload_beside, self._run, self._options.upload)

    def _open_session(self, rank: tuple[int, int] | None) -> Session:
        """Opens the run, or one beside it if that place is taken: a script or a notebook's cell may run again."""
        options = replace(self._options, path=self._run)
        try:
            return open_session(options, rank)
        except AlreadyExistsError:
            if options.join or (rank is not None and rank[1] > 1):
                raise
            if options.resume:
                return open_when_judged(options, rank)
        for number in itertools.count(2):
            path = f"{options.path}-{number}"
            try:
                session = open_session(replace(options, path=path), rank)
            except AlreadyExistsError:
                if number == MAX_BESIDE:
                    raise
                continue
            warn_of_another_place(options.path, path)
            self._run = path
            self._options = replace(self._options, path=path)  # also for a forked child
            break
        return session

    def ensure_session(self) -> Session | None:
        """Returns the session, which the first step opens. None if that fails: the training continues unwatched."""
        if self.session is None and self.live:
            try:
                self.open_now()
            except Exception as error:
                self.guard.note("open", error)
                self.give_up(f"the run could not be opened: {error}")
        return self.session

    # Inside ----------------------------------------------------------------------------------------------------

    def while_live(self, place: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Like `guarded` while the hook is live; afterwards does nothing and returns None."""
        return self.guarded(place, function, *arguments) if self.live else None

    def guarded(self, place: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Runs Luff's own code: errors are counted, never raised."""
        try:
            with self.lock:
                return function(*arguments)
        except Exception as error:
            self.failed(place, error)
            return None

    def failed(self, place: str, error: Exception) -> None:
        """Counts an error of Luff's own code; gives up after many."""
        self.guard.note(place, error)
        if self.guard.count > MAX_ERRORS:
            self.give_up(
                f"{MAX_ERRORS} errors inside Luff, the last in {place}: {self.guard.first.get(place)}"
            )

    def obey(self, answer: int) -> None:
        """Carries out the answer of `Session.at_step_boundary`, which all ranks have agreed on.

        Raises
        ------
        StopTraining
            If a finding stops the run.
        """
        session = self.session
        if session is None or not self.live:
            return
        if answer == ACT:
            self.guarded("correction", self._correct, session)
        if answer == STOP:
            stop.raise_stop(self.wind_up(session))

    def wind_up(self, session: Session) -> str:
        """Runs the call-backs before a stop, and closes the run as stopped. Returns the reason."""
        reason = self.guarded("stop", session.stop_reason) or ""
        for callback in (self._on_stop, *stop.callbacks()):
            try:
                if callback is not None:
                    callback()
            except Exception as error:
                self.guard.note("on_stop", error)
        trains = self.guarded("stop", self.tells_training)
        self.close(int(EndReason.STOPPED))
        if self.trial is None and trains is not None:  # a trial's process is to go on
            self.guarded("stop", lambda: _after_stop.begin(session.run_path, session.worker, trains))
        return str(reason)

    def tells_training(self) -> Callable[[Any], bool] | None:
        """Returns a function that tells whether an optimizer updates what the run watched; None if that isn't known."""
        return None

    def _correct(self, session: Session) -> None:
        """Carries out a correction. Counts its error, and reports to the supervisor whether it was done."""
        action = session.take_action()
        if action is None:
            return
        control, kind, body, _ = action
        done = False
        try:
            self._corrections().carry_out(kind, body, self._lower_lr)
            done = True
        except Refused:  # the run says why; no error of Luff's
            pass
        except Exception as error:
            self.guard.note(f"correction {kind}", error)
        session.action_done(control, done)

    def _corrections(self) -> corrections.Corrections:
        return corrections.accepted() if self._correct_by is None else self._correct_by

    def _accept_corrections(self) -> None:
        session = self.session
        if session is not None:
            session.accept_actions(self._corrections().kinds())


def _nothing() -> None:
    return None


def mode_of(mode: Mode | str | int | None) -> int | None:
    """Returns the number of a mode given by the user. None stands for GLOBAL: the hook determines the mode itself.

    Raises
    ------
    InvalidArgumentError
        For anything that is not a mode.
    """
    if mode is None:
        return None
    try:
        chosen = Mode[mode.upper()] if isinstance(mode, str) else Mode(mode)
    except (KeyError, ValueError):
        raise InvalidArgumentError(
            f"no mode is called {mode!r}; modes are TRAIN, EVAL, PREDICT, GLOBAL"
        ) from None
    return None if chosen is Mode.GLOBAL else int(chosen)


def listed(collections: Collections, **named: Any) -> list[dict[str, Any]]:
    """Returns collections as a list of settings; `named` are the settings of a collection given only by name.

    Raises
    ------
    InvalidArgumentError
        If an item is neither a name nor settings.
    """
    if collections is None:
        return []
    if isinstance(collections, str):
        return [{"name": collections, **named}]
    if isinstance(collections, Mapping):
        return [_settings(name, given, named) for name, given in collections.items()]
    if not isinstance(collections, Iterable) or isinstance(collections, bytes):
        raise InvalidArgumentError(
            f"collections is {shown(collections)}, expected names of collections, or settings by name"
        )
    found: list[dict[str, Any]] = []
    for index, item in enumerate(collections):
        if isinstance(item, str):
            found.append({"name": item, **named})
        elif isinstance(item, Mapping):
            found.append(_named(plain(item, f"collections[{index}]"), f"collections[{index}]"))
        else:
            raise InvalidArgumentError(
                f"collections[{index}] is {shown(item)}, expected a name, a Collection or a mapping of settings"
            )
    return found


def _settings(name: object, given: object, named: Mapping[str, Any]) -> dict[str, Any]:
    place = f"collections[{name!r}]"
    if not isinstance(name, str):
        raise InvalidArgumentError(
            f"collections has the key {shown(name)}, expected the name of a collection"
        )
    if given is None:
        return {"name": name, **named}
    if isinstance(given, Mapping):
        return _named({"name": name, **plain(given, place)}, place)
    # a SaveConfig: the schedule for what the name stands for
    if callable(getattr(given, "to_json_dict", None)):
        return {"name": name, **named, "save": plain(given, place)}
    raise InvalidArgumentError(
        f"{place} is {shown(given)}, expected a mapping of settings, a SaveConfig or None"
    )


def _named(settings: dict[str, Any], place: str) -> dict[str, Any]:
    if not isinstance(settings.get("name", ""), str):
        raise InvalidArgumentError(f"{place}['name'] is {shown(settings['name'])}, expected a text")
    return settings


def make_config(
    collections: Collections, options: Mapping[str, Any], arguments: Iterable[str] = ()
) -> dict[str, Any]:
    """Makes the capture configuration from a hook's arguments.

    Parameters
    ----------
    collections
        Names (raw values and summaries of the collection's tensors), or settings by name.
    arguments
        Names of the hook's arguments beyond those that all hooks have: an unknown option may be one of them, misspelt.
    options
        ``save_interval``, ``start_step``, ``end_step``, ``save_steps``, and all other settings of docs/capture.md.
        Numbers may be NumPy's, `save` may be a `luff.config.SaveConfig`, and a single text may stand for a list of
        texts.

    Raises
    ------
    InvalidArgumentError
        If there is no such option, or a configuration cannot hold a value; the message names it and what is
        expected.
    """
    if options:
        check_names(options, arguments)
    config: dict[str, Any] = {}
    if collections is not None:
        config["collections"] = listed(collections, forms=["raw", "summary"])
    save = {key: options[key] for key in SCHEDULE if key in options}
    if save:
        config["save"] = save
    config.update({key: value for key, value in options.items() if key not in save})
    return plain(config, "")  # type: ignore[no-any-return]


def thinned(collections: Collections, options: Mapping[str, Any]) -> Collections:
    """Returns collections that record the default tensors only at every 50th step.

    Changes nothing if `options` give a schedule or turn the defaults off. Collections that the caller lists keep
    their settings.
    """
    if "save" in options or not options.get("defaults", True) or any(key in options for key in SCHEDULE):
        return collections
    found = listed(collections, forms=["raw", "summary"])
    known = {item.get("name") for item in found}
    save = {"save_interval": _INTERVAL}
    found += [{"name": n, "forms": forms, "save": save} for n, forms in _THINNED.items() if n not in known]
    return found


def choose_run(
    run: str | os.PathLike[str] | None,
    resume: bool,
    config: Mapping[str, Any],
    merge: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]] | None = None,
) -> RunOptions:
    """Chooses the run of a hook: the supervisor's under ``luff run``, else the given one, else a new one.

    Parameters
    ----------
    merge
        Merges the hook's configuration, the second argument, into the supervisor's. By default the hook's keys win
        and its collections are added.

    """
    config = dict(config)
    rules, on_finding = take_rules(config)
    upload = take_upload(config)
    supervised = run_from_environment()
    if supervised is not None:  # whose rules and upload were chosen on its command line
        merged = (merge or merge_configs)(supervised.config, dict(config)) if config else supervised.config
        return replace(supervised, config=merged)
    path = new_run() if run is None else os.path.abspath(os.fspath(run))
    if rules:
        config = (merge or merge_configs)(needs_of(rules), config)
        rules = "" if judges_later(rules) else rules
    return RunOptions(
        path, resume, False, config, rules=rules, on_finding=on_finding, upload=upload, unnamed=run is None
    )


def _after_fork() -> None:
    stop.forget()
    for hook in list(_living):
        try:
            hook.forked()
        except Exception as error:
            hook.guard.note("fork", error)


os.register_at_fork(after_in_child=_after_fork)
