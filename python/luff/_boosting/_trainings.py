"""Trainings of a boosting library, one after the other: each boosting round is a TRAIN step of the hook's run."""

from __future__ import annotations

import functools
import json
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from luff._boosting._config import Wanted
from luff._boosting._recorder import Metric, Recorder
from luff._boosting._trees import COLUMNS, Rounds
from luff._codes import NO_ID, EventKind, Form, GapReason, Mode, Role
from luff._step_hook import StepHook
from luff._step_writer import MAX_WAITING_NS, MAX_WAITING_STEPS, Saved, StepWriter

__all__ = ["Facts", "Library", "Trainings"]

_TRAIN = int(Mode.TRAIN)
_OTHER, _LABEL = int(Role.OTHER), int(Role.LABEL)
_OPTIMIZER_STEP = int(EventKind.OPTIMIZER_STEP)
_MAX_TRAININGS = 64
#: A training of fewer rounds goes on in the run of the one before. A round is a pass over the data, and many trainings
#: are stopped early, so it is less than for batches.
_SHORT = 20
_FLUSH_S = 2.0


@dataclass(frozen=True)
class Library:
    """What all trainings of a library have in common.

    Attributes
    ----------
    is_loss
        Whether a metric is one of the library's own losses, which a training lowers smoothly.
    read_rounds
        Reads the trees of a model from one round to another (exclusive). An error turns the reading of trees off.
    columns
        Columns of the trees.
    """

    is_loss: Callable[[str], bool]
    read_rounds: Callable[[Any, int, int], Rounds]
    columns: Sequence[str] = COLUMNS


@dataclass
class Facts:
    """Describes a training once its first round has ended (docs/spec/evidence.md).

    The hook keeps the functions for as long as the training lasts, so they must hold neither the hook nor the model.
    """

    booster: str
    features: list[str]
    parameters: dict[str, Any]
    rows: int | None
    evaluations: list[dict[str, Any]]
    training_sets: frozenset[str]  # names of the evaluation sets that contain training data
    folds: int = 0
    trees: bool = True  # whether its trees can be read
    changing: bool = False  # whether later rounds change its trees, so that each round's are read at once
    hyperparameters: dict[str, Any] | None = None  # to be recorded; by default `parameters`
    predictions: Callable[[Any], Any] | None = None  # computes them from the model, for the validation data
    labels: Callable[[], Any] | None = None  # returns those of the validation data
    # computes SHAP values from the model; the last axis: features, then bias
    contributions: Callable[[Any], Any] | None = None
    # returns what is known of the training's data, and of each evaluation's (`describe_data`)
    data: Callable[[], tuple[dict[str, Any], list[dict[str, Any]]]] | None = None


@dataclass
class _Waiting:
    """A finished round that is not yet recorded."""

    rounds: int  # number of the model's rounds, including this one
    grown: bool  # whether the round added trees
    metrics: list[Metric]
    saved: Saved  # by users
    ended_ns: int  # Unix time
    lasted_ns: int  # since the previous round ended
    # each records an answer of this round's model
    answers: list[Callable[[], None]] = field(default_factory=list)


@dataclass
class _Training:
    """One training that is watched."""

    key: Any  # weak reference to the object that identifies it
    thread: int
    number: int
    prefix: str
    first_round: int  # number of rounds that the model had before
    planned: int | None
    recorder: Recorder
    rounds: int  # number of the model's rounds so far
    trees: bool = True  # whether trees can be read
    changing: bool = False  # whether later rounds change its trees
    asked: Facts | None = None  # provides predictions, labels and contributions; None if none can be due
    known: bool = False  # whether its document was written
    training_sets: frozenset[str] = frozenset()
    parameters: dict[str, Any] = field(default_factory=dict)


