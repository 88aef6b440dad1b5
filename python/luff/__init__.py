"""Luff watches a model train.

Importing this package imports no framework; each has its own module (`luff.torch`, ...).
"""

from __future__ import annotations

from luff import corrections, errors
from luff._core import version as _version
from luff.errors import LuffError, StopTraining
from luff.rule import Finding, Rule, StepView
from luff.stop import on_stop
from luff.trial import Tensor, Trial, open_trial

__all__ = [
    "Finding",
    "LuffError",
    "Rule",
    "StepView",
    "StopTraining",
    "Tensor",
    "Trial",
    "__version__",
    "corrections",
    "errors",
    "on_stop",
    "open_trial",
]

__version__ = _version()
