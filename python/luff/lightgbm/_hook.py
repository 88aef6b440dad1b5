"""The hook of LightGBM, a callback: records rounds and what boosters hold."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import lightgbm
import numpy as np

from luff._base_hook import Collections
from luff._boosting._config import choose_boosting_run
from luff._boosting._data import describe_data
from luff._boosting._trainings import Facts, Library, Trainings
from luff._hook import RunOptions
from luff._registry import Registry
from luff._step_hook import StepHook
from luff.corrections import Corrections
from luff.errors import InvalidArgumentError
from luff.lightgbm import _train
from luff.lightgbm._describe import is_loss, metrics_of, parameters_of, sampled_share, table_of
from luff.lightgbm._trees import TREE_COLUMNS, read_rounds

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from luff.config import CaptureOptions

__all__ = ["Callback", "hooks"]

_MAX_NAMES = 1000


class Callback(StepHook):
    """Attaches Luff to LightGBM::

        hook = luff.lightgbm.Callback(run="runs/first")
        lgb.train(parameters, data, 100, valid_sets=[data, other], callbacks=[hook])

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
    train_data
        Rows for SHAP values, as `Booster.predict` takes them. By default the training data, if ``lgb.train`` still
        has it as it was given.
    validation_data
        Rows and labels ``(X, y)`` for predictions and labels; by default the last evaluation set that is not the
        training data.
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

    framework = "lightgbm"
    #: Runs after the callbacks that print and record metrics, and before those that end a training early.
    order = 29
    before_iteration = False

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
        if validation_data is not None and not (
            isinstance(validation_data, (tuple, list)) and len(validation_data) == 2
        ):
            raise InvalidArgumentError(
                f"validation_data is a {type(validation_data).__name__}; expected rows and labels, (X, y)"
            )
        self._train_data = train_data
        self._validation_data = validation_data
        chosen = _options or choose_boosting_run(run, collections, resume, options)
        super().__init__(chosen, on_stop, correct)
        library = Library(is_loss, read_rounds, TREE_COLUMNS)
        self.trainings = Trainings(self, chosen.config, library, hyperparameters)
        if _options is None:
            self.open_now()
        hooks.add(self)

    # Called when LightGBM trains -------------------------------------------------------------------------------

    def __call__(self, env: Any) -> None:
        """Records a round that has ended. Raises `luff.StopTraining` if a finding stops the run."""
        model = env.model
        if env.iteration == env.begin_iteration and self.trainings.watched(model) is None:
            self.while_live("begin", self._begins, env)
        self.trainings.round_ended(
            model,
            model,
            lambda: _rounds_of(model),
            lambda: metrics_of(env.evaluation_result_list),
            lambda: self._facts(env),
        )

    def _begins(self, env: Any) -> None:
        call = _train.current()
        if call is not None:
            call.model = env.model
        planned = int(env.end_iteration) - int(env.begin_iteration)
        self.trainings.begins(env.model, env.model, int(env.begin_iteration), planned)

    def raw_data(self, data: Any) -> Any:
        """Returns the rows of a `Dataset` as they were given if contributions may be asked for; otherwise None."""
        return self.while_live("data", self._raw_data, data)

    def _raw_data(self, data: Any) -> Any:
        if self._train_data is not None or not isinstance(data, lightgbm.Dataset):
            return None
        rows = data.data
        named = data.feature_name if isinstance(data.feature_name, list) else getattr(rows, "columns", ())
        names = ["Column_0", *(str(name) for name in list(named)[:_MAX_NAMES])]
        wanted = self.trainings.wanted()
        due = any(wanted(f"{kind}_shap/{name}") for kind in ("average", "full") for name in names)
        return rows if due and not isinstance(rows, (str, os.PathLike, list)) else None

    def describe(self, data: Any, others: Any) -> Any:
        """Returns what is known of a training's data and of the sets that evaluate it; None if nothing is."""
        return self.while_live("data", self._describe, data, others)

    def _describe(self, data: Any, others: Any) -> Any:
        sets = [others] if isinstance(others, lightgbm.Dataset) else list(others or ())
        return describe_data(table_of(data), [table_of(one) for one in sets if one is not data])

    def call_ended(self, call: _train.Call, result: Any) -> None:
        """Ends the training when `train` or `cv` has returned, or raised: then there is no result."""
        model, call.model, call.raw = call.model, None, None
        if model is None:
            return
        booster = isinstance(result, lightgbm.Booster)
        self.trainings.ended(model, (lambda: int(result.current_iteration())) if booster else None)

    # Contents of boosters --------------------------------------------------------------------------------------

    def _facts(self, env: Any) -> Facts:
        folds = getattr(env.model, "boosters", None) if not isinstance(env.model, lightgbm.Booster) else None
        booster = folds[0] if folds else env.model
        parameters = parameters_of(booster)
        evaluated = {data for data, *_ in metrics_of(env.evaluation_result_list)}
        own = "train" if folds else str(booster._train_data_name)
        sets = [] if folds else list(zip(booster.name_valid_sets, booster.valid_sets, strict=True))
        rows = int(booster.train_set.num_data())
        evaluations = (
            [{"name": own, "training": True, "rows": rows}] if own in evaluated and not folds else []
        )
        evaluations += [{"name": str(n), "training": False, "rows": int(s.num_data())} for n, s in sets]
        facts = Facts(
            booster=str(parameters.get("boosting", "")),
            features=[str(name) for name in booster.feature_name()],
            parameters={**parameters, "subsample": sampled_share(parameters)},
            hyperparameters=parameters,
            rows=rows,
            evaluations=evaluations,
            training_sets=frozenset((own,)),
            folds=len(folds) if folds else 0,
            changing=parameters.get("boosting") == "dart",  # changes the weights of older trees
        )
        # A prediction sets the number of threads for what follows it, so use the training's number.
        threads = int(parameters.get("num_threads", 0))
        if self._validation_data is not None:
            given, labels = self._validation_data
            facts.predictions = lambda model: _copy_of(model).predict(given, num_threads=threads)
            facts.labels = lambda: np.asarray(labels)
        elif sets:  # LightGBM has already computed these predictions
            place = len(sets)
            facts.predictions = lambda model: np.array(model._Booster__inner_predict(data_idx=place))
            facts.labels = sets[-1][1].get_label
        call = _train.current()
        if call is not None and call.data is not None and len(call.data[1]) == len(sets):
            own_data, others = call.data
            described = [{} for one in evaluations if one["training"]] + others
            facts.data = lambda: (own_data, described)
        known = self._train_data if self._train_data is not None else call.raw if call else None
        # LightGBM has no contributions for linear trees
        if known is not None and not parameters.get("linear_tree"):
            facts.contributions = lambda model: _contributions(model, known, threads)
        return facts

    @property
    def booster(self) -> Any:
        """The model of the watched training, while it exists."""
        return self.trainings.booster

    # Session ---------------------------------------------------------------------------------------------------

    def versions(self) -> dict[str, Any]:
        """Returns LightGBM's version."""
        return {"lightgbm": lightgbm.__version__}

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
        model = self.booster
        if model is None:
            raise LookupError("no training is under way")
        for booster in [model] if isinstance(model, lightgbm.Booster) else model.boosters:
            rate = float(parameters_of(booster)["learning_rate"])
            booster.reset_parameter({"learning_rate": rate * factor})


hooks: Registry[Callback] = Registry(lambda options: Callback(_options=options))


def _rounds_of(model: Any) -> int:
    booster = model if isinstance(model, lightgbm.Booster) else model.boosters[0]
    return int(booster.current_iteration())


def _copy_of(model: Any) -> Any:
    """Returns a copy of the model as it is now. Predicting with a model in training
    makes LightGBM end the process.
    """
    return lightgbm.Booster(model_str=model.model_to_string(num_iteration=-1))


def _contributions(model: Any, rows: Any, threads: int) -> Any:
    """Returns the SHAP values of rows."""
    values = _copy_of(model).predict(rows, pred_contrib=True, num_threads=threads)
    parts = [part.toarray() if hasattr(part, "toarray") else np.asarray(part) for part in _listed(values)]
    if len(parts) > 1:  # sparse rows: one matrix for each class
        return np.stack(parts, axis=1)
    trees = int(model.num_model_per_iteration())
    return parts[0] if trees == 1 else parts[0].reshape(len(parts[0]), trees, -1)


def _listed(values: Any) -> list[Any]:
    return values if isinstance(values, list) else [values]
