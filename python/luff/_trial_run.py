"""A run for each trial of a sweep, in one process: `luff.trial_run`."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from luff import stop
from luff._base_hook import choose_run, make_config
from luff._bootstrap._luff_frameworks import FRAMEWORKS
from luff._codes import EndReason
from luff._hook import RunOptions, Session, run_from_environment, set_trial_run
from luff._plain import shown
from luff._registry import Registry
from luff._run_place import new_run, warn
from luff.errors import FailedPreconditionError, InvalidArgumentError, StopTraining, TrialStopped

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["TrialRun", "check_options", "trial_run"]

_MAX_PARAMS = 1000
_MAX_TEXT = 1000
_OUTCOMES = ("raise", "return")
#: What the supervisor or the rules beside a training say of a stop: "NonFinite (loss, since step 40)".
_RULE = re.compile(r"\A([A-Za-z_]\w*)")

Params = Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None
_lock = threading.Lock()  # held for moments
_active: list[TrialRun] = []  # at most one
_SET_BY_ADAPTERS = ("name", "params", "on_stop", "run")
_told: set[str] = set()  # modules of Luff that cannot watch their framework


class TrialRun:
    """One trial of a sweep; `trial_run` makes it, and a ``with`` block is the trial.

    Attributes
    ----------
    name, sweep
        As given.
    run
        Directory of the trial's run; "" until a training has begun in it.
    watched
        Whether what the block trains is recorded: False while a trial of another thread is under way.
    stopped
        Whether a finding, or ``luff stop``, has stopped the trial.
    reason
        Why it was stopped, in words; "" if it was not.
    rule
        Name of the rule that stopped it; "" if none did.
    """

    def __init__(
        self, name: str, params: Params, sweep: str, on_stop: str, choose: Callable[[TrialRun], RunOptions]
    ) -> None:
        self.name, self.sweep = name, sweep
        self.run = self.reason = self.rule = ""
        self.watched = self.stopped = False
        self._params = params
        self._returns = on_stop == "return"
        self._choose = choose
        self._thread = 0
        self._quiet = ExitStack()

    # What hooks ask --------------------------------------------------------------------------------------------

    def document(self) -> str:
        """Returns the document "trial" of the run (docs/spec/evidence.md) as JSON."""
        try:
            given = self._params() if callable(self._params) else self._params or {}
            params = {str(key)[:_MAX_TEXT]: _value(given[key]) for key in list(given)[:_MAX_PARAMS]}
            json.dumps(params)  # Python writes no number of thousands of digits
        except Exception as error:  # the function is the user's
            params = {"error": f"{type(error).__name__}: {error}"[:_MAX_TEXT]}
        return json.dumps({"name": self.name, "sweep": self.sweep, "params": params})

    def opened(self, session: Session, run: str) -> None:
        """Called when the run is there."""
        session.set_document("trial", self.document())
        self.run = self.run or run

    # The block -------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        with _lock:
            other = next(iter(_active), None)
            if other is None:
                _active[:] = [self]
        self._thread = threading.get_ident()
        self.run = self.reason = self.rule = ""  # of an earlier block, if it is used again
        self.stopped = False
        if other is not None:
            if other._thread == self._thread:
                raise FailedPreconditionError(
                    f"the trial {other.name!r} is under way in this thread; end it before {self.name!r} begins"
                )
            self.watched = False
            self._keep_out(other)
            return self
        try:
            set_trial_run(self._choose(self))
            _watch_what_is_imported()
            self.watched = True
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not self.watched:
            self._quiet.close()
            return False
        stopped = isinstance(error, StopTraining)
        reason = (
            EndReason.STOPPED if stopped else EndReason.COMPLETED if kind is None else EndReason.EXCEPTION
        )
        self._end(int(reason))
        if not stopped:
            return False
        self.stopped = True
        self.reason = str(getattr(error, "reason", "")) or "a request"
        named = _RULE.match(self.reason)
        self.rule = named[1] if named else ""
        stop.survived()
        if self._returns:
            return True
        raise TrialStopped(self.reason, self.rule, self.run) from None

    def _end(self, reason: int) -> None:
        hooks = [hook for registry in Registry.all() for hook in registry.living if hook.trial is self]
        for hook in hooks:
            hook.close(reason)
        self._leave()
        if not self.run:
            warn(
                f"the trial {self.name!r} trained nothing that Luff saw: import the framework before "
                "luff.trial_run"
            )

    def _leave(self) -> None:
        """What this process trains from now on is none of the trial's."""
        set_trial_run(None)
        with _lock:
            _active[:] = [one for one in _active if one is not self]
        if run_from_environment() is not None:
            _watch_what_is_imported()

    def _keep_out(self, other: TrialRun) -> None:
        """Another thread's trial is under way, and its hooks would take this thread's training for a part of it."""
        for ours in _ours():  # that thread may still be importing them
            _imported(ours)
        for registry in Registry.all():
            self._quiet.enter_context(registry.muted())
        warn(
            f"the trial {self.name!r} is not watched: {other.name!r} is under way in another thread; run trials in "
            "processes to have all of them watched"
        )


