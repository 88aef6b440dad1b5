"""A job as the platform's interface describes it, in one JSON file, and its translation for Luff.

The file is either the hook's configuration, as the platform puts it into the container, or an object with
``DebugHookConfig``, ``DebugRuleConfigurations`` and ``TensorBoardOutputConfig``, as in the request that creates a
job.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from luff import config as luff_config
from luff.compat.sagemaker.config import DebuggerHookConfig, TensorBoardOutputConfig
from luff.compat.sagemaker.profiler import RULE_NAMES, ProfilerConfig, ProfilerRule
from luff.compat.sagemaker.rules import Rule
from luff.compat.smdebug.core import json_config
from luff.compat.smdebug.core.collection import CollectionKeys
from luff.compat.smdebug.core.reduction_config import ReductionConfig
from luff.compat.smdebug.core.save_config import SaveConfig
from luff.compat.smdebug.core.xgboost_names import EXPRESSIONS as XGBOOST
from luff.compat.smdebug.exceptions import SMDebugError
from luff.errors import InvalidArgumentError

__all__ = ["Job", "read_job"]

# Collections whose tensors Luff knows by their role, and smdebug without an expression.
_BY_ROLE = {
    CollectionKeys.WEIGHTS,
    CollectionKeys.BIASES,
    CollectionKeys.GRADIENTS,
    CollectionKeys.LOSSES,
    CollectionKeys.INPUTS,
    CollectionKeys.OUTPUTS,
    CollectionKeys.LABELS,
}
_REPORT = "CreateXgboostReport"  # not a check: writes a report at the end
_NOT_PARAMETERS = {"rule_to_invoke", "action_json", "source_s3_uri", "base_trial"}
_RULE_KEYS = {
    "RuleConfigurationName", "RuleParameters", "RuleEvaluatorImage", "InstanceType", "VolumeSizeInGB", "LocalPath",
    "S3OutputPath",
}  # fmt: skip


class Job:
    """What a job saves, which rules check it, and which actions follow.

    Parameters
    ----------
    hook_config
        What is saved.
    rules
        The rules, those of the profiler among them. What they need is saved as well.
    tensorboard_output_config
        Where TensorBoard's files go.
    profiler_config
        What smdebug's hook profiles.
    """

    def __init__(
        self,
        hook_config: DebuggerHookConfig | None = None,
        rules: Iterable[Rule | ProfilerRule] = (),
        tensorboard_output_config: TensorBoardOutputConfig | None = None,
        profiler_config: ProfilerConfig | None = None,
    ) -> None:
        self.hook_config = hook_config or DebuggerHookConfig()
        given = list(rules)
        self.rules = [rule for rule in given if isinstance(rule, Rule)]
        self.profiler_rules = [rule for rule in given if isinstance(rule, ProfilerRule)]
        self.tensorboard_output_config = tensorboard_output_config
        self.profiler_config = profiler_config

    def to_dict(self) -> dict[str, Any]:
        """Returns the job's configuration."""
        hook = self.hook_config.to_dict()
        known = {one["CollectionName"] for one in hook.get("CollectionConfigurations", ())}
        for rule in self.rules:
            for collection in rule.collection_configs:
                if collection.name not in known:
                    known.add(collection.name)
                    hook.setdefault("CollectionConfigurations", []).append(collection.to_dict())
        out: dict[str, Any] = {"DebugHookConfig": hook}
        if self.rules:
            out["DebugRuleConfigurations"] = [rule.to_debugger_rule_config_dict() for rule in self.rules]
        if self.profiler_rules:
            out["ProfilerRuleConfigurations"] = [
                rule.to_profiler_rule_config_dict() for rule in self.profiler_rules
            ]
        if self.profiler_config is not None:
            out["ProfilerConfig"] = self.profiler_config.to_dict()
        if self.tensorboard_output_config is not None:
            out["TensorBoardOutputConfig"] = self.tensorboard_output_config.to_dict()
        return out

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the file that ``luff run --config`` reads."""
        with open(path, "w", encoding="utf-8") as file:
            json.dump(self.to_dict(), file, indent=2)
            file.write("\n")


def read_job(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads and checks a file of either form.

    Raises
    ------
    InvalidArgumentError
        If it is not such a file; the message names the place and the remedy.
    """
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(
            f"found no JSON ({error}), expected a job's configuration: {path}"
        ) from None
    try:
        found = json_config.check_job(found)
        _check_rules(found.get("DebugRuleConfigurations", []), "DebugRuleConfigurations")
        _check_rules(found.get("ProfilerRuleConfigurations", []), "ProfilerRuleConfigurations")
        _profiler_rules(found)
    except (SMDebugError, InvalidArgumentError) as error:
        raise InvalidArgumentError(f"{error}: {os.fspath(path)}") from None
    return found


