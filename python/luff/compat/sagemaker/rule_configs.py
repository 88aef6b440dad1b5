"""The built-in rules by their names in the platform's SDK, and the actions of a rule."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

from luff._nearest import hint
from luff.compat.sagemaker.profiler import RULE_NAMES, profiler_rule
from luff.errors import InvalidArgumentError

__all__ = [
    "SMS",
    "ActionList",
    "BatchSize",
    "CPUBottleneck",
    "Dataloader",
    "Email",
    "GPUMemoryIncrease",
    "IOBottleneck",
    "LoadBalancing",
    "LowGPUUtilization",
    "MaxInitializationTime",
    "OverallFrameworkMetrics",
    "OverallSystemUsage",
    "ProfilerReport",
    "StepOutlier",
    "StopTraining",
    "all_zero",
    "check_input_images",
    "class_imbalance",
    "confusion",
    "create_xgboost_report",
    "dead_relu",
    "exploding_tensor",
    "feature_importance_overweight",
    "get_collection",
    "is_valid_action_object",
    "loss_not_decreasing",
    "nlp_sequence_ratio",
    "overfit",
    "overtraining",
    "poor_weight_initialization",
    "saturated_activation",
    "similar_across_runs",
    "stalled_training_rule",
    "tensor_variance",
    "tree_depth",
    "unchanged_tensor",
    "vanishing_gradient",
    "weight_update_ratio",
]


def _every(name: str, interval: int, regex: str = "") -> dict[str, Any]:
    parameters = {"include_regex": regex} if regex else {}
    return {"CollectionName": name, "CollectionParameters": {**parameters, "save_interval": str(interval)}}


_COLLECTIONS = {
    "weights": _every("weights", 500),
    "gradients": _every("gradients", 500),
    "losses": _every("losses", 500),
    "input_image": _every("input_image", 500, ".*hybridsequential0_input_0"),
    "input_sequence": _every("input_sequence", 500, ".*embedding0_input_0"),
    "relu_output": _every("relu_output", 500, ".*relu_output"),
    "relu_input": _every("relu_input", 500, ".*relu_input"),
}


def get_collection(collection_name: str) -> dict[str, Any] | None:
    """Returns what is saved for a collection that rules need; None if there is no such collection."""
    found = _COLLECTIONS.get(collection_name)
    return copy.deepcopy(found) if found is not None else None


def _rule(name: str, *collections: str, **own: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    def make() -> dict[str, Any]:
        return {
            "DebugRuleConfiguration": {
                "RuleConfigurationName": name,
                "RuleParameters": {"rule_to_invoke": name},
            },
            "CollectionConfigurations": copy.deepcopy(
                [*(_COLLECTIONS[c] for c in collections), *own.values()]
            ),
        }

    make.__doc__ = f"The rule {name}."
    return make


all_zero = _rule("AllZero")
check_input_images = _rule("CheckInputImages", "input_image")
class_imbalance = _rule("ClassImbalance")
confusion = _rule("Confusion")
create_xgboost_report = _rule(
    "CreateXgboostReport",
    **{name: _every(name, 5) for name in ("metrics", "feature_importance", "predictions", "labels")},
    hyperparameters={"CollectionName": "hyperparameters", "CollectionParameters": {"save_steps": "0"}},
)
dead_relu = _rule("DeadRelu", "relu_output")
exploding_tensor = _rule("ExplodingTensor")
feature_importance_overweight = _rule(
    "FeatureImportanceOverweight", importance=_every("feature_importance", 500)
)
loss_not_decreasing = _rule("LossNotDecreasing", "losses")
nlp_sequence_ratio = _rule("NLPSequenceRatio", "input_sequence")
overfit = _rule("Overfit")
overtraining = _rule("Overtraining")
poor_weight_initialization = _rule("PoorWeightInitialization", "relu_input")
saturated_activation = _rule("SaturatedActivation")
similar_across_runs = _rule("SimilarAcrossRuns")
stalled_training_rule = _rule("StalledTrainingRule")
tensor_variance = _rule("TensorVariance")
tree_depth = _rule("TreeDepth")
unchanged_tensor = _rule("UnchangedTensor")
vanishing_gradient = _rule("VanishingGradient", "gradients")
weight_update_ratio = _rule("WeightUpdateRatio", "weights")


# The profiler's rules, for `ProfilerRule.sagemaker`.
BatchSize = profiler_rule("BatchSize")
CPUBottleneck = profiler_rule("CPUBottleneck")
Dataloader = profiler_rule("Dataloader")
GPUMemoryIncrease = profiler_rule("GPUMemoryIncrease")
IOBottleneck = profiler_rule("IOBottleneck")
LoadBalancing = profiler_rule("LoadBalancing")
LowGPUUtilization = profiler_rule("LowGPUUtilization")
MaxInitializationTime = profiler_rule("MaxInitializationTime")
OverallFrameworkMetrics = profiler_rule("OverallFrameworkMetrics")
OverallSystemUsage = profiler_rule("OverallSystemUsage")
ProfilerReport = profiler_rule("ProfilerReport")
StepOutlier = profiler_rule("StepOutlier")


class _Action:
    name = ""

    def __init__(self, **parameters: str) -> None:
        self.action_parameters = {"name": self.name, **parameters}

    def to_dict(self) -> dict[str, str]:
        """Returns the form in the rule's parameters."""
        return dict(self.action_parameters)


