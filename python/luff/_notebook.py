"""What a notebook shows for a trial and for a tensor."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from luff._evaluations import means_of_evaluations

if TYPE_CHECKING:
    from collections.abc import Iterable

    from luff.trial import Tensor, Trial

__all__ = ["tensor_html", "trial_html"]

_SHOWN = 10  # rows of a table


def _text(value: Any) -> str:
    if isinstance(value, float):
        value = f"{value:.6g}"
    return escape(str(value).encode("utf-8", "backslashreplace").decode())


def _table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    lines = ["<table><thead><tr>", *(f"<th>{_text(name)}</th>" for name in head), "</tr></thead><tbody>"]
    for row in rows:
        cells = (f'<td style="text-align:left">{_text(cell)}</td>' for cell in row)
        lines += ["<tr>", *cells, "</tr>"]
    return "".join([*lines, "</tbody></table>"])


def _more(count: int) -> str:
    return f"<p>and {count - _SHOWN} more</p>" if count > _SHOWN else ""


def _step(mode: str, step: int) -> str:
    return str(step) if mode == "TRAIN" else f"{mode} {step}"


def trial_html(trial: Trial) -> str:
    """Returns a run at a glance: outcome, steps, losses (of an evaluation its mean), findings that stand."""
    steps = ", ".join(f"{len(trial.steps(mode))} {mode}" for mode in trial.modes()) or "no"
    why = f": {trial.outcome_reason}" if trial.outcome_reason else ""
    html = f"<p><b>{_text(trial.path)}</b><br>{_text(trial.outcome + why)}, {_text(steps)} steps</p>"
    losses = []
    for name in trial.tensors(collection="losses"):
        for mode in ("TRAIN", "EVAL"):
            scalars = trial.scalars(name, mode)
            if mode == "EVAL":
                scalars = means_of_evaluations(scalars)
            if len(scalars["value"]):
                losses.append(
                    (
                        name,
                        mode,
                        float(scalars["value"][-1]),
                        float(scalars["value"].min()),
                        int(scalars["mode_step"][-1]),
                    )
                )
    if losses:
        html += _table(("loss", "mode", "last", "least", "at step"), losses[:_SHOWN]) + _more(len(losses))
    found = [f for f in trial.findings(healed=False) if not f["leader"]]
    if found:
        rows = [
            (f["severity"].upper(), f["rule"], _step(f["mode"], f["since_step"]), f["tensor"], f["what"])
            for f in found[:_SHOWN]
        ]
        html += _table(("", "finding", "since step", "tensor", "what"), rows) + _more(len(found))
    else:
        html += "<p>no findings</p>"
    for problem in trial.problems()[:_SHOWN]:
        html += f"<p>damage: {_text(problem)}</p>"
    return html


def tensor_html(tensor: Tensor) -> str:
    """Returns a tensor at a glance: role, module, steps by mode, the latest statistics or scalars."""
    path, kind = tensor.module
    module = f" of {path} ({kind})" if path else ""
    html = f"<p><b>{_text(tensor.name)}</b><br>{_text(tensor.role + module)}</p>"
    rows: list[tuple[Any, ...]] = []
    for mode in tensor.trial.modes():
        summaries, scalars = tensor.summaries(mode), tensor.trial.scalars(tensor.name, mode)
        if len(scalars["value"]):
            rows.append(
                (
                    mode,
                    len(scalars["value"]),
                    int(scalars["mode_step"][-1]),
                    float(scalars["value"][-1]),
                    "",
                    "",
                    "",
                )
            )
        elif len(summaries["step"]):
            latest = [float(summaries[name][-1]) for name in ("mean", "std", "min", "max")]
            rows.append((mode, len(summaries["step"]), int(summaries["mode_step"][-1]), *latest))
    return html + _table(("mode", "steps", "latest step", "mean or value", "std", "min", "max"), rows)