def _check_rules(rules: Any, key: str) -> None:
    if not isinstance(rules, list):
        raise InvalidArgumentError(f"found {type(rules).__name__} at {key}, expected a list")
    for number, rule in enumerate(rules):
        place = f"{key}[{number}]"
        json_config.known_keys(rule, _RULE_KEYS, place)
        parameters = rule.get("RuleParameters")
        if not isinstance(parameters, dict) or not isinstance(parameters.get("rule_to_invoke"), str):
            raise InvalidArgumentError(
                f"found no rule_to_invoke at {place}.RuleParameters, expected a rule's name"
            )


def _profiler_rules(found: Mapping[str, Any]) -> dict[str, str]:
    """Returns the rules of the profiler for Luff's section ``output``: names with their parameters, and a folder.

    Raises
    ------
    InvalidArgumentError
        For a rule that there is not, or one that is there twice.
    """
    rules: dict[str, str] = {}
    folder = ""
    for number, rule in enumerate(found.get("ProfilerRuleConfigurations") or []):
        parameters = dict(rule["RuleParameters"])
        name = parameters.pop("rule_to_invoke")
        if name not in RULE_NAMES:
            raise InvalidArgumentError(
                f"found rule {name!r} at ProfilerRuleConfigurations[{number}], expected one of the profiler's: "
                f"{', '.join(RULE_NAMES)}"
            )
        if name in rules:
            raise InvalidArgumentError(f"found rule {name!r} twice, expected each rule once")
        for key, value in parameters.items():
            if any(one in f"{key}{value}" for one in ",:="):
                raise InvalidArgumentError(f"rule {name}: found {key}={value}, expected a number or a word")
        rules[name] = ":".join(
            [name, *(f"{key}={value}" for key, value in parameters.items() if value != "")]
        )
        if name == "ProfilerReport" or not folder:
            folder = rule.get("LocalPath") or folder
            if name == "ProfilerReport":
                folder = folder or rule["RuleConfigurationName"]
    if not rules:
        return {}
    return {"profiler_rules": ",".join(rules.values()), **({"profiler_report": folder} if folder else {})}


# ---- conversion to Luff's configuration ------------------------------------------------------------------------


def _text(value: str) -> str:
    return json.dumps(value)  # a JSON string is also a TOML string


def _save(config: SaveConfig) -> dict[str, Any]:
    return {mode: keys for mode, keys in config.to_json_dict().items() if keys is not None}


