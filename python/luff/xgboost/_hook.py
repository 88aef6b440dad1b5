"""The hook: one run, one session, one training after another; each boosting round is a TRAIN step."""

from __future__ import annotations

import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import xgboost
from xgboost.callback import TrainingCallback

from luff import corrections, stop
from luff._codes import EndReason, EventKind, Form, GapReason, Mode, Role
from luff._hook import (
    Guard,
    RunOptions,
    Session,
    StepClock,
    environment_document,
    open_session,
    rank_from_environment,
    resume_point,
    run_from_environment,
)
from luff.errors import InvalidArgumentError
from luff.xgboost._config import Wanted, make_config
from luff.xgboost._describe import feature_names, parameters_of, read_data, rows_of
from luff.xgboost._metrics import latest
from luff.xgboost._recorder import Metric, Recorder
from luff.xgboost._trees import Rounds, read_rounds

__all__ = ["Hook", "living"]

_TRAIN = int(Mode.TRAIN)
_OTHER, _LABEL = int(Role.OTHER), int(Role.LABEL)
_OPTIMIZER_STEP = int(EventKind.OPTIMIZER_STEP)
_ACT, _STOP = 3, 2  # what Session.at_step_boundary gives
_MAX_ERRORS = 1000  # then the hook switches itself off
_MAX_TRAININGS = 64
_WAIT_S = 0.2  # rounds wait so long for others to be recorded with, at most
_WAIT_ROUNDS = 64
_FLUSH_S = 2.0

living: weakref.WeakSet[Hook] = weakref.WeakSet()


@dataclass
class _Waiting:
    """One round that has ended and is not recorded yet."""

    rounds: int  # of the model, this one included
    metrics: list[Metric]
    values: dict[str, Any] = field(default_factory=dict)  # what the model gave while it was of this round


@dataclass
class _Training:
    """One call of `xgb.train` or `cv`."""

    container: Any  # a weak reference
    thread: int
    number: int
    prefix: str
    first_round: int  # rounds of the model before it
    planned: int | None
    recorder: Recorder
    trees: bool = True  # the booster has trees that can be read
    predicts: bool = False  # predictions, labels or contributions may be asked for
    known: bool = False  # its document was written
    training_sets: frozenset[str] = frozenset()
    validation: Any = None
    train_data: Any = None
    per_round: int = 1  # trees
    parameters: dict[str, Any] = field(default_factory=dict)


def _rank() -> tuple[int, int] | None:
    try:
        from xgboost import collective

        if collective.is_distributed():
            return int(collective.get_rank()), int(collective.get_world_size())
    except Exception:  # a build without it
        pass
    return rank_from_environment()