class StopTraining(_Action):
    """Stops the job, which here is the running one."""

    name = "stoptraining"

    def __init__(self, training_job_prefix: str | None = None) -> None:
        if training_job_prefix is not None and not re.fullmatch(r"[A-Za-z0-9\-]+", training_job_prefix):
            raise InvalidArgumentError(
                f"the prefix of a job is {training_job_prefix!r}, expected letters, digits and hyphens"
            )
        super().__init__(**({"training_job_prefix": training_job_prefix} if training_job_prefix else {}))
        self.use_default_training_job_prefix = training_job_prefix is None

    def update_training_job_prefix_if_not_specified(self, training_job_name: str) -> None:
        """Uses the job's name if no prefix was given."""
        if self.use_default_training_job_prefix:
            self.action_parameters["training_job_prefix"] = training_job_name


class Email(_Action):
    """Sends a mail."""

    name = "email"

    def __init__(self, email_address: str) -> None:
        if not isinstance(email_address, str) or not re.fullmatch(
            r"[^@\s]+@[^@\s]+\.[^@\s.]+", email_address
        ):
            raise InvalidArgumentError(
                f"found {email_address!r}, expected an address such as name@example.org"
            )
        super().__init__(endpoint=email_address)


class SMS(_Action):
    """Sends a short message."""

    name = "sms"

    def __init__(self, phone_number: str) -> None:
        if not isinstance(phone_number, str) or not re.fullmatch(r"\+\d{1,15}", phone_number):
            raise InvalidArgumentError(f"found {phone_number!r}, expected a number such as +1234567890")
        super().__init__(endpoint=phone_number)


class ActionList:
    """A list of actions."""

    def __init__(self, *actions: Any) -> None:
        for action in actions:
            if not isinstance(action, _Action):
                raise TypeError(f"found {type(action).__name__}, expected StopTraining, Email or SMS")
        self.actions = list(actions)

    def update_training_job_prefix_if_not_specified(self, training_job_name: str) -> None:
        """Uses the job's name if no prefix was given."""
        for action in self.actions:
            if isinstance(action, StopTraining):
                action.update_training_job_prefix_if_not_specified(training_job_name)


def is_valid_action_object(actions: Any) -> bool:
    """Returns whether this is an action or an `ActionList`."""
    return isinstance(actions, (_Action, ActionList))


def listed(actions: Any) -> list[dict[str, str]]:
    """Converts one action or several to their form in the rule's parameters."""
    if actions is None:
        return []
    if not is_valid_action_object(actions):
        raise InvalidArgumentError(
            f"found {type(actions).__name__} as an action, expected StopTraining, Email, SMS or an ActionList"
        )
    return [one.to_dict() for one in (actions.actions if isinstance(actions, ActionList) else [actions])]


def __getattr__(name: str) -> Any:
    known = [one for one in __all__ if one[0].islower() or one in RULE_NAMES]
    raise AttributeError(f"rule_configs has no rule {name!r}{hint(name, known)}")
