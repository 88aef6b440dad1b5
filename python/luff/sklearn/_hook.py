"""The hook of scikit-learn: names of estimators, their steps, and rounds of estimators that boost."""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sklearn

from luff._base_hook import Collections, choose_run, listed, make_config
from luff._boosting._config import COLLECTIONS, DEFAULT_INTERVAL
from luff._boosting._trainings import Library, Trainings
from luff._codes import NO_ID, GapReason, Mode, Phase
from luff._core import enter_phase, leave_phase
from luff._hook import RunOptions
from luff._registry import Registry
from luff._step_hook import StepHook
from luff.corrections import Corrections
from luff.sklearn._trees import read_rounds

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from luff.config import CaptureOptions

__all__ = ["Hook", "Model", "hooks"]

_COMPUTE = int(Phase.COMPUTE)

_TRAIN = int(Mode.TRAIN)
_MAX_MODELS = 64
_FLUSH_S = 2.0
_BOOSTING = ("feature_importance", "trees")  # collections with a special meaning here
#: Losses of scikit-learn's boosting.
_LOSSES = (
    "log_loss", "squared_error", "absolute_error", "exponential", "huber", "quantile", "poisson", "gamma",
)  # fmt: skip


@dataclass
class Model:
    """One training of an estimator, or several that continue one another."""

    name: str
    number: int
    written: bool = False  # whether its description is in the run
    tensors: Any = None  # tensors' numbers, for use by its family

    def loss(self, kind: str) -> str:
        """Returns the name of the loss; each training has its own, so that no curve spans several."""
        return kind if self.number == 0 else f"{self.name}.{kind}"