class Hook(TrainingCallback):  # type: ignore[misc]
    """Attaches Luff to XGBoost::

        hook = luff.xgboost.Hook(run="runs/first")
        xgb.train(parameters, dtrain, 100, evals=[(dtrain, "train")], callbacks=[hook])

    Parameters
    ----------
    run
        Directory of the run, created; it must not exist unless `resume`. Under ``luff run`` the supervisor's is taken.
    collections
        What is saved beyond the metrics: names of collections (``feature_importance``, ``trees``, ``predictions``,
        ``labels``, ``average_shap``, ``full_shap``, ``hyperparameters``), or settings by name.
    hyperparameters
        Recorded as given; by default what the booster says of itself.
    train_data, validation_data
        A `DMatrix`, or a file and its kind (``"csv"`` with the label first, ``"libsvm"``), for SHAP values, and for
        predictions and labels. By default what is trained on, and the last evaluation set that is not that.
    resume
        Goes on in an existing run.
    on_stop
        Called before `StopTraining` is raised; besides those of `luff.on_stop`. `booster` holds the model.
    **options
        Capture settings: ``save_interval`` (10), ``start_step``, ``end_step``, ``save_steps``, ``save_all``,
        ``include_regex``, ``max_overhead``, ``max_bytes``, … (docs/capture.md).

    Attributes
    ----------
    guard
        Errors inside Luff, counted; none is ever raised into the training.

    Raises
    ------
    LuffError
        When the run exists already or cannot be created, or a setting is wrong.
    """

    def __init__(
        self,
        run: str | os.PathLike[str] | None = None,
        *,
        collections: Iterable[str | Mapping[str, Any]] | Mapping[str, Mapping[str, Any]] | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
        train_data: Any = None,
        validation_data: Any = None,
        resume: bool = False,
        on_stop: Callable[[], object] | None = None,
        _options: RunOptions | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self._hyperparameters = None if hyperparameters is None else dict(hyperparameters)
        self._train_data = read_data(train_data)
        self._validation_data = read_data(validation_data)
        self._on_stop = on_stop
        self.guard = Guard()
        self.lock = threading.RLock()
        self.live = True
        self._clock = StepClock()
        self._session: Session | None = None
        self._training: _Training | None = None
        self._ended: tuple[str, int] | None = None  # prefix and rounds of the training before
        self._trainings = 0
        self._document: list[dict[str, Any]] = []
        self._waiting: list[_Waiting] = []
        self._waiting_since = 0.0
        self._last_round = 0.0
        self._unwatched = 0
        self._booster: weakref.ref[Any] | None = None
        self._scalars: dict[str, int] = {}
        self._wanted = Wanted({})
        self._first_rank = True  # of the workers that train one model: it stores what all of them have
        if _options is not None:
            self._options = _options
        else:
            self._options = self._choose(run, resume, collections, options)
            self._open()
        living.add(self)

    @staticmethod
    def _choose(run: Any, resume: bool, collections: Any, options: dict[str, Any]) -> RunOptions:
        config = make_config(collections, options)
        supervised = run_from_environment()
        if supervised is not None:
            if collections is not None or options:
                base = supervised.config
                config["collections"] = [*base.get("collections", []), *_new(base, config["collections"])]
                supervised.config = {**base, **config, "defaults": base.get("defaults", True)}
            return RunOptions(supervised.path, supervised.resume, True, supervised.config)
        if run is None:
            raise InvalidArgumentError(
                "no run was given; pass run=DIRECTORY, or start the script by `luff run -- ...`"
            )
        return RunOptions(os.path.abspath(os.fspath(run)), resume, False, config)

    # For users -------------------------------------------------------------------------------------------------

    @property
    def run(self) -> str:
        """Path of the run directory."""
        return self._options.path

    @property
    def booster(self) -> Any:
        """The model of the training that is watched, while it exists."""
        return None if self._booster is None else self._booster()

    def save_scalar(self, name: str, value: float) -> None:
        """Records a number as ``scalar/NAME`` with the next round."""
        self._guarded("save_scalar", self._save_scalar, str(name), float(value))

    def health(self) -> dict[str, Any]:
        """Counters of the session, and errors of the hook."""
        report = dict(self._session.health()) if self._session is not None else {}
        report["hook_errors"] = self.guard.count
        report["hook_error_places"] = dict(self.guard.first)
        return report

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Waits until every round so far can be read; False if time ran out."""
        self._guarded("record", self._record_waiting)
        return bool(self._session.flush(timeout_s)) if self._session is not None else True

    def close(self, reason: int = int(EndReason.COMPLETED), timeout_s: float = 5.0) -> None:
        """Ends the run."""
        if not self.live:
            return
        self._guarded("close", self._record_waiting)
        self.live = False
        living.discard(self)
        corrections.forget(self._accept_corrections)
        if self._session is not None:
            try:
                if self.guard.unreported:
                    self.guard.report(self._session)
                self._session.close(int(reason), timeout_s)
            except Exception as error:
                self.guard.note("close", error)

    def __enter__(self) -> Hook:  # noqa: PYI034  (Self came with Python 3.11)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self.close(int(EndReason.COMPLETED if kind is None else EndReason.EXCEPTION))

    def __deepcopy__(self, memo: object) -> Hook:
        return self  # estimators copy their parameters

    def __reduce__(self) -> Any:
        return (TrainingCallback, ())  # another process has a hook of its own, or none

    # What the container tells ----------------------------------------------------------------------------------

    def begin(self, container: Any, model: Any, planned: int | None) -> None:
        """A training begins."""
        self._guarded("begin", self._begin, container, model, planned)

    def round(self, container: Any, model: Any, dtrain: Any, evals: Any) -> None:
        """A round has ended. Raises `luff.StopTraining` if a finding stops the run."""
        training = self._training
        if training is None or training.container() is not container:
            if self.live and self._session is not None:
                self._guarded("unwatched", self._not_watched)
            return
        self._guarded("round", self._round, training, container, model, dtrain, evals)
        session = self._session
        if session is not None and self.live and session.stop_state():
            self._guarded("record", self._record_waiting)
            self._act(session)

    def end(self, container: Any) -> None:
        """A training has ended."""
        self._guarded("end", self._end, container)

    # Steps -----------------------------------------------------------------------------------------------------

    def _begin(self, container: Any, model: Any, planned: int | None) -> None:
        running = self._training
        thread = threading.get_ident()
        if running is not None and running.container() is not None and running.thread != thread:
            return  # another thread trains: its rounds are steps already
        self._record_waiting()
        self._training = None
        if len(self._document) >= _MAX_TRAININGS:
            return
        session = self._session or self._open()
        if session is None:
            return
        rounds = int(model.num_boosted_rounds())
        if self._ended is not None and rounds > 0 and self._ended[1] == rounds:
            prefix = self._ended[0]  # the model of the training before goes on
        else:
            self._trainings += 1
            prefix = "" if self._trainings == 1 else f"fit{self._trainings}/"
        self._booster = weakref.ref(model)
        recorder = Recorder(session, prefix, self._wanted)
        self._training = _Training(
            weakref.ref(container), thread, self._trainings, prefix, rounds, planned, recorder
        )

    def _round(self, training: _Training, container: Any, model: Any, dtrain: Any, evals: Any) -> None:
        session = self._session
        if session is None:
            return
        folds = getattr(model, "cvfolds", None)
        if not training.known:
            self._describe(training, model, folds, dtrain, evals)
        waiting = _Waiting(int(model.num_boosted_rounds()), list(latest(container.history)))
        if training.predicts:
            session.begin_step(_TRAIN, self._clock.mode_steps[_TRAIN] + len(self._waiting))
            self._predict(training, model, waiting)
        now = time.monotonic()
        if not self._waiting:
            self._waiting_since = now
        self._waiting.append(waiting)
        # Short rounds are recorded many at a time: what is cold after a round is paid for once.
        full = len(self._waiting) >= _WAIT_ROUNDS or bool(waiting.values)
        if full or now - self._waiting_since >= _WAIT_S or now - self._last_round >= _WAIT_S:
            self._record_waiting()
        self._last_round = now

    def _record_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        training, session = self._training, self._session
        if not waiting or training is None or session is None:
            return
        read: tuple[int, Rounds] | None = None
        for one in waiting:
            session.begin_step(_TRAIN, self._clock.mode_steps[_TRAIN])
            try:
                recorder = training.recorder
                recorder.metrics(one.metrics, training.training_sets)
                if session.due_role(_OTHER):
                    recorder.hyperparameters(training.parameters)
                    read = self._trees(training, one, waiting[-1], read)
                for name, value in one.values.items():
                    self._value(recorder, name, value)
                session.event(_OPTIMIZER_STEP, training.number - 1)
            except Exception as error:
                self.guard.note("record", error)
            self._publish(session, training, one)

    def _publish(self, session: Session, training: _Training, one: _Waiting) -> None:
        if self.guard.unreported:
            self.guard.report(session)
        clock = self._clock
        update = max(one.rounds - 1, 0)
        if training.first_round == 0:  # a model that goes on has counted the rounds of the run before
            update += clock.first_update
        session.end_step(_TRAIN, clock.global_step, clock.mode_steps[_TRAIN], update)
        clock.advance(_TRAIN)

    def _trees(
        self, training: _Training, one: _Waiting, last: _Waiting, read: tuple[int, Rounds] | None
    ) -> tuple[int, Rounds] | None:
        """Records trees and importance of a round; returns what was read of it and the rounds after it."""
        recorder = training.recorder
        if not training.trees:
            return read
        trees_due, importance_due = recorder.trees_due(), recorder.importance_due()
        if not trees_due and not importance_due:
            return read
        booster = self.booster
        begin = recorder.read_to if importance_due else one.rounds - 1
        if read is None or not read[0] <= begin < read[0] + len(read[1].ends):
            try:
                read = (begin, read_rounds(booster, begin, max(last.rounds, one.rounds)))
            except Exception as error:
                training.trees = False
                self.guard.note("trees", error)
                form = int(Form.RAW) if trees_due else int(Form.SUMMARY)
                recorder.missing("trees/Node", _OTHER, GapReason.UNSUPPORTED, form)
                return None
        first, rounds = read
        index = one.rounds - 1 - first
        if importance_due:
            start = rounds.ends[begin - first - 1] if begin > first else 0
            rows = slice(start, rounds.ends[index])
            columns = rounds.columns
            recorder.importance.add(columns["Feature"][rows], columns["Gain"][rows], columns["Cover"][rows])
            recorder.read_to = one.rounds
            recorder.importances()
        if trees_due:
            recorder.trees(rounds, index, (one.rounds - 1) * rounds.trees[index])
        return read

    def _predict(self, training: _Training, model: Any, waiting: _Waiting) -> None:
        """Asks the model for what is due of its predictions; only the model of this round can give it."""
        recorder, values = training.recorder, waiting.values
        data = training.validation
        if recorder.due("predictions"):
            values["predictions"] = None if data is None else model.predict(data)
        if recorder.due("labels", _LABEL):
            values["labels"] = None if data is None else data.get_label()
        average, full = recorder.shap_due("average_shap"), recorder.shap_due("full_shap")
        if average or full:
            shap = (
                None
                if training.train_data is None
                else model.predict(training.train_data, pred_contribs=True)
            )
            values["shap"] = (shap, average, full)

    def _value(self, recorder: Recorder, name: str, value: Any) -> None:
        raw = int(Form.RAW)
        if name == "shap":
            shap, average, full = value
            if shap is None:
                recorder.missing(f"full_shap/{recorder.feature(0)}", _OTHER, GapReason.NOT_SEEN, raw)
            else:
                recorder.shap(shap, average, full)
            return
        role = _LABEL if name == "labels" else _OTHER
        if value is None:
            recorder.missing(name, role, GapReason.NOT_SEEN, raw)
        else:
            recorder.array(name, value, role)

    def _end(self, container: Any) -> None:
        training = self._training
        if training is None or training.container() is not container:
            return
        last = self._waiting[-1].rounds if self._waiting else None
        self._record_waiting()
        booster = self.booster
        rounds = last if last is not None else (0 if booster is None else int(booster.num_boosted_rounds()))
        self._ended = (training.prefix, rounds)
        self._training = None
        if self._session is not None:  # a process may end without a word right after its training
            self._session.flush(_FLUSH_S)

    def _not_watched(self) -> None:
        """A training beside the one that is watched, or one too many: its rounds are counted only."""
        self._unwatched += 1
        if self._session is not None and self._unwatched & (self._unwatched - 1) == 0:
            reason = GapReason.TOO_MANY if len(self._document) >= _MAX_TRAININGS else GapReason.NOT_SEEN
            self._session.gap(0xFFFFFFFF, int(reason), 0, max(self._unwatched // 2, 1))

    # Describing ------------------------------------------------------------------------------------------------

    def _describe(self, training: _Training, model: Any, folds: Any, dtrain: Any, evals: Any) -> None:
        training.known = True
        booster = folds[0].bst if folds else model
        if folds:
            training.training_sets = frozenset(("train",))
            training.trees = False
        else:
            training.training_sets = frozenset(name for data, name in evals or () if data is dtrain)
        others = [data for data, name in evals or () if data is not dtrain]
        training.validation = others[-1] if others else None
        if self._validation_data is not None:
            training.validation = self._validation_data
        training.train_data = dtrain if self._train_data is None else self._train_data
        names = feature_names(booster)
        training.recorder.features = names
        settings, kind = parameters_of(booster)
        training.parameters = settings if self._hyperparameters is None else self._hyperparameters
        if not self._first_rank:
            training.parameters = {}
        training.trees = training.trees and self._first_rank and kind in ("gbtree", "dart", "")
        training.predicts = not folds and training.recorder.predictions_wanted()
        record = {
            "number": training.number,
            "prefix": training.prefix,
            "first_step": self._clock.mode_steps[_TRAIN],
            "booster": kind,
            "rounds_before": training.first_round,
            "rounds_planned": training.planned,
            "folds": len(folds) if folds else 0,
            "rows": rows_of(dtrain),
            "features": names[:10_000],
            "feature_count": len(names),
            "evaluations": [
                {"name": name, "training": data is dtrain, "rows": rows_of(data)}
                for data, name in evals or ()
            ],
            "parameters": settings,
            "given": None if self._hyperparameters is None else sorted(map(str, self._hyperparameters)),
        }
        self._document.append(record)
        if self._session is not None:
            text = json.dumps({"xgboost": xgboost.__version__, "trainings": self._document}, default=str)
            self._session.set_document("boosting", text)

    def _save_scalar(self, name: str, value: float) -> None:
        session = self._session or self._open()
        if session is not None:
            number = self._scalars.get(name)
            if number is None:
                number = self._scalars[name] = session.define_tensor(f"scalar/{name}", int(Role.SCALAR))
            session.scalar(number, value)

    # Session ---------------------------------------------------------------------------------------------------

    def _open(self) -> Session | None:
        if not self.live:
            return None
        point = resume_point(self._options.path) if self._options.resume else None
        rank = _rank()
        session = open_session(self._options, rank)
        if point is not None:
            self._clock.resume(point)
        self._session = session
        self._first_rank = rank is None or rank[0] == 0
        self._wanted = Wanted(self._options.config)
        stop.watch(self)
        session.accept_actions(corrections.accepted().kinds())
        corrections.listen(self._accept_corrections)
        session.set_document(
            "environment",
            environment_document(framework="xgboost", xgboost=xgboost.__version__, rank=rank),
        )
        return session

    def _accept_corrections(self) -> None:
        if self._session is not None:
            self._session.accept_actions(corrections.accepted().kinds())

    def _act(self, session: Session) -> None:
        """Carries out what all ranks have agreed on; raises `luff.StopTraining` if a finding stops the run."""
        try:
            answer = session.at_step_boundary(self._clock.mode_steps[_TRAIN])
        except Exception as error:
            self.guard.note("stop", error)
            return
        if answer == _ACT:
            self._guarded("correction", self._correct, session)
        if answer != _STOP:
            return
        reason = self._guarded("stop", session.stop_reason) or ""
        for callback in (self._on_stop, *stop.callbacks()):
            try:
                if callback is not None:
                    callback()
            except Exception as error:
                self.guard.note("on_stop", error)
        self.close(int(EndReason.STOPPED))
        stop.raise_stop(reason)

    def _correct(self, session: Session) -> None:
        action = session.take_action()
        if action is None:
            return
        control, kind, body, _ = action
        done = False
        try:
            corrections.accepted().carry_out(kind, body, self._lower_lr)
            done = True
        except Exception as error:
            self.guard.note(f"correction {kind}", error)
        session.action_done(control, done)

    def _lower_lr(self, factor: float) -> None:
        booster = self.booster
        if booster is None:
            raise LookupError("no training is under way")
        settings, _ = parameters_of(booster)
        booster.set_param({"eta": float(settings["eta"]) * factor})

    def forked(self) -> None:
        """In a forked child: nothing of the parent's session is ours."""
        session, self._session = self._session, None
        self.lock = threading.RLock()
        self._training, self._waiting, self._clock = None, [], StepClock()
        self._scalars.clear()
        self._options.join = True
        if session is not None:
            session.after_fork_in_child()
            session.close(int(EndReason.FAILED), 0.0)

    def _guarded(self, place: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Runs Luff's own work: errors are counted, never raised."""
        if not self.live and place != "close":
            return None
        try:
            with self.lock:
                return function(*arguments)
        except Exception as error:
            self.guard.note(place, error)
            if self.guard.count > _MAX_ERRORS:
                self.live = False
            return None


def _new(base: Mapping[str, Any], collections: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Collections that the supervisor's configuration does not name."""
    known = {item.get("name") for item in base.get("collections", [])}
    return [item for item in collections if item.get("name") not in known]


def _after_fork() -> None:
    stop.forget()
    for hook in list(living):
        try:
            hook.forked()
        except Exception as error:
            hook.guard.note("fork", error)


os.register_at_fork(after_in_child=_after_fork)
