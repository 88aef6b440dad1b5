"""Luff watches a model train.

Importing this package imports no framework; each has its own module (`luff.torch`, ...).
"""

from __future__ import annotations

from luff import corrections, errors
from luff._codes import Mode
from luff._core import version as _version
from luff._phases import phase, wait
from luff._records import Event, Gap, StepInfo, Worker
from luff._trace import trace
from luff._trial_run import TrialRun, trial_run
from luff.errors import LuffError, StopTraining, TrialStopped
from luff.rule import Finding, Rule, StepView
from luff.stop import on_stop
from luff.trial import Tensor, Trial, open_trial

__all__ = [
    "Event",
    "Finding",
    "Gap",
    "LuffError",
    "Mode",
    "Rule",
    "StepInfo",
    "StepView",
    "StopTraining",
    "Tensor",
    "Trial",
    "TrialRun",
    "TrialStopped",
    "Worker",
    "__version__",
    "corrections",
    "errors",
    "on_stop",
    "open_trial",
    "phase",
    "trace",
    "trial_run",
    "wait",
]

__version__ = _version()
