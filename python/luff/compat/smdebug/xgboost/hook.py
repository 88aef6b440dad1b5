"""The hook of XGBoost, a callback. A step is a boosting round; `luff.xgboost` reads the values."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import xgboost
from xgboost.callback import TrainingCallback

from luff._boosting._importance import TYPES, Importance
from luff.compat.smdebug.core.collection import CollectionKeys
from luff.compat.smdebug.core.error_handling_agent import error_handling_agent
from luff.compat.smdebug.core.framework_hook import FrameworkHook
from luff.compat.smdebug.core.save_config import SaveConfig
from luff.compat.smdebug.core.utils import FRAMEWORK
from luff.compat.smdebug.exceptions import SMDebugError
from luff.compat.smdebug.xgboost.collection import DEFAULT_XGBOOST_COLLECTIONS, CollectionManager
from luff.compat.smdebug.xgboost.utils import parse_tree_model, rank_and_size
from luff.errors import InvalidArgumentError
from luff.xgboost._describe import feature_names, read_data
from luff.xgboost._metrics import latest
from luff.xgboost._trees import read_rounds

__all__ = ["Hook"]

_INTERVAL = 10
# Names of the positional arguments.
_PLACES = (
    *list(inspect.signature(FrameworkHook.__init__).parameters)[1:-1],
    *("hyperparameters", "train_data", "validation_data"),
)
_NO_LOSSES = ("auc", "map")


def _data(data: Any) -> Any:
    if data is None or isinstance(data, xgboost.DMatrix):
        return data
    try:
        return read_data(data)
    except (InvalidArgumentError, ValueError, TypeError) as error:
        raise SMDebugError(f"{error}; expected a DMatrix, or a file and its kind") from None


class Hook(FrameworkHook, TrainingCallback):  # type: ignore[misc]
    """Saves what XGBoost reports for each round: ``xgboost.train(..., callbacks=[hook])``.

    The parameters are those of `luff.compat.smdebug.core.framework_hook.FrameworkHook`, followed by these.

    Parameters
    ----------
    hyperparameters
        Saved as given.
    train_data
        For SHAP values: a DMatrix, or a file and its kind.
    validation_data
        For predictions and labels.
    """

    framework = FRAMEWORK.XGBOOST
    collections_class = CollectionManager
    saved_by_default = DEFAULT_XGBOOST_COLLECTIONS
    _json_defaults = {"save_interval": _INTERVAL}  # noqa: RUF012

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = dict(zip(_PLACES, args, strict=False)) | kwargs
        hyperparameters, train_data, validation_data = (given.pop(name, None) for name in _PLACES[-3:])
        reduction_config = given.pop("reduction_config", None)
        if given.get("save_config") is None:
            given["save_config"] = SaveConfig(save_interval=_INTERVAL)
        super().__init__(**given)
        if reduction_config is not None:
            self.logger.warning("reductions are not made of what XGBoost tells; values are saved")
        self.hyperparameters = hyperparameters
        self.train_data = _data(train_data)
        self.validation_data = _data(validation_data)
        self._importance: Importance | None = None
        self._rounds_read = 0

    @classmethod
    def hook_from_config(cls, json_config_path: str | None = None) -> Any:
        """Makes the hook that a JSON file describes; the older name of `create_from_json_file`."""
        return cls.create_from_json_file(json_config_path)

    def _get_worker_name(self) -> str:
        return f"worker_{rank_and_size()[0]}"

    def _get_num_workers(self) -> int:
        return rank_and_size()[1]

    # ---- called by XGBoost --------------------------------------------------------------------------------------

    def before_training(self, model: Any) -> Any:
        """Begins a training."""
        if self.__dict__:
            self._importance, self._rounds_read = None, 0
        return model

    @error_handling_agent.catch_smdebug_errors(default_return_val=False)
    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """Saves a round."""
        if not self._asleep():
            self._round(model, epoch, evals_log)
        return False

    @error_handling_agent.catch_smdebug_errors()
    def __call__(self, env: Any) -> None:
        """Saves a round, for the older form of callbacks."""
        log: dict[str, dict[str, list[Any]]] = {}
        for item in env.evaluation_result_list or ():
            data, _, metric = item[0].partition("-")
            log.setdefault(data, {})[metric] = [item[1]]
        self._round(env.model, env.iteration, log)

    def _round(self, model: Any, iteration: int, log: Any) -> None:
        self.step = iteration
        self.mode_steps[self.mode] = iteration
        self._begin_step()
        if not self.prepared_collections:
            self._prepare_collections()
        if self.last_saved_step is not None and not self._exported:
            self.export_collections()
        due = {collection.name for collection in self._due()}
        if due:
            self._initialize_writers()
        if self.writer is not None and due:
            self._save(model, log, due)
            self.last_saved_step = iteration
        self._close_writers()

    # ---- values -------------------------------------------------------------------------------------------------

    def _save(self, model: Any, log: Any, due: set[str]) -> None:
        def wanted(*names: str) -> bool:
            return CollectionKeys.ALL in due or any(name in due for name in names)

        if wanted(CollectionKeys.HYPERPARAMETERS):
            for key, value in (self.hyperparameters or {}).items():
                self._save_for_tensor(f"hyperparameters/{key}", value)
        for data, metric, value, _ in latest(log):
            if wanted(CollectionKeys.METRICS) or (wanted(CollectionKeys.LOSSES) and metric not in _NO_LOSSES):
                self._save_for_tensor(f"{data}-{metric}", value)
        booster = model if isinstance(model, xgboost.Booster) else None
        if booster is None:  # cross-validation has a booster for each fold
            return
        if wanted(CollectionKeys.PREDICTIONS) and self._has_data(self.validation_data, "predictions"):
            self._save_for_tensor("predictions", booster.predict(self.validation_data))
        if wanted(CollectionKeys.LABELS) and self._has_data(self.validation_data, "labels"):
            self._save_for_tensor("labels", self.validation_data.get_label())
        if wanted(CollectionKeys.FEATURE_IMPORTANCE):
            self._save_importance(booster)
        if wanted(CollectionKeys.TREES):
            self._save_trees(booster)
        if wanted(CollectionKeys.FULL_SHAP, CollectionKeys.AVERAGE_SHAP) and self._has_data(
            self.train_data, "SHAP"
        ):
            self._save_shap(booster)

    def _has_data(self, data: Any, what: str) -> bool:
        if data is None:
            self.logger.warning("no data is given for %s: train_data or validation_data of the hook", what)
        return data is not None

    def _rounds(self, booster: Any) -> int:
        try:
            return int(booster.num_boosted_rounds())
        except (AttributeError, xgboost.core.XGBoostError):
            return 0

    def _save_importance(self, booster: Any) -> None:
        """Saves the features' shares; reads only the trees that were added since the last call."""
        rounds = self._rounds(booster)
        if self._importance is None or rounds < self._rounds_read:
            self._importance, self._rounds_read = Importance(), 0
        if rounds > self._rounds_read:
            try:
                columns = read_rounds(booster, self._rounds_read, rounds).columns
            except (ValueError, KeyError, TypeError, xgboost.core.XGBoostError) as error:
                self.logger.warning("feature importance is left out: %s", error)
                return
            self._importance.add(columns["Feature"], columns["Gain"], columns["Cover"])
            self._rounds_read = rounds
        names = feature_names(booster)
        used = self._importance.used()
        shares = self._importance.shares(used)
        for kind in TYPES:
            for index, share in zip(used.tolist(), shares[kind].tolist(), strict=True):
                feature = names[index] if index < len(names) else f"f{index}"
                self._save_for_tensor(f"feature_importance/{kind}/{feature}", share)

    def _save_trees(self, booster: Any) -> None:
        rounds = self._rounds(booster)
        if rounds == 0:
            return
        try:
            columns = parse_tree_model(booster, rounds - 1)
        except (ValueError, KeyError, TypeError, xgboost.core.XGBoostError) as error:
            self.logger.warning("trees are left out: %s", error)
            return
        for name, values in columns.items():
            self._save_for_tensor(f"trees/{name}", values)

    def _save_shap(self, booster: Any) -> None:
        shap = booster.predict(self.train_data, pred_contribs=True)
        names = [*feature_names(booster), "bias"]
        if len(names) != shap.shape[-1]:
            names = [*(f"f{index}" for index in range(shap.shape[-1] - 1)), "bias"]
        means = shap.mean(axis=tuple(range(shap.ndim - 1)))
        for name, mean in zip(names, means, strict=True):
            self._save_for_tensor(f"full_shap/{name}", shap)
            self._save_for_tensor(f"average_shap/{name}", np.atleast_1d(mean))