def trial_run(
    name: str,
    params: Params = None,
    sweep: str = "",
    *,
    on_stop: Literal["raise", "return"] = "raise",
    run: str | os.PathLike[str] | None = None,
    rules: bool | str = True,
    on_finding: Literal["warn", "stop"] = "stop",
    collections: Any = None,
    **options: Any,
) -> TrialRun:
    """Watches what a ``with`` block trains, in a run of its own; a stop ends the trial, and the process goes on.

    All frameworks that are imported already are watched. Under ``luff run`` the run lies beside that of the job, and
    its rules and answers are those of the command line::

        with luff.trial_run(f"trial-{n}", params={"lr": lr}, sweep="digits", on_stop="return") as trial:
            score = train(lr)
        if trial.stopped:
            score = float("nan")

    Parameters
    ----------
    name
        Name of the trial, e.g. its number.
    params
        What tells it from the other trials: numbers, texts and truth values by name. A function is asked when the
        run begins and when it ends.
    sweep
        Name of the sweep.
    on_stop
        What the end of the block does when a finding has stopped the trial: ``"raise"`` raises `luff.TrialStopped`,
        ``"return"`` goes on after the block.
    run
        Directory of the run. None: a new one below ``$LUFF_HOME/runs``, named after sweep and trial.
    rules, on_finding, collections, **options
        As for `luff.torch.attach`; by default all rules run beside the trial, and a finding of severity stop ends it.

    Raises
    ------
    InvalidArgumentError
        If an argument is not what it may be.
    TrialStopped
        At the end of the block, if a finding has stopped the trial.
    FailedPreconditionError
        At its begin, if this thread is in a trial already.
    """
    for what, text in (("name", name), ("sweep", sweep)):
        if not isinstance(text, str) or len(text) > _MAX_TEXT:
            raise InvalidArgumentError(
                f"{what} is {shown(text)}; expected a text of at most {_MAX_TEXT} characters"
            )
    if not name:
        raise InvalidArgumentError("name is empty; expected the name of the trial")
    if on_stop not in _OUTCOMES:
        raise InvalidArgumentError(f"on_stop is {shown(on_stop)}; expected 'raise' or 'return'")
    if params is not None and not isinstance(params, Mapping) and not callable(params):
        raise InvalidArgumentError(f"params is {shown(params)}; expected values by name, or a function")
    asked = make_config(collections, options)
    place = None if run is None else os.path.abspath(os.fspath(run))

    def choose(trial: TrialRun) -> RunOptions:
        if run_from_environment() is not None:
            return replace(choose_run(None, False, asked), trial=trial)
        chosen = choose_run(
            place or _place(sweep, name), False, {**asked, "rules": rules, "on_finding": on_finding}
        )
        return replace(chosen, trial=trial, unnamed=run is None)

    return TrialRun(name, params, sweep, on_stop, choose)


def check_options(options: Mapping[str, Any], sweep: str, who: str) -> None:
    """Checks what an adapter passes on to `trial_run`, before the first trial begins.

    Raises
    ------
    InvalidArgumentError
        If an option is wrong, or is one that the adapter `who` sets itself.
    """
    for name in _SET_BY_ADAPTERS:
        if name in options:
            raise InvalidArgumentError(f"{name}= is set by {who}")
    trial_run("check", sweep=sweep, **options)


def _place(sweep: str, name: str) -> str:
    """Returns a new place below ``$LUFF_HOME/runs`` that names sweep and trial."""
    told = re.sub(r"[^A-Za-z0-9_.=]+", "-", f"{sweep}-{name}" if sweep else name)[:80].strip("-.")
    parent, begin = os.path.split(new_run())
    return os.path.join(parent, f"{begin}-{told}" if told else begin)


def _value(value: Any) -> Any:
    """Returns a setting as JSON can hold it: numbers, truth values and None as they are, others as text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value[:_MAX_TEXT] if isinstance(value, str) else value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "ndim", None) == 0:
        return _value(item())
    return str(value)[:_MAX_TEXT]


def _watch_what_is_imported() -> None:
    """Attaches to the frameworks of this process: new hooks, for the run that is chosen now."""
    for ours in _ours():
        module = _imported(ours)
        try:
            if module is not None:
                module.attach_to_all()
        except Exception as error:
            _unwatched(ours, error)


def _ours() -> list[str]:
    """Names of Luff's modules for the frameworks that this process has imported."""
    return list(dict.fromkeys(ours for name, ours in FRAMEWORKS.items() if name in sys.modules))


def _imported(ours: str) -> Any:
    """Imports one of Luff's modules; waits for a thread that does. None if Luff cannot watch the framework."""
    try:
        return importlib.import_module(ours)
    except Exception as error:  # the trial trains on
        _unwatched(ours, error)
        return None


def _unwatched(ours: str, error: Exception) -> None:
    if ours not in _told:
        _told.add(ours)
        text = " ".join(f"{type(error).__name__}: {error}".split())
        warn(f"{ours} cannot be imported, so what trains with it is not watched ({text})")


def _after_fork() -> None:
    """In a forked child: another thread may have held the lock, and trials under way are the parent's."""
    global _lock
    _lock = threading.Lock()
    _active.clear()


os.register_at_fork(after_in_child=_after_fork)
