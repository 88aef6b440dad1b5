"""The hook of boosting libraries: one run, one training after another; each boosting round is a TRAIN step."""

from __future__ import annotations

import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from luff._base_hook import Collections, choose_run
from luff._boosting._config import Wanted, make_config
from luff._boosting._recorder import Metric, Recorder
from luff._boosting._trees import COLUMNS, Rounds
from luff._codes import EventKind, Form, GapReason, Mode, Role
from luff._hook import RunOptions, Session
from luff._step_hook import StepHook
from luff._step_writer import MAX_WAITING_NS, MAX_WAITING_STEPS, Saved
from luff.corrections import Corrections

__all__ = ["BoostingHook", "Facts", "Training"]

_TRAIN = int(Mode.TRAIN)
_OTHER, _LABEL = int(Role.OTHER), int(Role.LABEL)
_OPTIMIZER_STEP = int(EventKind.OPTIMIZER_STEP)
_MAX_TRAININGS = 64
_FLUSH_S = 2.0


@dataclass
class Facts:
    """Describes a training once its first round has ended (docs/spec/evidence.md)."""

    booster: str
    features: list[str]
    parameters: dict[str, Any]
    rows: int | None
    evaluations: list[dict[str, Any]]
    training_sets: frozenset[str]  # names of the evaluation sets that hold what is trained on
    folds: int = 0
    trees: bool = True  # it has trees that can be read
    changing: bool = False  # later rounds change its trees: each is read at once
    hyperparameters: dict[str, Any] | None = None  # recorded; by default `parameters`
    validation: Any = None  # what predictions are asked for
    train_data: Any = None  # what contributions are asked for


@dataclass
class _Waiting:
    """A finished round that is not yet recorded."""

    rounds: int  # of the model, this one included
    grown: bool  # the round has added trees
    metrics: list[Metric]
    saved: Saved  # by users
    ended_ns: int  # Unix time
    lasted_ns: int  # since the end of the round before it
    values: dict[str, Any] = field(default_factory=dict)  # what the model gave while it was of this round


@dataclass
class Training:
    """One training that is watched."""

    key: Any  # a weak reference to what stands for it
    thread: int
    number: int
    prefix: str
    first_round: int  # rounds of the model before it
    planned: int | None
    recorder: Recorder
    rounds: int  # of the model so far
    trees: bool = True  # trees can be read
    changing: bool = False  # later rounds change its trees
    predicts: bool = False  # predictions, labels or contributions may be asked for
    known: bool = False  # its document was written
    training_sets: frozenset[str] = frozenset()
    validation: Any = None
    train_data: Any = None
    parameters: dict[str, Any] = field(default_factory=dict)


