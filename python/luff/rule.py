"""Rules of your own: checks over a run, written in a Python file and run in their own process.

>>> class LossAbove(luff.Rule):
...     def __init__(self, base_trial=None, limit: float = 5.0):
...         super().__init__(base_trial)
...         self.limit = limit
...
...     def on_step(self, view):
...         if view.loss is not None and view.loss > self.limit:
...             return luff.Finding(f"the loss is {view.loss:.3g}", evidence={"loss": view.loss})

``luff run --rules all,checks.py:LossAbove:limit=3 -- python train.py`` runs it beside the built-in ones. How to
write, test and name rules: docs/own-rules.md.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from luff._codes import Mode, Role
from luff.errors import InvalidArgumentError, LuffError, NotFoundError, OutOfRangeError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from luff.trial import Trial

__all__ = ["Finding", "Rule", "StepView"]

_SEVERITIES = ("warn", "stop")
_MAX_TENSORS = 20
_MAX_SERIES = 64
_MAX_TEXT = 4000
#: Errors that a rule may raise if the run does not contain what it reads; they are not mistakes of the rule.
LACKS = (NotFoundError, OutOfRangeError, UnavailableError)


@dataclass
class Finding:
    """What a rule found. Luff fills in step, rule and id; a finding of the same cause and tensor updates the first.

    Parameters
    ----------
    what
        One sentence: what is wrong.
    cause
        Short stable key within the rule; findings with different causes are different findings.
    severity
        ``"warn"``, or ``"stop"``: further training is wasted.
    tensor, other_tensors
        The tensor that it is about, and others that are also affected.
    since_step
        Step of the mode at which the trouble began; by default the step of the finding.
    why, remedy, causes
        Why it is wrong, what to do, likely causes with the likeliest first.
    evidence, series
        Numbers by name; (step, value) pairs around the finding.
    threshold
        The limit that was exceeded, and where the limit comes from.
    forecast, lead_steps
        Whether it has not happened yet; in how many steps it is expected.
    """

    what: str
    cause: str = "condition"
    severity: str = "warn"
    tensor: str = ""
    other_tensors: Sequence[str] = ()
    since_step: int | None = None
    why: str = ""
    remedy: str = ""
    causes: Sequence[str] = ()
    evidence: Mapping[str, float] = field(default_factory=dict)
    series: Sequence[tuple[int, float]] = ()
    threshold: str = ""
    forecast: bool = False
    lead_steps: int = 0
    # Filled in by `report`.
    rule: str = ""
    mode: str = "TRAIN"
    worker: int = 0
    step: int = -1
    global_step: int = -1
    update: int = -1
    last_step: int = -1
    healed: bool = False

    def __post_init__(self) -> None:
        if self.severity not in _SEVERITIES:
            raise InvalidArgumentError(f"found severity {self.severity!r}, expected 'warn' or 'stop'")

    def to_dict(self) -> dict[str, Any]:
        """Returns the members as in docs/spec/findings.md."""
        others = list(self.other_tensors)
        return {
            "rule": self.rule,
            "cause": str(self.cause),
            "severity": self.severity,
            "tensor": str(self.tensor),
            "other_tensors": [str(name) for name in others[:_MAX_TENSORS]],
            "other_count": max(0, len(others) - _MAX_TENSORS),
            "mode": self.mode,
            "worker": int(self.worker),
            "step": int(self.step),
            "global_step": int(self.global_step),
            "update": int(self.update),
            "since_step": int(self.step if self.since_step is None else self.since_step),
            "last_step": int(self.last_step),
            "forecast": bool(self.forecast),
            "lead_steps": int(self.lead_steps),
            "what": str(self.what)[:_MAX_TEXT],
            "why": str(self.why)[:_MAX_TEXT],
            "remedy": str(self.remedy)[:_MAX_TEXT],
            "causes": [str(cause)[:_MAX_TEXT] for cause in list(self.causes)[:_MAX_TENSORS]],
            "evidence": {str(k): _number(v) for k, v in list(self.evidence.items())[:_MAX_SERIES]},
            "series": [[int(step), _number(value)] for step, value in list(self.series)[-_MAX_SERIES:]],
            "threshold": str(self.threshold)[:_MAX_TEXT],
            "page": "docs/own-rules.md",
        }


def _number(value: Any) -> float | str:
    number = float(value)
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return number


class StepView:
    """One complete step, as a rule sees it. Everything is read on demand."""

    def __init__(self, trial: Trial, number: int) -> None:
        self.trial = trial
        self.number = number
        info = trial._core.step_at(number)
        #: Global step, step of the mode, and optimizer updates before it.
        self.step: int = info[0]
        self.mode_step: int = info[1]
        self.update: int = info[2]
        #: ``"TRAIN"``, ``"EVAL"``, ``"PREDICT"`` or ``"GLOBAL"``.
        self.mode: str = Mode(info[3]).name
        self._summaries: dict[str, dict[str, Any]] | None = None
        self._scalars: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<luff.StepView {self.mode} step {self.mode_step} of {self.trial.path!r}>"

    def _read(self) -> dict[str, dict[str, Any]]:
        if self._summaries is None:
            summaries, scalars = self.trial._core.step_rows(self.number)
            self._summaries = {}
            for name, summary in summaries:  # if several workers have it, the first one counts
                self._summaries.setdefault(name, summary)
            for name, _, value in scalars:
                self._scalars.setdefault(name, value)
        return self._summaries

    @property
    def summaries(self) -> dict[str, dict[str, Any]]:
        """Statistics recorded in this step, by name of the tensor; with several workers, those of the first."""
        return self._read()

    @property
    def scalars(self) -> dict[str, float]:
        """Numbers recorded in this step, by name."""
        self._read()
        return self._scalars

    @property
    def loss(self) -> float | None:
        """The loss of this step, or None if none was recorded; of several losses, the first that the run defines."""
        self._read()
        for name, value in self._scalars.items():
            if name == "loss" or self.trial.tensor(name).role == Role.LOSS.name.lower():
                return value
        for name, summary in self._read().items():
            if summary["count"] == 1 and self.trial.tensor(name).role == Role.LOSS.name.lower():
                return float("nan") if summary["nan_count"] else float(summary["mean"])
        return None

    def tensors(self, regex: str | None = None) -> Iterator[str]:
        """Iterates over the names of the tensors recorded in this step, sorted."""
        return iter(self.trial.tensors(regex, step=self.step))

    def value(self, name: str, worker: int | None = None) -> Any:
        """Returns the value of a tensor in this step; raises `OutOfRangeError` if it was not saved."""
        return self.trial.tensor(name).value(self.step, worker=worker)


class Rule:
    """Base class of rules. Derive from it and define `on_step` or `invoke_at_step`.

    The constructor takes the trial first, then its parameters by name. Texts from the command line are converted to
    the types of their annotations or defaults.

    Parameters
    ----------
    base_trial
        The run. It shows the steps up to the current one, and none after it.
    """

    #: What has to be captured: collections as in docs/capture.md, e.g.
    #: ``[{"include": ["^gradient/"], "forms": ["summary"], "save_interval": 10}]``. May be a function of the
    #: parameters.
    needs: ClassVar[Any] = ()
    #: Version of behaviour and state. Changing it makes the rule start over at the first step, as changing its file
    #: does.
    version: ClassVar[int] = 1
    #: For rules with `invoke_at_step`: the severity of the finding, and its sentence.
    severity: str = "warn"
    message: str = ""

    base_trial: Any = None
    _view: StepView | None = None
    _told: list[tuple[str, Any]]

    def __init__(self, base_trial: Trial | None = None, *_: Any, **__: Any) -> None:
        if base_trial is not None:
            self.base_trial = base_trial

    @property
    def rule_name(self) -> str:
        """Name of the class."""
        return type(self).__name__

    def on_step(self, view: StepView) -> Finding | None:
        """Evaluates one step. Return a finding, or report several with `report`.

        Called once for each complete step of any mode, in order. By default it calls `invoke_at_step` with the
        global step.
        """
        if not self.invoke_at_step(view.step):
            return None
        return Finding(
            self.message or f"the condition of {self.rule_name} is met",
            severity=self.severity,
            mode=view.mode,
        )

    def invoke_at_step(self, step: int) -> bool:
        """Returns whether the condition is met at a global step."""
        raise NotImplementedError(f"{self.rule_name} has neither on_step nor invoke_at_step")

    def on_end(self) -> None:
        """Called when the run is over. Report findings with `report`; they belong to the last step."""

    def state(self) -> Any:
        """Returns what to keep for a restart, as JSON; None means that a restart goes through all steps."""
        return None

    def restore(self, state: Any) -> None:
        """Restores a state that `state` returned."""
        raise NotImplementedError(f"{self.rule_name} has state() and no restore()")

    def report(self, finding: Finding) -> None:
        """Reports a finding at the current step."""
        if not isinstance(finding, Finding):
            raise InvalidArgumentError(f"found {type(finding).__name__}, expected a luff.Finding")
        view = self._view
        if view is None:
            raise InvalidArgumentError("a rule can report only during a step, or at the end")
        finding.rule = finding.rule or self.rule_name
        if finding.step < 0:
            finding.mode, finding.step = view.mode, view.mode_step
            finding.global_step, finding.update = view.step, view.update
            finding.last_step = view.mode_step
            finding.since_step = (
                view.mode_step if finding.since_step is None else min(finding.since_step, view.mode_step)
            )
        self._told.append(("finding", finding))

    def heal(self, cause: str = "condition", tensor: str = "") -> None:
        """Ends the finding that was reported with this cause and tensor."""
        view = self._view
        if view is None:
            raise InvalidArgumentError("a rule can report only during a step, or at the end")
        self._told.append(("heal", (cause, tensor, view.mode_step)))

    # ---- for the process that runs the rule ----

    def _step(self, view: StepView) -> list[tuple[str, Any]]:
        self._view, self._told = view, []
        finding = self.on_step(view)
        if finding is not None:
            self.report(finding)
        return self._told

    def _end(self) -> list[tuple[str, Any]]:
        self._told = []
        if self._view is not None:
            self.on_end()
        return self._told


def check_state(rule: Rule) -> Any:
    """Returns the state of a rule, after checking that JSON can represent it.

    Raises
    ------
    InvalidArgumentError
        If JSON cannot represent it, or the rule cannot restore it.
    """
    state = rule.state()
    if state is None:
        return None
    if type(rule).restore is Rule.restore:
        raise InvalidArgumentError(f"{rule.rule_name} has state() and no restore()")
    try:
        return json.loads(json.dumps(state, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"state() gives what JSON does not hold: {error}") from None


def is_lack(error: BaseException) -> bool:
    """Returns whether the error means that the run lacks what the rule reads, which is not a mistake of the rule."""
    return isinstance(error, LuffError) and isinstance(error, LACKS)