class Trainings:
    """Turns the trainings of a hook into steps. The hook owns it, and calls its `publish` and `forked`.

    Parameters
    ----------
    hook
        Held weakly, so that it dies with its owner.
    config
        Capture configuration of the hook.
    library
        What all trainings of the library have in common.
    hyperparameters
        Recorded instead of the model's own.
    """

    def __init__(
        self,
        hook: StepHook,
        config: Mapping[str, Any],
        library: Library,
        hyperparameters: Mapping[str, Any] | None = None,
    ) -> None:
        self._hook = weakref.ref(hook)
        self._steps, self._guard = hook.steps, hook.guard
        self._config = config
        self._library = library
        self._hyperparameters = None if hyperparameters is None else dict(hyperparameters)
        self._training: _Training | None = None
        self._ended: tuple[str, int] | None = None  # prefix and number of rounds of the previous training
        self._trainings = 0
        self._document: list[dict[str, Any]] = []
        self._waiting: list[_Waiting] = []
        self._round_ended_ns = 0  # end of the last round, of whichever training
        self._unwatched = 0
        self._booster: weakref.ref[Any] | None = None
        self._wanted: Wanted | None = None

    @property
    def booster(self) -> Any:
        """The model of the watched training, while it exists."""
        return None if self._booster is None else self._booster()

    @property
    def thread(self) -> int | None:
        """The thread of the watched training."""
        return None if self._training is None else self._training.thread

    def wanted(self) -> Wanted:
        """Returns everything that the configuration can ask for."""
        if self._wanted is None:
            self._wanted = Wanted(self._config)
        return self._wanted

    def watched(self, key: Any) -> _Training | None:
        """Returns the watched training if `key` identifies it, otherwise None."""
        training = self._training
        return training if training is not None and training.key() is key else None

    # Called when the library trains ----------------------------------------------------------------------------

    def begins(self, key: Any, model: Any, rounds: int, planned: int | None) -> None:
        """Begins a training. `key` identifies it; `rounds` is the number of rounds that the model already has."""
        hook = self._hook()
        if hook is None:
            return
        hook.while_live("begin", self._begin, hook, key, model, rounds, planned)
        if hook.registry is not None and self.watched(key) is not None:
            hook.registry.hold(hook, model)

    def round_ended(
        self,
        key: Any,
        model: Any,
        rounds: Callable[[], int],
        metrics: Callable[[], list[Metric]],
        facts: Callable[[], Facts],
    ) -> None:
        """Ends a round. `rounds` and `metrics` return the model's rounds and newest metrics; `facts` is for the
        first.

        Raises
        ------
        StopTraining
            If a finding stops the run.
        """
        hook, training = self._hook(), self.watched(key)
        if hook is None:
            return
        if training is None:
            hook.while_live("unwatched", self._not_watched)
            return
        hook.while_live("round", self._round, hook, training, model, rounds, metrics, facts)
        hook.boundary()

    def ended(self, key: Any, rounds: Callable[[], int] | None = None) -> None:
        """Ends a training. `rounds` returns the model's rounds, if they differ from those after the last round."""
        hook = self._hook()
        if hook is not None:
            hook.while_live("end", self._end, key, rounds)

    # Steps -----------------------------------------------------------------------------------------------------

    def _begin(self, hook: StepHook, key: Any, model: Any, rounds: int, planned: int | None) -> None:
        running = self._training
        thread = threading.get_ident()
        under_way = running is not None and running.key() is not None
        if running is not None and under_way and running.thread != thread:
            return  # another thread is training: the run's steps are its rounds
        self.publish()
        self._training = None
        if (
            rounds == 0 and not under_way
        ):  # neither a model that is trained further, nor a training within another
            hook.trains(model, anew=True, short=_SHORT)
        if (
            len(self._document) >= _MAX_TRAININGS
            or hook.ensure_session() is None
            or self._steps.arrays is None
        ):
            return
        if self._ended is not None and rounds > 0 and self._ended[1] == rounds:
            prefix = self._ended[0]  # the model of the previous training is trained further
        else:
            self._trainings += 1
            prefix = "" if self._trainings == 1 else f"fit{self._trainings}/"
        self._booster = weakref.ref(model)
        if hook.registry is not None:
            hook.registry.enter(hook)
        library = self._library
        recorder = Recorder(self._steps.arrays, prefix, self.wanted(), library.is_loss, library.columns)
        self._training = _Training(
            weakref.ref(key), thread, self._trainings, prefix, rounds, planned, recorder, rounds
        )

    def _round(
        self,
        hook: StepHook,
        training: _Training,
        model: Any,
        rounds: Callable[[], int],
        metrics: Callable[[], list[Metric]],
        facts: Callable[[], Facts],
    ) -> None:
        steps, session = self._steps, self._steps.session
        if session is None:
            return
        session.mark_step_end()
        first = not training.known
        if first:
            training.known = True
            try:
                self._describe(hook, training, facts())
            except Exception as error:  # the rounds are recorded nevertheless
                self._guard.note("describe", error)
        before, training.rounds = training.rounds, rounds()
        last, ended = self._round_ended_ns, time.time_ns()
        self._round_ended_ns = ended
        lasted = 0 if first else max(ended - last, 0)
        saved = steps.take_saved()
        waiting = _Waiting(training.rounds, training.rounds > before, metrics(), saved, ended, lasted)
        if training.asked is not None:
            session.begin_step(_TRAIN, steps.clock.mode_steps[_TRAIN] + len(self._waiting))
            self._ask(training.recorder, training.asked, model, waiting.answers)
        self._waiting.append(waiting)
        # Short rounds are recorded in batches: the cost of cold caches after a round is then paid once per batch.
        full = len(self._waiting) >= MAX_WAITING_STEPS or bool(waiting.answers or saved.arrays)
        full = full or (training.changing and training.trees)
        if full or ended - min(last, self._waiting[0].ended_ns) >= MAX_WAITING_NS:
            self.publish()

    def publish(self) -> None:
        """Records the rounds that are waiting."""
        waiting, self._waiting = self._waiting, []
        training, steps, session = self._training, self._steps, self._steps.session
        if not waiting or training is None or session is None:
            return
        read: tuple[int, Rounds] | None = None
        for one in waiting:
            update = max(one.rounds - 1, 0)
            # a model that is trained further has already counted the rounds of the earlier run
            if training.first_round == 0:
                update += steps.clock.first_update
            steps.begin(_TRAIN, saved=one.saved, update=update)
            try:
                recorder = training.recorder
                recorder.metrics(one.metrics, training.training_sets)
                if session.due_role(_OTHER):
                    recorder.hyperparameters(training.parameters)
                    read = self._trees(training, one, waiting[-1], read)
                for record in one.answers:
                    record()
                session.event(_OPTIMIZER_STEP, training.number - 1)
            except Exception as error:
                self._guard.note("record", error)
            steps.end(one.ended_ns, one.lasted_ns)

    def _trees(
        self, training: _Training, one: _Waiting, last: _Waiting, read: tuple[int, Rounds] | None
    ) -> tuple[int, Rounds] | None:
        """Records trees and importance of a round. Returns what was read for it and the rounds after it."""
        recorder = training.recorder
        if not training.trees:
            return read
        trees_due = one.grown and recorder.trees_due()
        importance_due = recorder.importance_due()
        if not trees_due and not importance_due:
            return read
        if importance_due and recorder.read_to >= one.rounds:  # no tree was added since
            recorder.importances()
            return read
        booster = self.booster
        begin = recorder.read_to if importance_due else one.rounds - 1
        if read is None or not read[0] <= begin < read[0] + len(read[1].ends):
            try:
                read = (begin, self._library.read_rounds(booster, begin, max(last.rounds, one.rounds)))
            except Exception as error:
                training.trees = False
                self._guard.note("trees", error)
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

    def _ask(self, recorder: Recorder, facts: Facts, model: Any, answers: list[Callable[[], None]]) -> None:
        """Asks this round's model for what is due, before the next round changes it."""

        def ask(question: Callable[..., Any] | None, *arguments: Any) -> Any:
            try:
                return None if question is None else question(*arguments)
            except Exception as error:  # the round is recorded without it
                self._guard.note("predict", error)
                return None

        if recorder.due("predictions"):
            values = ask(facts.predictions, model)
            answers.append(functools.partial(recorder.array, "predictions", values))
        if recorder.due("labels", _LABEL):
            answers.append(functools.partial(recorder.array, "labels", ask(facts.labels), _LABEL))
        average, full = recorder.shap_due("average_shap"), recorder.shap_due("full_shap")
        if average or full:
            values = ask(facts.contributions, model)
            answers.append(functools.partial(recorder.shap, values, average, full))

    def _end(self, key: Any, rounds: Callable[[], int] | None) -> None:
        training = self.watched(key)
        if training is None:
            return
        self.publish()
        self._ended = (training.prefix, training.rounds if rounds is None else rounds())
        self._training = None
        if self._steps.session is not None:  # a process may end without notice right after its training
            self._steps.session.flush(_FLUSH_S)

    def _not_watched(self) -> None:
        """Counts a round of a training that is not watched, because another one is or there are too many."""
        if self._steps.session is None:
            return
        self._unwatched += 1
        if self._unwatched & (self._unwatched - 1) == 0:
            reason = GapReason.TOO_MANY if len(self._document) >= _MAX_TRAININGS else GapReason.NOT_SEEN
            self._steps.session.gap(NO_ID, int(reason), 0, max(self._unwatched // 2, 1))

    def forked(self, steps: StepWriter) -> None:
        """Drops the parent's training and its rounds in a forked child. `steps` is the child's writer."""
        self._steps, self._training, self._waiting = steps, None, []

    def begin_again(self, steps: StepWriter) -> None:
        """Forgets the trainings of the run that has ended. `steps` is the writer of the next run."""
        self._steps, self._training, self._ended, self._waiting = steps, None, None, []
        self._trainings, self._document, self._unwatched = 0, [], 0

    # Describing ------------------------------------------------------------------------------------------------

    def _describe(self, hook: StepHook, training: _Training, facts: Facts) -> None:
        given = self._hyperparameters
        training.training_sets = facts.training_sets
        training.recorder.features = facts.features
        own = facts.parameters if facts.hyperparameters is None else facts.hyperparameters
        if hook.first_rank:
            training.parameters = own if given is None else given
        training.trees = facts.trees and not facts.folds and hook.first_rank
        training.changing = facts.changing and training.recorder.trees_wanted()
        if not facts.folds and training.recorder.predictions_wanted():
            training.asked = facts
        record = {
            "number": training.number,
            "prefix": training.prefix,
            "first_step": self._steps.clock.mode_steps[_TRAIN],
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
        if facts.data is not None and hook.first_rank and not facts.folds:
            try:
                record["data"], known = facts.data()
                evaluations = zip(facts.evaluations, known, strict=True)
                record["evaluations"] = [{**one, "data": data} for one, data in evaluations]
            except Exception as error:  # the training is described without it
                self._guard.note("data", error)
        self._document.append(record)
        if self._steps.session is not None:
            text = json.dumps({**hook.versions(), "trainings": self._document}, default=str)
            self._steps.session.set_document("boosting", text)