def capture(hook: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a hook's configuration to Luff's capture configuration (docs/capture.md)."""
    arguments = json_config.collect_hook_config_params(hook)
    reductions: ReductionConfig = arguments["reduction_config"] or ReductionConfig(save_raw_tensor=True)
    out: dict[str, Any] = {"save": _save(arguments["save_config"])}
    if arguments["save_all"]:
        out["save_all"] = True
    if arguments["include_regex"]:
        out["include_regex"] = arguments["include_regex"]
    listed = []
    for item in hook.get("CollectionConfigurations") or ():
        given = item.get("CollectionParameters") or {}
        name = item["CollectionName"]
        one: dict[str, Any] = {"name": name}
        expressions = json_config.split(given["include_regex"]) if given.get("include_regex") else []
        if not expressions and name not in _BY_ROLE and name != CollectionKeys.ALL:
            known = XGBOOST.get(name)
            expressions = [known] if known else []
        if expressions:
            one["include"] = expressions
        elif name == CollectionKeys.ALL:
            one["include"] = [".*"]
        elif name not in _BY_ROLE:
            raise InvalidArgumentError(
                f"collection {name!r} has no include_regex, expected one: only "
                f"{', '.join(sorted(_BY_ROLE | set(XGBOOST)))} are known"
            )
        own = json_config.reduction_config(given) or reductions
        one["forms"] = luff_config.ReductionConfig.forms(own) or ["summary"]
        if "summary" not in one["forms"]:
            one["forms"] = ["summary", *one["forms"]]
        one["save"] = _save(json_config.save_config_of(given, arguments["save_explicit"]))
        listed.append(one)
    if listed:
        out["collections"] = listed
    return out


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items() if v is not None) + " }"
    return "[" + ", ".join(_toml(item) for item in value) + "]"


def to_luff(found: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Returns Luff's configuration as TOML, and messages about what Luff cannot do."""
    lines: list[str] = []
    told: list[str] = []
    rules = found.get("DebugRuleConfigurations") or []
    names: list[str] = []
    tables: list[str] = []
    actions: list[str] = []
    report = None
    for rule in rules:
        parameters = rule["RuleParameters"]
        name = parameters["rule_to_invoke"]
        if name == _REPORT:
            report = os.path.join(
                rule.get("LocalPath") or rule["RuleConfigurationName"], "xgboost_report.html"
            )
            if parameters.get("action_json"):
                told.append(f"rule {rule['RuleConfigurationName']}: it finds nothing, so no action follows")
            continue
        source = parameters.get("source_s3_uri")
        if source:
            name = f"{source}:{name}"
        if name in names:
            raise InvalidArgumentError(f"found rule {name!r} twice, expected each rule once")
        names.append(name)
        own = {key: value for key, value in parameters.items() if key not in _NOT_PARAMETERS}
        if own:
            tables.append(f"[rule.{_text(name)}]")
            tables += [f"{_text(key)} = {_text(str(value))}" for key, value in own.items()]
        actions += _actions(name, rule["RuleConfigurationName"], parameters.get("action_json"), told)
    if rules:
        lines += ['parameters = "original"', f"rules = {_toml(names or 'none')}"]
    lines += [
        "[capture]",
        *(f"{key} = {_toml(value)}" for key, value in capture(found["DebugHookConfig"]).items()),
    ]
    lines += _output(found, report)
    return "\n".join([*lines, *tables, *actions]) + "\n", told


def _output(found: Mapping[str, Any], report: str | None) -> list[str]:
    """Returns the section that names the files written beside the run."""
    out = {**({"report": report} if report else {}), **_profiler_rules(found)}
    hook = found["DebugHookConfig"]
    # With --compat smdebug, the hook in the script writes to its directory itself.
    if hook.get("LocalPath") and os.environ.get("LUFF_COMPAT") != "smdebug":
        out["smdebug"] = hook["LocalPath"]
    board = (found.get("TensorBoardOutputConfig") or {}).get("LocalPath")
    board = board or (hook.get("HookParameters") or {}).get("tensorboard_dir")
    if board and os.environ.get("LUFF_COMPAT") != "smdebug":
        out["tensorboard"] = board
    return ["[output]", *(f"{key} = {_text(str(value))}" for key, value in out.items())] if out else []


def _actions(rule: str, called: str, text: Any, told: list[str]) -> list[str]:
    if not text:
        return []
    try:
        given = json.loads(text)
    except ValueError:
        raise InvalidArgumentError(
            f"found no JSON in action_json of rule {called}, expected actions"
        ) from None
    out = []
    for number, item in enumerate(given if isinstance(given, list) else [given]):
        kind = str(item.get("name", "")).lower() if isinstance(item, dict) else ""
        head = [
            "[[action]]",
            f"name = {_text(f'{called}-{kind}-{number}')}",
            f"rules = [{_text(rule.rpartition(':')[2])}]",
        ]
        if kind == "stoptraining":
            out += [*head, 'kind = "stop"', 'severity = "warn"', "dry_run = false"]
        elif kind == "email":
            host, sender = os.environ.get("LUFF_MAIL_HOST"), os.environ.get("LUFF_MAIL_FROM")
            if host and sender:
                tls = os.environ.get("LUFF_MAIL_TLS", "starttls")
                mail = [
                    'kind = "mail"',
                    f"host = {_text(host)}",
                    f"from = {_text(sender)}",
                    f"tls = {_text(tls)}",
                ]
                out += [*head, *mail, f"to = [{_text(str(item.get('endpoint', '')))}]"]
            else:
                told.append(
                    f"rule {called}: no mail is sent; set LUFF_MAIL_HOST and LUFF_MAIL_FROM (docs/actions.md)"
                )
        elif kind == "sms":
            told.append(f"rule {called}: short messages are not sent; an [[action]] of kind webhook can be")
        else:
            raise InvalidArgumentError(
                f"found action {item!r} of rule {called}, expected stoptraining, email or sms"
            )
    return out
