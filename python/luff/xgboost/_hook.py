"""The hook of XGBoost: records the trainings that the container reports, and what boosters hold."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import xgboost
from xgboost.callback import TrainingCallback

from luff._base_hook import Collections
from luff._boosting._config import choose_boosting_run
from luff._boosting._data import Table, describe_data
from luff._boosting._trainings import Facts, Library, Trainings
from luff._hook import RunOptions, rank_from_environment
from luff._registry import Registry
from luff._step_hook import StepHook
from luff.corrections import Corrections
from luff.xgboost._container import has_own_objective, names_metrics
from luff.xgboost._describe import feature_names, parameters_of, read_data, rows_of, table_of
from luff.xgboost._metrics import is_loss, latest
from luff.xgboost._trees import read_rounds

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from luff.config import CaptureOptions

__all__ = ["Callback", "hooks"]


class Callback(StepHook, TrainingCallback):  # type: ignore[misc]
    """Attaches Luff to XGBoost::

        hook = luff.xgboost.Callback(run="runs/first")
        xgb.train(parameters, dtrain, 100, evals=[(dtrain, "train")], callbacks=[hook])

    Parameters
    ----------
    run
        Directory of the run, created. If it holds a run and `resume` is not set, a new one is made beside it:
        ``RUN-2``. None: a new one below ``$LUFF_HOME/runs``. Under ``luff run`` the supervisor's is used.
    collections
        What is saved in addition to the metrics: names of collections (``feature_importance``, ``trees``,
        ``predictions``, ``labels``, ``average_shap``, ``full_shap``, ``hyperparameters``), or settings by name.
    hyperparameters
        Recorded as given; by default those of the booster.
    train_data, validation_data
        A `DMatrix`, or a file and its kind (``"csv"`` with the label first, ``"libsvm"``), for SHAP values, and for
        predictions and labels. By default the training data, and the last evaluation set that is not the training
        data.
    resume
        Whether to continue an existing run.
    on_stop
        Called before `StopTraining` is raised, in addition to those of `luff.on_stop`. `booster` holds the model.
    correct
        What Luff may correct when a finding asks for it; by default what was passed to `luff.corrections.accept`.
    **options
        Capture settings: ``save_interval`` (10), ``start_step``, ``end_step``, ``save_steps``, ``save_all``,
        ``include_regex``, ``max_overhead``, ``max_bytes``, … (docs/capture.md).

    Raises
    ------
    LuffError
        When the run cannot be created, or a setting is wrong.
    """

    framework = "xgboost"

    def __init__(
        self,
        run: str | os.PathLike[str] | None = None,
        *,
        collections: Collections = None,
        hyperparameters: Mapping[str, Any] | None = None,
        train_data: Any = None,
        validation_data: Any = None,
        resume: bool = False,
        on_stop: Callable[[], object] | None = None,
        correct: Corrections | None = None,
        _options: RunOptions | None = None,
        **options: Unpack[CaptureOptions],
    ) -> None:
        self._train_data = read_data(train_data)
        self._validation_data = read_data(validation_data)
        self._beginning: weakref.WeakSet[Any] = weakref.WeakSet()  # containers of running trainings
        self._threads = False  # whether the workers of a collective are threads: only one of them is watched
        chosen = _options or choose_boosting_run(run, collections, resume, options)
        super().__init__(chosen, on_stop, correct)
        library = Library(is_loss, read_rounds)
        self.trainings = Trainings(self, chosen.config, library, hyperparameters)
        if _options is None:
            self.open_now()
        hooks.add(self)

    def __reduce__(self) -> Any:
        return (TrainingCallback, ())  # another process has a hook of its own, or none

    # Called by the container -----------------------------------------------------------------------------------

    def begin_training(self, container: Any, model: Any, planned: int | None) -> None:
        """Begins a training."""
        if not self.live:
            return
        try:
            self._beginning.add(container)
            # Not under the lock: the first call to a booster waits for all workers of a collective. When it returns,
            # the workers that are threads of this process are known.
            rounds = int(model.num_boosted_rounds())
            self._threads = len(self._beginning) > 1
        except Exception as error:
            self.guard.note("begin", error)
            return
        self.trainings.begins(container, model, rounds, planned)

    def round(self, container: Any, model: Any, dtrain: Any, evals: Any) -> None:
        """Records a round that has ended. Raises `luff.StopTraining` if a finding stops the run."""
        self.trainings.round_ended(
            container,
            model,
            lambda: int(model.num_boosted_rounds()),
            lambda: list(latest(container.history)),
            lambda: self._facts(model, dtrain, evals or ()),
        )

    # Contents of boosters --------------------------------------------------------------------------------------

    def _facts(self, model: Any, dtrain: Any, evals: Any) -> Facts:
        folds = getattr(model, "cvfolds", None)
        booster = folds[0].bst if folds else model
        parameters, kind = parameters_of(booster)
        if has_own_objective():  # what the booster names is the default, which nothing uses
            parameters["objective"] = "custom"
            if not names_metrics():
                parameters["eval_metric"] = ""
        evaluations = [
            {"name": name, "training": data is dtrain, "rows": rows_of(data)} for data, name in evals
        ]
        others = [data for data, name in evals if data is not dtrain]
        validation = self._validation_data
        if validation is None and others:
            validation = others[-1]
        train_data = dtrain if self._train_data is None else self._train_data
        return Facts(
            booster=kind,
            features=feature_names(booster),
            parameters=parameters,
            rows=rows_of(dtrain),
            evaluations=evaluations,
            training_sets=frozenset(
                ("train",) if folds else (name for data, name in evals if data is dtrain)
            ),
            folds=len(folds) if folds else 0,
            trees=kind in ("gbtree", "dart", ""),
            predictions=None if validation is None else lambda model: model.predict(validation),
            labels=None if validation is None else validation.get_label,
            contributions=lambda model: model.predict(train_data, pred_contribs=True),
            data=lambda: describe_data(
                table_of(dtrain), [Table() if data is dtrain else table_of(data) for data, _ in evals]
            ),
        )

    @property
    def booster(self) -> Any:
        """The model of the watched training, while it exists."""
        return self.trainings.booster

    # Session ---------------------------------------------------------------------------------------------------

    def versions(self) -> dict[str, Any]:
        """Returns XGBoost's version."""
        return {"xgboost": xgboost.__version__}

    def rank(self) -> tuple[int, int] | None:
        """Returns rank and world size in XGBoost's collective, or those that a launcher set."""
        try:
            from xgboost import collective

            if collective.is_distributed():
                if self._threads:
                    return None
                return int(collective.get_rank()), int(collective.get_world_size())
        except Exception:  # built without it
            pass
        return rank_from_environment()

    def publish(self) -> None:
        """Records the rounds that are waiting."""
        self.trainings.publish()

    def begin_again(self) -> None:
        """Ends the run before another training, which has its own."""
        super().begin_again()
        self.trainings.begin_again(self.steps)

    def forked(self) -> None:
        """Drops everything of the parent's session, in a forked child."""
        super().forked()
        self.trainings.forked(self.steps)

    def _lower_lr(self, factor: float) -> None:
        booster = self.booster
        if booster is None:
            raise LookupError("no training is under way")
        settings, _ = parameters_of(booster)
        booster.set_param({"eta": float(settings["eta"]) * factor})


hooks: Registry[Callback] = Registry(lambda options: Callback(_options=options))