class BoostingHook(StepHook):
    """Rounds of boosting as the steps of one run.

    A library's hook calls `training_begins`, `round_ended` and `training_ended`, and says what its boosters hold.

    Parameters
    ----------
    collections, options
        As users give them; `hyperparameters` is recorded instead of what the booster says of itself.
    default
        The supervisor's run, of the hook that ``luff run`` makes; it opens with the first training.
    """

    #: Columns of the trees.
    columns: Sequence[str] = COLUMNS

    def __init__(
        self,
        run: str | os.PathLike[str] | None,
        collections: Collections,
        hyperparameters: Mapping[str, Any] | None,
        resume: bool,
        on_stop: Callable[[], object] | None,
        correct: Corrections | None,
        default: RunOptions | None,
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(default or self.choose(run, collections, resume, options), on_stop, correct)
        self._hyperparameters = None if hyperparameters is None else dict(hyperparameters)
        self._training: Training | None = None
        self._ended: tuple[str, int] | None = None  # prefix and rounds of the training before
        self._trainings = 0
        self._document: list[dict[str, Any]] = []
        self._waiting: list[_Waiting] = []
        self._round_ended_ns = 0  # the last one, of whatever training
        self._unwatched = 0
        self._booster: weakref.ref[Any] | None = None
        self._wanted: Wanted | None = None
        self._first_rank = True  # of the workers that train one model: it stores what all of them have
        if default is None:
            self.open_now()

    # What a library says ---------------------------------------------------------------------------------------

    @staticmethod
    def choose(
        run: str | os.PathLike[str] | None, collections: Collections, resume: bool, options: Mapping[str, Any]
    ) -> RunOptions:
        """The run, and its capture configuration."""
        return choose_run(run, resume, make_config(collections, options), _merge(collections, options))

    def is_loss(self, metric: str) -> bool:
        """Whether a metric is a loss of the library's own that a training lowers smoothly."""
        raise NotImplementedError

    def read_rounds(self, model: Any, begin: int, end: int) -> Rounds:
        """Trees of rounds `begin` to `end` (exclusive). Errors switch the reading of trees off."""
        raise NotImplementedError

    def predictions(self, training: Training, model: Any) -> Any:
        """What the model of this round gives for `training.validation`; None if it cannot tell."""
        raise NotImplementedError

    def labels(self, training: Training) -> Any:
        """Labels of `training.validation`, or None."""
        raise NotImplementedError

    def contributions(self, training: Training, model: Any) -> Any:
        """Contributions to the predictions for `training.train_data`, the last axis features and bias, or None."""
        raise NotImplementedError

    # For users -------------------------------------------------------------------------------------------------

    @property
    def booster(self) -> Any:
        """The model of the training that is watched, while it exists."""
        return None if self._booster is None else self._booster()

    # What the library tells ------------------------------------------------------------------------------------

    def training_begins(self, key: Any, model: Any, rounds: int, planned: int | None) -> None:
        """A training begins. `key` stands for it; `rounds` are those that the model has already."""
        self.while_live("begin", self._begin, key, model, rounds, planned)
        if self.registry is not None and self.watches(key):
            self.registry.hold(self, model)

    def round_ended(
        self,
        key: Any,
        model: Any,
        rounds: Callable[[], int],
        metrics: Callable[[], list[Metric]],
        facts: Callable[[], Facts],
    ) -> None:
        """A round has ended: rounds of the model, newest metrics; `facts` is asked in the first round.

        Raises
        ------
        StopTraining
            If a finding stops the run.
        """
        training = self._training
        if training is None or training.key() is not key:
            if self.live and self.session is not None:
                self.guarded("unwatched", self._not_watched)
            return
        self.while_live("round", self._round, training, model, rounds, metrics, facts)
        self.boundary()

    def training_ended(self, key: Any, rounds: Callable[[], int] | None = None) -> None:
        """A training has ended; `rounds`: what its model has now, if not what it had in the last round."""
        self.while_live("end", self._end, key, rounds)

    def wanted(self) -> Wanted:
        """All that the configuration can ask for."""
        if self._wanted is None:
            self._wanted = Wanted(self._options.config)
        return self._wanted

    def watches(self, key: Any) -> bool:
        """Whether the training that `key` stands for is the one that is watched."""
        training = self._training
        return training is not None and training.key() is key

    # Steps -----------------------------------------------------------------------------------------------------

    def _begin(self, key: Any, model: Any, rounds: int, planned: int | None) -> None:
        running = self._training
        thread = threading.get_ident()
        if running is not None and running.key() is not None and running.thread != thread:
            return  # another thread trains: its rounds are steps already
        self._record_waiting()
        self._training = None
        if (
            len(self._document) >= _MAX_TRAININGS
            or self.ensure_session() is None
            or self.steps.arrays is None
        ):
            return
        if self._ended is not None and rounds > 0 and self._ended[1] == rounds:
            prefix = self._ended[0]  # the model of the training before goes on
        else:
            self._trainings += 1
            prefix = "" if self._trainings == 1 else f"fit{self._trainings}/"
        self._booster = weakref.ref(model)
        if self.registry is not None:
            self.registry.enter(self)
        recorder = Recorder(self.steps.arrays, prefix, self.wanted(), self.is_loss, self.columns)
        self._training = Training(
            weakref.ref(key), thread, self._trainings, prefix, rounds, planned, recorder, rounds
        )

    def _round(
        self,
        training: Training,
        model: Any,
        rounds: Callable[[], int],
        metrics: Callable[[], list[Metric]],
        facts: Callable[[], Facts],
    ) -> None:
        session = self.session
        if session is None:
            return
        first = not training.known
        if first:
            training.known = True
            try:
                self._describe(training, facts())
            except Exception as error:  # its rounds are recorded all the same
                self.guard.note("describe", error)
        before, training.rounds = training.rounds, rounds()
        last, ended = self._round_ended_ns, time.time_ns()
        self._round_ended_ns = ended
        lasted = 0 if first else max(ended - last, 0)
        saved = self.steps.take_saved()
        waiting = _Waiting(training.rounds, training.rounds > before, metrics(), saved, ended, lasted)
        if training.predicts:
            session.begin_step(_TRAIN, self.steps.clock.mode_steps[_TRAIN] + len(self._waiting))
            self._predict(training, model, waiting)
        self._waiting.append(waiting)
        # Short rounds are recorded many at a time: what is cold after a round is paid for once.
        full = len(self._waiting) >= MAX_WAITING_STEPS or bool(waiting.values or saved.arrays)
        full = full or (training.changing and training.trees)
        if full or ended - min(last, self._waiting[0].ended_ns) >= MAX_WAITING_NS:
            self._record_waiting()

    def _record_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        training, session = self._training, self.session
        if not waiting or training is None or session is None:
            return
        read: tuple[int, Rounds] | None = None
        for one in waiting:
            update = max(one.rounds - 1, 0)
            if training.first_round == 0:  # a model that goes on has counted the rounds of the run before
                update += self.steps.clock.first_update
            self.steps.begin(_TRAIN, saved=one.saved, update=update)
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
            self.steps.end(one.ended_ns, one.lasted_ns)

    def _trees(
        self, training: Training, one: _Waiting, last: _Waiting, read: tuple[int, Rounds] | None
    ) -> tuple[int, Rounds] | None:
        """Records trees and importance of a round; returns what was read of it and the rounds after it."""
        recorder = training.recorder
        if not training.trees:
            return read
        trees_due = one.grown and recorder.trees_due()
        importance_due = recorder.importance_due()
        if not trees_due and not importance_due:
            return read
        if importance_due and recorder.read_to >= one.rounds:  # nothing has grown since
            recorder.importances()
            return read
        booster = self.booster
        begin = recorder.read_to if importance_due else one.rounds - 1
        if read is None or not read[0] <= begin < read[0] + len(read[1].ends):
            try:
                read = (begin, self.read_rounds(booster, begin, max(last.rounds, one.rounds)))
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

    def _predict(self, training: Training, model: Any, waiting: _Waiting) -> None:
        """Asks the model of this round for the predictions that are due; later it has changed."""
        recorder, values = training.recorder, waiting.values

        def ask(data: Any, function: Callable[..., Any], *arguments: Any) -> Any:
            try:
                return None if data is None else function(training, *arguments)
            except Exception as error:  # the round is recorded without
                self.guard.note("predict", error)
                return None

        if recorder.due("predictions"):
            values["predictions"] = ask(training.validation, self.predictions, model)
        if recorder.due("labels", _LABEL):
            values["labels"] = ask(training.validation, self.labels)
        average, full = recorder.shap_due("average_shap"), recorder.shap_due("full_shap")
        if average or full:
            values["shap"] = (ask(training.train_data, self.contributions, model), average, full)

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

    def _end(self, key: Any, rounds: Callable[[], int] | None) -> None:
        training = self._training
        if training is None or training.key() is not key:
            return
        self._record_waiting()
        self._ended = (training.prefix, training.rounds if rounds is None else rounds())
        self._training = None
        if self.session is not None:  # a process may end without a word right after its training
            self.session.flush(_FLUSH_S)

    def _not_watched(self) -> None:
        """Counts a round of a training that is not watched: another one is, or there are too many."""
        self._unwatched += 1
        if self.session is not None and self._unwatched & (self._unwatched - 1) == 0:
            reason = GapReason.TOO_MANY if len(self._document) >= _MAX_TRAININGS else GapReason.NOT_SEEN
            self.session.gap(0xFFFFFFFF, int(reason), 0, max(self._unwatched // 2, 1))

    # Describing ------------------------------------------------------------------------------------------------

    def _describe(self, training: Training, facts: Facts) -> None:
        given = self._hyperparameters
        training.training_sets = facts.training_sets
        training.validation, training.train_data = facts.validation, facts.train_data
        training.recorder.features = facts.features
        own = facts.parameters if facts.hyperparameters is None else facts.hyperparameters
        if self._first_rank:
            training.parameters = own if given is None else given
        training.trees = facts.trees and not facts.folds and self._first_rank
        training.changing = facts.changing and training.recorder.trees_wanted()
        training.predicts = not facts.folds and training.recorder.predictions_wanted()
        record = {
            "number": training.number,
            "prefix": training.prefix,
            "first_step": self.steps.clock.mode_steps[_TRAIN],
            "booster": facts.booster,
            "rounds_before": training.first_round,
            "rounds_planned": training.planned,
            "folds": facts.folds,
            "rows": facts.rows,
            "features": facts.features[:10_000],
            "feature_count": len(facts.features),
            "evaluations": facts.evaluations,
            "parameters": facts.parameters,
            "given": None if given is None else sorted(map(str, given)),
        }
        self._document.append(record)
        if self.session is not None:
            text = json.dumps({**self.versions(), "trainings": self._document}, default=str)
            self.session.set_document("boosting", text)

    # Session ---------------------------------------------------------------------------------------------------

    def opened(self, session: Session) -> None:  # noqa: ARG002
        """Finds out whether this worker is the first rank."""
        rank = self.rank()
        self._first_rank = rank is None or rank[0] == 0

    def publish(self) -> None:
        """Records the rounds that wait."""
        self._record_waiting()

    def forked(self) -> None:
        """In a forked child: nothing of the parent's session is ours."""
        super().forked()
        self._training, self._waiting = None, []


def _merge(collections: Any, options: Mapping[str, Any]) -> Callable[..., dict[str, Any]]:
    """How the hook's configuration goes into the supervisor's: its collections win."""

    def merge(base: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
        if collections is None and not options:
            return base
        known = {item.get("name") for item in base.get("collections", [])}
        fresh = [item for item in config["collections"] if item.get("name") not in known]
        config["collections"] = [*base.get("collections", []), *fresh]
        return {**base, **config, "defaults": base.get("defaults", True)}

    return merge
