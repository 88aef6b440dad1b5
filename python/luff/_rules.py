"""Loads the user's own rules by name, and makes them with parameters given as text."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import inspect
import os
import sys
import typing
from typing import TYPE_CHECKING, Any

from luff.errors import InvalidArgumentError, LuffError, NotFoundError
from luff.rule import Rule

if TYPE_CHECKING:
    from collections.abc import Mapping

ENTRY_POINTS = "luff.rules"
_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no", "")


def load(name: str) -> type[Rule]:
    """Returns the class named by ``file.py:Name``, or by the entry point of this name."""
    if ".py:" in name:
        path, _, attribute = name.rpartition(":")
        found = getattr(_module(path), attribute, None)
        where = path
    else:
        points = [p for p in importlib.metadata.entry_points(group=ENTRY_POINTS) if p.name == name]
        if not points:
            raise NotFoundError(f"there is no entry point {name!r} of the group {ENTRY_POINTS}")
        found, where = points[0].load(), points[0].value
        attribute = name
    if not isinstance(found, type) or not issubclass(found, Rule):
        known = [
            k
            for k, v in vars(sys.modules.get(getattr(found, "__module__", ""), object)).items()
            if _is_rule(v)
        ]
        if ".py:" in name:
            known = [k for k, v in vars(_module(where)).items() if _is_rule(v)]
        hint = f"; rules there: {', '.join(known)}" if known else ""
        what = "is not there" if found is None else "is no class derived from luff.Rule"
        said = f"{attribute} {what}" if attribute else "no rule is named; write FILE.py:NAME"
        raise InvalidArgumentError(f"{said}{hint}: {where}")
    return found


def _is_rule(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Rule) and value is not Rule


def _module(path: str) -> Any:
    path = os.path.abspath(path)
    # The same file is always one module, so that pickled or compared classes stay the same.
    name = "luff_rules_" + hashlib.sha256(path.encode()).hexdigest()[:16]
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidArgumentError(f"no Python file: {path}")
    with open(path, "rb") as file:
        if b"smdebug" in file.read():  # written for smdebug: Luff provides its base class
            from luff.compat import smdebug

            smdebug.install()
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def parameters_of(rule: type[Rule]) -> dict[str, inspect.Parameter]:
    """Returns the constructor's parameters other than the trials and the action, by name."""
    found = list(inspect.signature(rule.__init__).parameters.values())[1:]
    named = [p for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return {p.name: p for p in named if p.name not in ("base_trial", "other_trials", "action_str")}


def convert(rule: type[Rule], given: Mapping[str, str]) -> dict[str, Any]:
    """Converts parameters to the types that the constructor takes."""
    known = parameters_of(rule)
    try:
        hints = typing.get_type_hints(rule.__init__)
    except Exception:  # names that exist only for a type checker
        hints = {}
    values = {}
    for name, text in given.items():
        if name not in known:
            raise InvalidArgumentError(
                f"rule {rule.__name__} has no parameter {name!r}; known: {', '.join(known) or 'none'}"
            )
        values[name] = _value(rule, known[name], hints.get(name), text)
    missing = [p.name for p in known.values() if p.default is p.empty and p.name not in values]
    if missing:
        raise InvalidArgumentError(
            f"rule {rule.__name__} needs the parameter {missing[0]!r}: write :{missing[0]}=…"
        )
    return values


def _value(rule: type[Rule], parameter: inspect.Parameter, hint: Any, text: str) -> Any:
    kinds = set(typing.get_args(hint)) or {hint}
    default = parameter.default
    if hint is None and default is not parameter.empty and default is not None:
        kinds = {type(default)}
    kinds = {typing.get_origin(kind) or kind for kind in kinds}
    if type(None) in kinds and text == "None":
        return None
    try:
        if bool in kinds:
            if text.lower() in _TRUE or text.lower() in _FALSE:
                return text.lower() in _TRUE
            raise ValueError("no truth value")
        for kind in (int, float):
            if kind in kinds:
                try:
                    return kind(text)
                except ValueError:
                    if kind is float or float not in kinds:
                        raise
        if kinds & {list, tuple}:
            items = [item.strip() for item in text.split(";") if item.strip()]
            return tuple(items) if tuple in kinds else items
    except ValueError:
        names = ", ".join(sorted(getattr(kind, "__name__", str(kind)) for kind in kinds))
        raise InvalidArgumentError(
            f"parameter {parameter.name!r} of rule {rule.__name__} is {text!r}, expected {names}"
        ) from None
    return text


def make(rule: type[Rule], trial: Any, given: Mapping[str, str]) -> Rule:
    """Makes a rule that reads a trial."""
    made = rule(trial, **convert(rule, given))
    if made.base_trial is None:
        made.base_trial = trial
    return made


def describe(rule: type[Rule], given: Mapping[str, str]) -> dict[str, Any]:
    """Describes the rule without making one."""
    values = convert(rule, given)
    if rule.on_step is Rule.on_step and rule.invoke_at_step is Rule.invoke_at_step:
        raise InvalidArgumentError(f"rule {rule.__name__} has neither on_step nor invoke_at_step")
    needs = rule.needs(**values) if callable(rule.needs) else rule.needs
    if not isinstance(needs, (list, tuple)) or not all(isinstance(need, dict) for need in needs):
        raise InvalidArgumentError(f"needs of rule {rule.__name__} is no list of collections' settings")
    text = (inspect.getdoc(rule) or "") if rule.__doc__ else ""
    return {
        "name": rule.__name__,
        "version": int(rule.version),
        "summary": text.partition("\n")[0],
        "text": text,
        "needs": list(needs),
        "parameters": [
            {
                "name": p.name,
                "default": "" if p.default is p.empty else str(p.default),
                "doc": "required" if p.default is p.empty else "",
            }
            for p in parameters_of(rule).values()
        ],
    }


def place_of(error: BaseException, rule: type[Rule] | None) -> str:
    """Formats an error as one line, with the innermost line of the user's own file."""
    own = inspect.getsourcefile(rule) if rule is not None else None
    place = ""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if own is None or code.co_filename == own:
            place = f"{os.path.basename(code.co_filename)}, line {trace.tb_lineno}"
            try:
                with open(code.co_filename, encoding="utf-8", errors="replace") as file:
                    lines = file.read().splitlines()
                place += f": {lines[trace.tb_lineno - 1].strip()}"
            except (OSError, IndexError):
                pass
        trace = trace.tb_next
    text = str(error) if isinstance(error, LuffError) else f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError) and error.filename:
        place = f"{os.path.basename(error.filename)}, line {error.lineno}"
        text = f"{type(error).__name__}: {error.msg}"
    return f"{text[:500]} ({place})" if place else text[:500]
