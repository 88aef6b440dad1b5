"""A kit for testing rules: trials from arrays, and the findings of a rule over them.

>>> trial = luff.testing.trial({"loss": [2.0, 1.5, 9.0], "gradient/w": [[0.1, 0.2], [0.1, 0.1], [5.0, 7.0]]})
>>> [finding.step for finding in luff.testing.findings(LossAbove(limit=5.0), trial)]
[2]

A trial is a run directory that the real writer makes in a temporary place, which is removed with the trial.
Everything that reads runs works on it.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import tempfile
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from luff import _core
from luff._codes import DType, EndReason, EventKind, Mode, Role
from luff.errors import InvalidArgumentError
from luff.rule import Finding, Rule, StepView, check_state, is_lack
from luff.trial import Trial, open_trial

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["findings", "step", "trial"]

_CLOSE_S = 60.0
_FLUSH_STEPS = 64
# Roles that the hooks give to tensors, by name.
_ROLES = (
    (r"^gradient/.*_output_\d+$", Role.OUTPUT_GRADIENT),
    (r"^gradient/.*_input_\d+$", Role.INPUT_GRADIENT),
    (r"^gradient/", Role.GRADIENT),
    (r"^attention/", Role.ATTENTION),
    (r"^sample/", Role.SAMPLE),
    (r"^optimizer/|^clip/", Role.OPTIMIZER_SETTING),
    (r"^loss$|Loss_output_\d+$", Role.LOSS),
    (r"weight$", Role.WEIGHT),
    (r"bias$", Role.BIAS),
    (r"_output_\d+$", Role.OUTPUT),
    (r"_input_\d+$", Role.INPUT),
    (r"^labels?$", Role.LABEL),
)


def _role(name: str, numbers: bool) -> Role:
    for pattern, role in _ROLES:
        if re.search(pattern, name):
            return role
    return Role.SCALAR if numbers else Role.OTHER


def _as_role(role: str | int) -> Role:
    if isinstance(role, str):
        try:
            return Role[role.upper()]
        except KeyError:
            known = ", ".join(r.name.lower() for r in Role)
            raise InvalidArgumentError(f"found role {role!r}, expected one of {known}") from None
    return Role(role)


def _dtype(array: np.ndarray[Any, Any]) -> DType:
    name = {"float8_e4m3fn": "FLOAT8_E4M3FN"}.get(array.dtype.name, array.dtype.name.upper())
    try:
        return DType[name]
    except KeyError:
        raise InvalidArgumentError(f"arrays of {array.dtype} cannot be recorded; use a number type") from None


def trial(
    tensors: Mapping[str, Sequence[Any]],
    *,
    modes: Sequence[str] | str = "TRAIN",
    roles: Mapping[str, str | int] | None = None,
    module_types: Mapping[str, str] | None = None,
    collections: Mapping[str, str | Sequence[str]] | None = None,
    documents: Mapping[str, Any] | None = None,
    path: str | os.PathLike[str] | None = None,
) -> Trial:
    """Writes a run from arrays and opens it.

    Parameters
    ----------
    tensors
        By name, one value for each step: an array (kept with summary and histogram), a number, or None if nothing was
        recorded. All lists have the same length.
    modes
        Mode of each step, or one mode for all steps.
    roles
        By name, if the name does not imply the role. Names mean the same as in the hooks: ``gradient/…`` is a
        gradient, ``loss`` and ``…Loss_output_0`` are losses, ``….weight`` and ``….bias`` parameters.
    module_types
        Type of the module that a tensor belongs to, e.g. ``{"relu_output_0": "ReLU"}``.
    collections
        Further collections by name, with expressions on names of tensors. ``weights``, ``biases``, ``gradients`` and
        ``losses`` always exist.
    documents
        Documents of the run, e.g. ``model``, as JSON values.
    path
        Where to write the run; by default a temporary place, which is removed with the trial.
    """
    lengths = {name: len(values) for name, values in tensors.items()}
    count = max(lengths.values(), default=0)
    for name, length in lengths.items():
        if length != count:
            raise InvalidArgumentError(
                f"{name!r} has values for {length} steps, others for {count}; put None where nothing was recorded"
            )
    of_step = [modes] * count if isinstance(modes, str) else list(modes)
    if len(of_step) != count:
        raise InvalidArgumentError(f"found {len(of_step)} modes for {count} steps")
    kinds = {
        name: _as_role(roles[name])
        if roles and name in roles
        else _role(name, all(value is None or np.ndim(value) == 0 for value in values))
        for name, values in tensors.items()
    }
    config: dict[str, Any] = {
        "max_overhead": 0,
        "collections": [
            {
                "name": "everything",
                "include": ["."],
                "forms": ["summary", "raw", "histogram"],
                "save": {"save_interval": 1},
            }
        ],
    }
    for name, expressions in (collections or {}).items():
        include = [expressions] if isinstance(expressions, str) else list(expressions)
        config["collections"].append(
            {"name": name, "include": include, "forms": ["summary"], "save": {"save_interval": 1}}
        )
    place = tempfile.mkdtemp(prefix="luff-trial-") if path is None else None
    run = os.path.join(place, "run") if place is not None else os.fspath(path or "")
    try:
        session = _core.Session.open(run, config_json=json.dumps(config))
        try:
            for name, document in (documents or {}).items():
                session.set_document(name, json.dumps(document))
            ids = {
                name: session.define_tensor(name, int(kind), "", (module_types or {}).get(name, ""))
                for name, kind in kinds.items()
            }
            _record(session, ids, tensors, of_step)
        finally:
            session.close(int(EndReason.COMPLETED), _CLOSE_S)
        made = open_trial(run)
    except BaseException:
        if place is not None:
            shutil.rmtree(place, ignore_errors=True)
        raise
    if place is not None:
        weakref.finalize(made, shutil.rmtree, place, ignore_errors=True)
    return made


def _record(
    session: _core.Session, ids: dict[str, int], tensors: Mapping[str, Sequence[Any]], modes: Sequence[str]
) -> None:
    mode_steps = dict.fromkeys(Mode, 0)
    for number, name_of_mode in enumerate(modes):
        mode = Mode[name_of_mode.upper()]
        session.begin_step(int(mode), mode_steps[mode])
        for name, values in tensors.items():
            value = values[number]
            if value is None:
                continue
            if np.ndim(value) == 0 and not isinstance(value, np.ndarray):
                session.scalar(ids[name], float(value))
                continue
            array = np.asarray(value, order="C")
            layout = session.define_layout(int(_dtype(array)), list(array.shape))
            session.capture_one(ids[name], layout, array.ctypes.data)
        if mode is Mode.TRAIN:
            session.event(int(EventKind.BACKWARD))
        session.end_step(int(mode), number, mode_steps[mode], mode_steps[Mode.TRAIN])
        mode_steps[mode] += 1
        if number % _FLUSH_STEPS == _FLUSH_STEPS - 1:
            session.flush(_CLOSE_S)


def _up_to(trial: Trial, steps: int) -> Trial:
    return Trial(_core.open_trial(trial.path, 0.0, True, 60.0, steps))


def findings(rule: Rule, trial: Trial, *, restart_after: int | None = None) -> list[Finding]:
    """Returns what a rule finds in a trial, as ``luff check`` does: one finding per cause and tensor, in its final
    form.

    Parameters
    ----------
    rule
        A rule made without a trial, e.g. ``MyRule(limit=3)``; it gets one that shows no step beyond the current one.
    trial
        A trial made by `trial`, or any other.
    restart_after
        Saves the rule after this many steps, and continues with a new one that restores the state.

    Raises
    ------
    Exception
        Whatever the rule raises, except for errors about missing data: such steps are skipped.
    """
    fresh = copy.deepcopy(rule)
    seen = _up_to(trial, 0)
    rule.base_trial = seen
    found: list[Finding] = []
    for number in range(trial._core.step_count):
        if number == restart_after:
            state = check_state(rule)
            if state is None:
                raise InvalidArgumentError(
                    f"{rule.rule_name} has no state(); a restart goes through all steps"
                )
            rule = fresh
            rule.base_trial = seen
            rule.restore(state)
        seen._core.show_at_most(number + 1)
        try:
            _merge(found, rule._step(StepView(seen, number)))
        except Exception as error:
            if not is_lack(error):
                raise
    _merge(found, rule._end())
    return found


def _merge(found: list[Finding], told: list[tuple[str, Any]]) -> None:
    for kind, what in told:
        cause, tensor = what[:2] if kind == "heal" else (what.cause, what.tensor)
        known = next(
            (f for f in reversed(found) if not f.healed and (f.cause, f.tensor) == (cause, tensor)), None
        )
        if kind == "heal":
            if known is not None:
                known.healed, known.last_step = True, what[2]
        elif known is None:
            found.append(copy.copy(what))
        else:
            known.last_step = what.last_step
            if what.severity == "stop":
                known.severity, known.what = what.severity, what.what


def step(rule: Rule, trial: Trial, step: int, mode: str | int = "GLOBAL") -> list[Finding]:
    """Returns what a rule reports at a single step, as if the run ended there."""
    wanted = trial.global_step(step, mode)
    number = next(n for n in range(trial._core.step_count) if trial._core.step_at(n)[0] == wanted)
    rule.base_trial = seen = _up_to(trial, number + 1)
    return [what for kind, what in rule._step(StepView(seen, number)) if kind == "finding"]