class Hook(StepHook):
    """Attaches Luff to estimators. Made by `attach`, or by ``luff run``."""

    framework = "sklearn"

    def __init__(
        self,
        run: str | os.PathLike[str] | None = None,
        *,
        collections: Collections = None,
        resume: bool = False,
        on_stop: Callable[[], object] | None = None,
        correct: Corrections | None = None,
        _options: RunOptions | None = None,
        **options: Unpack[CaptureOptions],
    ) -> None:
        self.watches_all = _options is not None
        self._models: weakref.WeakKeyDictionary[Any, Model] = weakref.WeakKeyDictionary()
        self._counts: dict[str, int] = {}
        self._descriptions: list[dict[str, Any]] = []
        self._optimizers: list[dict[str, Any]] = []
        self._schedules: list[dict[str, Any]] = []
        self._latest: Any = None  # weak reference to the estimator whose training began last
        self._thread = 0  # thread that trains; 0: none
        self._depth = 0
        self._missed = 0
        self._updates = False  # whether the open step ends with an update
        chosen = _options or choose_run(run, resume, _config(collections, options))
        super().__init__(chosen, on_stop, correct)
        self.trainings = Trainings(self, chosen.config, Library(_LOSSES.__contains__, read_rounds))
        if _options is None:
            self.open_now()

    # Trainings -------------------------------------------------------------------------------------------------

    def enters(self, estimator: Any, fresh: bool) -> Model | None:
        """Begins a training. Returns None if it is not watched: another thread trains already, or there are too many.

        Parameters
        ----------
        fresh
            Whether it starts from scratch instead of continuing with what the estimator has learnt.
        """
        found: Model | None = self.while_live("begin", self._enters, estimator, fresh)
        if found is not None:
            enter_phase(_COMPUTE)  # left by `leaves`
        return found

    def leaves(self, model: Model | None, whole: bool = False) -> None:
        """Ends a training that is over, or raised. `whole` waits for its last step: it was not only a part of one."""
        if model is not None:
            leave_phase(_COMPUTE)
            self.while_live("end", self._leaves, whole)

    def _enters(self, estimator: Any, fresh: bool) -> Model | None:
        thread = threading.get_ident()
        self.trainings.publish()
        if (self._depth and self._thread != thread) or self.trainings.thread not in (None, thread):
            self._miss(GapReason.NOT_SEEN)
            return None
        model = self._models.get(estimator)
        if model is None or fresh:
            if not self._depth and self.trainings.thread is None:  # no training within another
                self.trains(estimator, anew=fresh)
            kind = type(estimator).__name__
            count = self._counts.get(kind, 0) + 1
            if sum(self._counts.values()) >= _MAX_MODELS:
                self._miss(GapReason.TOO_MANY)
                return None
            self._counts[kind] = count
            model = Model(kind if count == 1 else f"{kind}_{count}", sum(self._counts.values()) - 1)
            self._models[estimator] = model
        self._latest = weakref.ref(estimator)
        self._thread, self._depth = thread, self._depth + 1
        hooks.enter(self)
        return model

    def _leaves(self, whole: bool) -> None:
        self._close_step()
        self._depth = max(self._depth - 1, 0)
        if whole and self._depth == 0 and self.session is not None:
            self.session.flush(_FLUSH_S)  # a process may end without notice right after its training

    def _miss(self, reason: GapReason) -> None:
        self._missed += 1
        if self.session is not None and self._missed & (self._missed - 1) == 0:
            self.session.gap(NO_ID, int(reason), 0, max(self._missed // 2, 1))

    def model_of(self, estimator: Any) -> Model | None:
        """Returns the training of an estimator in this thread; None if it is not watched."""
        if not self._depth or self._thread != threading.get_ident() or not self.live:
            return None
        return self._models.get(estimator)

    # Steps -----------------------------------------------------------------------------------------------------

    def record(
        self, place: str, function: Callable[..., None], *arguments: Any, updates: bool = True
    ) -> None:
        """Begins a TRAIN step and calls `function` to record its values. It stays open until `close_step`.

        Parameters
        ----------
        updates
            Whether the step ends with an update of what is trained.
        """
        self.while_live(place, self._record, function, arguments, updates)

    def _record(self, function: Callable[..., None], arguments: tuple[Any, ...], updates: bool) -> None:
        self._close_step()
        if self.steps.begin(_TRAIN) is not None:
            self._updates = updates
            function(self, *arguments)

    def close_step(self) -> None:
        """Publishes the open step, with its update.

        Raises
        ------
        StopTraining
            If a finding stops the run.
        """
        if self.steps.mode:
            self.while_live("step", self._close_step)
            self.boundary()

    def _close_step(self) -> None:
        if self.steps.mode == _TRAIN and self._updates:
            self.steps.updated()
        self._updates = False
        self.steps.end()

    def evaluation(self, name: str, value: float) -> None:
        """Records an EVAL step with one number."""
        self.while_live("evaluation", self._evaluation, name, value)

    def _evaluation(self, name: str, value: float) -> None:
        if self.steps.begin(int(Mode.EVAL)) is not None:
            self.steps.scalar(name, value)
            self.steps.end()

    # Describing ------------------------------------------------------------------------------------------------

    def describe(
        self, model: Model, description: dict[str, Any], optimizer: dict[str, Any] | None, schedule: str = ""
    ) -> None:
        """Adds a model to the document "model", once."""
        if model.written or self.session is None:
            return
        model.written = True
        self._descriptions.append(description)
        if optimizer is not None:
            self._optimizers.append(optimizer)
        if schedule:
            self._schedules.append({"type": schedule, "settings": {}})
        document = {"framework": "sklearn", "models": self._descriptions, "optimizers": self._optimizers,
                    "schedulers": self._schedules, "losses": []}  # fmt: skip
        self.session.set_document("model", json.dumps(document, default=str))

    # Boosting --------------------------------------------------------------------------------------------------

    def begin_rounds(self, estimator: Any, rounds: int, planned: int | None) -> None:
        """Begins the training of an estimator that boosts, under the lock. `rounds` is the number that it already
        has.
        """
        if self._depth and self._thread != threading.get_ident():
            self._miss(GapReason.NOT_SEEN)
        else:
            self.trainings.begins(estimator, estimator, rounds, planned)

    def publish(self) -> None:
        """Records the rounds that are waiting."""
        self.trainings.publish()

    # Session ---------------------------------------------------------------------------------------------------

    def _lower_lr(self, factor: float) -> None:
        estimator = self._latest() if self._depth else None
        optimizer = getattr(estimator, "_optimizer", None)
        if optimizer is None:
            raise LookupError("only networks have a rate that can change while they train")
        optimizer.learning_rate_init *= factor  # adam and schedules compute the rate from this
        optimizer.learning_rate *= factor

    def versions(self) -> dict[str, Any]:
        """Returns scikit-learn's version."""
        return {"sklearn": sklearn.__version__}

    def begin_again(self) -> None:
        """Ends the run before another training, which has its own."""
        super().begin_again()
        self.trainings.begin_again(self.steps)
        self._forget()

    def forked(self) -> None:
        """Drops everything of the parent's session, in a forked child."""
        super().forked()
        self.trainings.forked(self.steps)
        self._forget()

    def _forget(self) -> None:
        self._models = weakref.WeakKeyDictionary()
        self._counts, self._depth, self._thread, self._updates = {}, 0, 0, False
        self._descriptions, self._optimizers, self._schedules = [], [], []


def _config(collections: Collections, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the capture configuration: the defaults, and what is asked for."""
    interval = {} if "save_interval" in options else {"save": {"save_interval": DEFAULT_INTERVAL}}
    chosen = [
        {**item, **interval, **COLLECTIONS[item["name"]]} if item.get("name") in _BOOSTING else item
        for item in listed(collections, forms=["raw", "summary"])
    ]
    return make_config(chosen or None, options)


def _install() -> None:
    from luff.sklearn import _wraps

    _wraps.install()


hooks: Registry[Hook] = Registry(lambda options: Hook(_options=options), _install)
