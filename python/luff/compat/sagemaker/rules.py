"""Rules of a job."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from luff.compat.sagemaker.config import CollectionConfig, texts
from luff.compat.sagemaker.rule_configs import listed
from luff.errors import InvalidArgumentError

__all__ = ["Rule"]


class Rule:
    """A rule; made by `Rule.sagemaker` or `Rule.custom`."""

    def __init__(
        self,
        name: str,
        rule_parameters: Mapping[str, Any],
        collection_configs: Iterable[CollectionConfig] = (),
        actions: Any = None,
        container_local_output_path: str | None = None,
    ) -> None:
        self.name = name
        self.container_local_output_path = container_local_output_path
        self.rule_parameters = texts(rule_parameters)
        self.collection_configs = list(collection_configs)
        self.actions = actions
        found = listed(actions)
        if found:
            self.rule_parameters["action_json"] = json.dumps(found)

    @classmethod
    def sagemaker(
        cls,
        base_config: Mapping[str, Any],
        name: str | None = None,
        container_local_output_path: str | None = None,
        s3_output_path: str | None = None,  # noqa: ARG003
        other_trials_s3_input_paths: Iterable[str] | None = None,
        rule_parameters: Mapping[str, Any] | None = None,
        collections_to_save: Iterable[CollectionConfig] | None = None,
        actions: Any = None,
    ) -> Rule:
        """Makes a built-in rule.

        Parameters
        ----------
        base_config
            One of `rule_configs`.
        name
            Name of the rule.
        container_local_output_path
            Where the rule writes, if it writes files: CreateXgboostReport.
        other_trials_s3_input_paths
            Runs to compare with: directories here.
        rule_parameters
            Parameters of the rule.
        collections_to_save
            What is saved for the rule; by default what it needs.
        actions
            What happens after a finding.
        """
        base = base_config.get("DebugRuleConfiguration") if isinstance(base_config, Mapping) else None
        if not isinstance(base, Mapping) or "RuleParameters" not in base:
            raise InvalidArgumentError(
                f"found {base_config!r}, expected one of rule_configs, e.g. rule_configs.vanishing_gradient()"
            )
        collections = collections_to_save
        if collections is None:
            collections = [
                CollectionConfig(one["CollectionName"], one.get("CollectionParameters"))
                for one in base_config.get("CollectionConfigurations") or ()
            ]
        parameters = {**base["RuleParameters"], **(rule_parameters or {})}
        others = list(other_trials_s3_input_paths or ())
        if others:
            parameters.setdefault("other_trials", ",".join(others))
        return cls(
            name or base["RuleConfigurationName"],
            parameters,
            collections,
            actions,
            container_local_output_path,
        )

    @classmethod
    def custom(
        cls,
        name: str,
        image_uri: str | None = None,  # noqa: ARG003
        instance_type: str | None = None,  # noqa: ARG003
        volume_size_in_gb: int | None = None,  # noqa: ARG003
        source: str | None = None,
        rule_to_invoke: str | None = None,
        container_local_output_path: str | None = None,  # noqa: ARG003
        s3_output_path: str | None = None,  # noqa: ARG003
        other_trials_s3_input_paths: Iterable[str] | None = None,  # noqa: ARG003
        rule_parameters: Mapping[str, Any] | None = None,
        collections_to_save: Iterable[CollectionConfig] | None = None,
        actions: Any = None,
    ) -> Rule:
        """Makes a rule from the user's own class in a Python file.

        Parameters
        ----------
        name
            Name of the rule.
        image_uri, instance_type, volume_size_in_gb
            Used by the platform; ignored here.
        source, rule_to_invoke
            The file, and the class in it.
        rule_parameters, collections_to_save, actions
            As for `Rule.sagemaker`.
        """
        if not source or not rule_to_invoke:
            raise InvalidArgumentError(
                f"rule {name}: found source {source!r} and rule_to_invoke {rule_to_invoke!r}, "
                "expected a Python file and the class in it"
            )
        parameters = {
            "source_s3_uri": source,
            "rule_to_invoke": rule_to_invoke,
            **(rule_parameters or {}),
        }
        return cls(name, parameters, collections_to_save or (), actions)

    def to_debugger_rule_config_dict(self) -> dict[str, Any]:
        """Returns the form in the job's configuration."""
        out = {"RuleConfigurationName": self.name, "RuleParameters": dict(self.rule_parameters)}
        if self.container_local_output_path:
            out["LocalPath"] = self.container_local_output_path
        return out
